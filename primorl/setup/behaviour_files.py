"""``models/behaviour``: the clone with its privacy statement, or the word that none was made."""

from pathlib import Path

import torch
from torch import Tensor

from primorl.config.params import Params
from primorl.dynamics.ensemble import Bounds, Weights
from primorl.dynamics.normaliser import Normaliser
from primorl.policy import behaviour
from primorl.policy.behaviour import BehaviourConfig, BehaviourPolicy
from primorl.policy.exported import DeterministicPolicy
from primorl.project.files import file_sha256, replaced_directory
from primorl.setup.paid_training import PaidModel
from primorl.setup.partitions import Partitions
from primorl.setup.statement import log_statement, privacy_statement
from primorl.tracking import StageRun
from primorl.training.cloning import CloningSetup
from primorl.training.policy_network import PolicyNetwork


def write_nothing(folder: Path) -> None:
    """Say in ``folder`` that no clone was made."""
    with replaced_directory(folder) as fresh:
        BehaviourConfig(made=False).write(fresh)


def write_behaviour(
    folder: Path, params: Params, setup: CloningSetup, partitions: Partitions, paid: PaidModel, run: StageRun
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
    info, trained = partitions.manifest.info, paid.trained
    statement = privacy_statement(setup.plan, partitions.manifest, params).with_payment(paid.charge, paid.spent)
    observations, actions = info.spaces.observation_names, info.spaces.action_names
    with replaced_directory(folder) as fresh:
        behaviour.save(
            fresh,
            behaviour_policy(setup.architecture, trained.weights, trained.normaliser, setup.bounds),
            variant=params.dynamics.variant,
            environment=info.environment,
            names=(observations, actions) if observations and actions else None,
            elapsed=info.spaces.elapsed,
            observation_range=_finite(setup.bounds),
            rounds=trained.rounds,
            engine_version=paid.engine_version,
            public_loss=trained.public_loss,
        )
        statement.write(fresh)
        made = {file.name: file_sha256(file) for file in sorted(fresh.iterdir())}
        for file in ("config.json", behaviour.FILE, "privacy.json"):
            run.artifact(fresh / file)
    paid.commit(made)
    log_statement(run, statement)


def behaviour_policy(
    network: PolicyNetwork, weights: Weights, normaliser: Normaliser, bounds: Bounds
) -> BehaviourPolicy:
    """The policy of trained weights, on the CPU; weights of policies are ``[1, out, in]``."""
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


def _finite(bounds: Bounds) -> tuple[Tensor, Tensor] | None:
    low, high = bounds.observation_low, bounds.observation_high
    return (low, high) if bool(low.isfinite().all() and high.isfinite().all()) else None
