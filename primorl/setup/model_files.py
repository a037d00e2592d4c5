"""``models/dynamics`` and ``models/behaviour``: the released model and the clone, each with its privacy statement."""

from dataclasses import replace
from pathlib import Path

import torch

from primorl.config.params import Params
from primorl.dynamics.config import CanLearn, ModelConfig
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble, Weights
from primorl.dynamics.normaliser import Normaliser
from primorl.policy import behaviour
from primorl.policy.behaviour import BehaviourConfig, BehaviourPolicy
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import Statement
from primorl.project.files import file_sha256, replaced_directory
from primorl.setup.paid_training import PaidModel
from primorl.setup.partitions import Partitions
from primorl.setup.statement import log_statement, privacy_statement
from primorl.tracking import StageRun
from primorl.training.policy_network import PolicyNetwork
from primorl.training.setup import TrainingSetup


def write_model(
    folder: Path,
    params: Params,
    can_learn: CanLearn,
    setup: TrainingSetup,
    partitions: Partitions,
    paid: PaidModel,
    run: StageRun,
) -> None:
    """Replace ``folder`` by the trained model and its statement, log both, and commit the charge.

    The ledger gets the digest of every file. So a statement is bound to the bytes that it speaks of.

    Args:
        folder: of the model.
        params: every choice, fitted ones in place.
        can_learn: what the fit expects of these settings.
        setup: of the training.
        partitions: whose public facts the statement names.
        paid: the trained model and its charge.
        run: gets the statement as tags, and both JSON files.
    """
    info, trained, variant = partitions.manifest.info, paid.trained, params.dynamics.variant
    statement = _statement(None if variant == "mopo" else setup.plan, params, partitions, paid)
    ensemble = GaussianEnsemble(setup.ensemble, trained.weights, trained.normaliser, setup.bounds, info.termination)
    with replaced_directory(folder) as fresh:
        ensemble.save(
            fresh,
            environment=info.environment,
            variant=variant,
            rounds=trained.rounds,
            observation_names=info.spaces.observation_names,
            action_names=info.spaces.action_names,
            elapsed=info.spaces.elapsed,
            engine_version=paid.engine_version,
            public_loss=trained.public_loss,
        )
        replace(ModelConfig.read(fresh), can_learn=can_learn if variant == "private" else None).write(fresh)
        starts = setup.start_model(trained.answers)
        if starts is not None:
            starts.save(fresh)
        made = _with_statement(fresh, statement, run, ("config.json", "privacy.json"))
    paid.commit(made)
    log_statement(run, statement)


def _statement(plan: Plan | None, params: Params, partitions: Partitions, paid: PaidModel) -> Statement:
    return privacy_statement(plan, partitions.manifest, params).with_payment(paid.charge, paid.spent)


def _with_statement(folder: Path, statement: Statement, run: StageRun, logged: tuple[str, ...]) -> dict[str, str]:
    statement.write(folder)
    for file in logged:
        run.artifact(folder / file)
    return {file.name: file_sha256(file) for file in sorted(folder.iterdir())}


def write_nothing(folder: Path) -> None:
    """Write in ``folder`` that no clone was made."""
    with replaced_directory(folder) as fresh:
        BehaviourConfig(made=False).write(fresh)


def write_behaviour(
    folder: Path, params: Params, setup: TrainingSetup, partitions: Partitions, paid: PaidModel, run: StageRun
) -> None:
    """Replace ``folder`` by the clone and its statement, log both, and commit the charge with every file's digest.

    Args:
        folder: of the clone.
        params: every choice.
        setup: of the training.
        partitions: whose public facts the statement names.
        paid: the trained weights and their charge.
        run: gets the statement as tags, and the JSON files.
    """
    info, trained, network, bounds = partitions.manifest.info, paid.trained, setup.architecture, setup.bounds
    assert isinstance(network, PolicyNetwork)
    statement = _statement(setup.plan, params, partitions, paid)
    observations, actions = info.spaces.observation_names, info.spaces.action_names
    low, high = bounds.observation_low, bounds.observation_high
    finite = bool(low.isfinite().all() and high.isfinite().all())
    with replaced_directory(folder) as fresh:
        behaviour.save(
            fresh,
            behaviour_policy(network, trained.weights, trained.normaliser, bounds),
            variant=params.dynamics.variant,
            environment=info.environment,
            names=(observations, actions) if observations and actions else None,
            elapsed=info.spaces.elapsed,
            observation_range=(low, high) if finite else None,
            rounds=trained.rounds,
            engine_version=paid.engine_version,
            public_loss=trained.public_loss,
        )
        made = _with_statement(fresh, statement, run, ("config.json", behaviour.FILE, "privacy.json"))
    paid.commit(made)
    log_statement(run, statement)


def behaviour_policy(
    network: PolicyNetwork, weights: Weights, normaliser: Normaliser, bounds: Bounds
) -> BehaviourPolicy:
    """Build the policy of trained weights, on the CPU; weights of policies are ``[1, out, in]``."""
    layers = [
        part.detach().cpu().contiguous()
        for weight, bias in zip(weights[::2], weights[1::2], strict=True)
        for part in (weight.mT, bias)
    ]
    size = network.action_size
    last, spread = (layers[-2][:, :size], layers[-1][..., :size]), (layers[-2][:, size:], layers[-1][..., size:])
    maps = normaliser.to(torch.device("cpu"))
    policy = DeterministicPolicy(
        (*layers[:-2], *last),
        maps.input_mean,
        maps.input_scale,
        bounds.action_low,
        bounds.action_high,
        network.discrete_actions,
    )
    if network.discrete_actions:
        return BehaviourPolicy(policy, None, None)
    return BehaviourPolicy(policy, spread, (network.log_variance_low, network.log_variance_high))
