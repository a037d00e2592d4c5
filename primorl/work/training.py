"""Charge the ledger, train in one or several processes, and write the model or the clone."""

import hashlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import primorl
from primorl.base.errors import PipelineError
from primorl.base.files import check_writable, file_sha256, home, replaced_directory
from primorl.base.paths import BEHAVIOUR, CHECKPOINTS, MODEL, SECRET
from primorl.base.reporting import progress_bar
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.engine.linear import distil
from primorl.engine.public import PublicEvaluation
from primorl.engine.rounds import check_setup
from primorl.engine.setup import CloningSetup, TrainingSetup
from primorl.engine.shards import Processes, Request
from primorl.engine.training import ENGINE_VERSION, OnRound, Trained, TrainingState, serve, train
from primorl.model.architecture import CloneNetwork, ModelConfig
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser, Weights
from primorl.policy import behaviour
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import BEHAVIOUR_FILE
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.ledger.charges import Payment
from primorl.privacy.ledger.history import Charge
from primorl.tracking import StageRun
from primorl.work import accounts
from primorl.work.compute import joined, kept_bytes
from primorl.work.desk import Work, paid_work
from primorl.work.jobs import CloneJob, ModelJob, RunPlan, identity_of
from primorl.work.partitions import Partitions, log_statement, privacy_statement
from primorl.work.private import open_private
from primorl.work.setups import training_setup

# of the parameters on disk at most: a checkpoint holds four, and is replaced by a new one; then the
# model
_COPIES = 8


_ACCOUNTING_SHARE = 200  # ε so far may take one part in so many of the time
_DIVERGED = {
    "model": (
        "params.yaml: dynamics: training diverged (weights that are not finite); lower "
        "dynamics.learning_rate or privacy.clipping_norm"
    ),
    "clone": (
        "params.yaml: behaviour: cloning diverged (weights that are not finite); raise "
        "behaviour.log_variance_bounds, or set behaviour.target_epsilon to null"
    ),
}


@dataclass(frozen=True)
class PaidModel:
    """A trained model or clone; its charge is open.

    Attributes:
        job: as it was planned.
        setup: of the training.
        trained: weights, normaliser, answers to the queries.
        engine_version: of the engine that began the training.
        work: the charge, to be committed with every file that was written.
    """

    job: ModelJob | CloneJob
    setup: TrainingSetup
    trained: Trained
    engine_version: int
    work: Work[TrainingState]


@contextmanager
def paid_training(
    job: ModelJob | CloneJob, params: Params, partitions: Partitions, run: StageRun
) -> Iterator[PaidModel]:
    """Pay for a training and train, as the first process.

    The block writes the model and commits the charge.

    Everything that can be refused without private data is refused before the ledger is asked. The
    ledger is asked before the private partition is opened.

    Work that was paid for under the same identity is resumed or restored at no cost, after any edit
    of code.

    Raises:
        PipelineError: the budget does not allow the training, it diverged, or another process was
            lost.
    """
    setup = training_setup(job, partitions, params.compute)
    what, output = ("model", MODEL) if isinstance(job, ModelJob) else ("clone", BEHAVIOUR)
    if setup.plan.is_private:
        check_setup(setup)
    check_writable(
        [output, home() / CHECKPOINTS / "charge"], _COPIES * 4 * setup.architecture.parameters
    )
    begin = None
    if setup.plan.is_private:
        begin = TrainingState.begin(setup.first_weights(), setup.digest)
    units = (partitions.manifest.info.dataset, partitions.version)
    identity = identity_of(job, partitions.identity)
    cost = (setup.plan.event, setup.plan.delta)
    request = accounts.request(run, *units, job.name, *cost, identity)
    with paid_work(params, run, request, begin, partial(_restored, setup)) as work:
        payment = work.payment
        if payment.finished:
            paid = f"charge {payment.charge.id} of {payment.charge.time} has paid for exactly this"
            print(
                f"{job.name}: {paid} {what}: it is restored, and nothing is spent. To pay "
                "for another draw of the noise, set privacy.draw to a new number",
                file=sys.stderr,
            )
        started = payment.state.started if payment.state else 0
        with training_report(run, setup, job.name, started) as report:
            trained = _train(params, setup, partitions, payment, report)
        if refusal := _refusal(what, trained):
            work.commit()
            again = "" if payment.file is None else ", and the same settings cost nothing again"
            raise PipelineError(
                f"{refusal}. The last good {what} is untouched; the charge stays spent{again}"
            )
        engine_version = payment.state.engine if payment.state else ENGINE_VERSION
        yield PaidModel(job, setup, trained, engine_version, work)


def work_for_first(params: Params, folder: Path) -> None:
    """Sum over the units of this process, which is not the first, once the ledger has granted the
    charge.

    Raises:
        PipelineError: this process would train another model than the first one has paid for.
    """
    with Processes() as group:
        request, _, granted = group.wait()
        if request == Request.STOP:
            return
        if not (home() / SECRET).exists():
            raise PipelineError(
                f"{SECRET}: not there; all processes need the project's secret and "
                "data/partitions as the first has them: share the project's folder, or copy both "
                "(inside the trust boundary)"
            )
        partitions = Partitions.open(folder, None)
        job = RunPlan.read(params, partitions).model
        setup = training_setup(job, partitions, params.compute)
        identity = identity_of(job, partitions.identity)
        if not torch.equal(_agreed(identity, setup), granted):
            raise PipelineError(
                "data/plan.json, data/partitions or the project's code differ from those of the "
                "first process; give all processes the same"
            )
        if setup.plan.is_private:
            check_setup(setup)
        private = _private_units(params, setup, partitions, None)
        group.check_coverage(setup.plan.units, private.numbers)
        serve(group, setup, setup.view(private), _public_rows(setup, partitions))


def _train(
    params: Params,
    setup: TrainingSetup,
    partitions: Partitions,
    payment: Payment[TrainingState],
    on_round: OnRound,
) -> Trained:
    """Run the rounds that the payment has left, or restore the result of an earlier run."""
    with joined(setup.execution) as group:
        private = None
        if not payment.finished:
            if group is not None:  # the ledger has granted the charge: all open the private units
                agreed = _agreed(payment.charge.identity, setup)
                group.ask(Request.GRANT, released=agreed)
            rows = _private_units(params, setup, partitions, payment.charge)
            if group is not None:
                group.check_coverage(setup.plan.units, rows.numbers)
            private = setup.view(rows)
        return train(
            setup,
            private,
            _public_rows(setup, partitions),
            state=payment.state,
            save_checkpoint=payment.save_checkpoint,
            on_round=on_round,
            group=group,
        )


def _public_rows(setup: TrainingSetup, partitions: Partitions) -> tuple[Tensor, Tensor] | None:
    """Return the public rows that judge; linear heads are not judged by people who may differ from
    the others.
    """
    of_all = setup.architecture.features is None or setup.normaliser == "public"
    if not of_all or not partitions.public.units:
        return None
    return setup.view_public(partitions.public.flat())


def _private_units(
    params: Params, setup: TrainingSetup, partitions: Partitions, charge: Charge | None
) -> UnitStore:
    own = slice(setup.execution.rank, None, setup.execution.ranks)
    return open_private(partitions, charge, kept_bytes(params.compute), own)


def _restored(
    setup: TrainingSetup, tensors: Mapping[str, Tensor], facts: dict[str, Any]
) -> TrainingState:
    """Restore the state of a checkpoint.

    Its settings must be those of this training: the charge paid for no others.

    Raises:
        PipelineError: another version of the code paid for it, which made another training of these
            numbers.
        ValueError, KeyError, TypeError: see `TrainingState.restore`.
    """
    if facts.get("settings") != setup.digest:
        raise PipelineError(
            "what this version makes of the same numbers is another training than was paid for; "
            "bring back the version that it was paid for with; to pay for another draw with this "
            "one, set privacy.draw in params.yaml to a new number"
        )
    return TrainingState.restore(setup.architecture, tensors, facts)


def _agreed(identity: str, setup: TrainingSetup) -> Tensor:
    """Digest what all processes must have the same: identity, settings and code, as 32 numbers."""
    agreed = hashlib.sha256(f"{identity} {setup.digest}".encode())
    for file in sorted(Path(primorl.__file__).parent.rglob("*.py")):
        agreed.update(hashlib.sha256(file.read_bytes()).digest())
    return torch.tensor(list(agreed.digest()), dtype=torch.float64)


def _refusal(what: str, trained: Trained) -> str | None:
    """Say why weights are refused that are not finite, or no better than a constant; None: they are
    accepted.

    Of random actions no clone beats a constant, and it is one all the same.
    """
    if not trained.finite:
        return _DIVERGED[what]
    loss = trained.public_loss
    if what == "model" and loss is not None and loss.diverged:
        return (
            "params.yaml: dynamics: the trained model is no better than a constant: its public "
            f"loss is {loss.final:.4g}, that of the initial weights {loss.initial:.4g}, of a "
            f"constant {loss.constant:.4g}; lower dynamics.learning_rate, raise "
            "privacy.sampling_probability or the target ε, or train a smaller dynamics.hidden"
        )
    return None


@contextmanager
def training_report(
    run: StageRun, setup: TrainingSetup, stage: str, started: int = 0
) -> Iterator[OnRound]:
    """Report every round of a training: a progress bar and MLflow metrics, of released things only.

    ε is computed at evaluations, but never for more than a 200th of the time, and after the last
    round.

    Args:
        run: the stage's MLflow run.
        setup: of the training.
        stage: name of the stage.
        started: rounds that an earlier run began.

    Yields:
        A function that takes the number of rounds spent so far, and the evaluation where the round
        had one.
    """
    plan, due = setup.plan, 0.0
    with progress_bar(plan.rounds, stage, "round") as bar:
        bar.update(started)

        def on_round(started: int, evaluation: PublicEvaluation | None) -> None:
            nonlocal due
            bar.update()
            if evaluation is not None:
                run.metric("public_loss", evaluation.loss, evaluation.round)
                names = setup.architecture.target_names
                for name, error in zip(names, evaluation.error, strict=True):
                    run.metric(f"public_error.{name}", error, evaluation.round)
                bar.set_postfix(public_loss=f"{evaluation.loss:.3f}", refresh=False)
            began = time.monotonic()
            if started < plan.rounds and (evaluation is None or began < due):
                return
            spent = plan.spent(started)
            if spent is not None:
                run.metric("epsilon_so_far", spent.epsilon_pld, started)
            due = began + _ACCOUNTING_SHARE * (time.monotonic() - began)

        yield on_round


@contextmanager
def _released(
    folder: Path,
    partitions: Partitions,
    paid: PaidModel,
    run: StageRun,
    logged: Sequence[str],
) -> Iterator[Path]:
    """Replace ``folder`` by the files that the block writes and their statement, log both, and
    commit the charge.

    The ledger gets the digest of every file. So a statement is bound to the bytes that it speaks
    of.
    """
    statement = privacy_statement(paid.setup.plan, partitions.manifest)
    statement = paid.work.add_charge_to(statement)
    with replaced_directory(folder) as fresh:
        yield fresh
        statement.write(fresh)
        for file in (*logged, "privacy.json"):
            run.artifact(fresh / file)
        made = {file.name: file_sha256(file) for file in sorted(fresh.iterdir())}
    paid.work.commit(made)
    log_statement(run, statement)


def write_model(
    folder: Path,
    plan: RunPlan,
    partitions: Partitions,
    paid: PaidModel,
    run: StageRun,
) -> None:
    """Replace ``folder`` by the trained model and its statement, log both, and commit the
    charge.
    """
    setup, trained, warnings = paid.setup, paid.trained, plan.warnings
    if lost := setup.late_queries().keys() - trained.answers.keys():
        print(
            f"train_model: warning: answers to {', '.join(sorted(lost))} were lost with a process "
            "that died, and the same charge cannot ask again: what they would tell counts as "
            "unknown; privacy.draw pays for another draw",
            file=sys.stderr,
        )
    info, spaces = partitions.manifest.info, partitions.manifest.info.spaces
    names = [*spaces.observation_names, *spaces.action_names, "reward"]
    if hidden := setup.names_hidden(trained.answers, names):
        print(
            "train_model: warning: noise hides how much these vary within their declared bounds: "
            f"{', '.join(hidden)}; little of them is learned; narrower bounds in "
            f"datasets/{info.dataset}.yaml help, or a larger ε",
            file=sys.stderr,
        )
    loss = trained.public_loss
    if loss is not None and loss.public_alone is not None and loss.final >= loss.public_alone:
        print(
            "train_model: warning: the private rounds added nothing (public loss "
            f"{loss.final:.4g}) to what the public people alone give ({loss.public_alone:.4g}): ε "
            "was spent for a model that costs none",
            file=sys.stderr,
        )
    if "reward" in hidden:
        warnings = (*warnings, "noise hides how much the reward varies within its declared bounds")
    with _released(folder, partitions, paid, run, ["config.json"]) as fresh:
        shape, weights = setup.release(trained.weights, trained.answers, plan.model.members)
        ends = info.termination
        ensemble = GaussianEnsemble(shape, weights, trained.normaliser, setup.bounds, ends)
        ensemble.save(
            fresh,
            environment=info.environment,
            variant=plan.model.variant,
            rounds=trained.rounds,
            observation_names=spaces.observation_names,
            action_names=spaces.action_names,
            elapsed=spaces.elapsed,
            engine_version=paid.engine_version,
            public_loss=trained.public_loss,
        )
        config = ModelConfig.read(fresh)
        replace(config, warnings=warnings, can_learn=plan.can_learn).write(fresh)
        starts = setup.start_model(trained.answers, trained.normaliser)
        if starts is not None:
            starts.save(fresh)


def write_behaviour(folder: Path, partitions: Partitions, paid: PaidModel, run: StageRun) -> None:
    """Replace ``folder`` by the clone and its statement, log both, and commit the charge; see
    `write_model`.
    """
    info, trained = partitions.manifest.info, paid.trained
    setup, bounds = paid.setup, paid.setup.bounds
    network, weights, normaliser = setup.architecture, trained.weights, trained.normaliser
    assert isinstance(network, CloneNetwork)
    if isinstance(setup, CloningSetup) and network.features is not None:
        network, weights, normaliser = distil(
            network,
            weights,
            normaliser,
            bounds,
            setup.spread(trained.answers),
            setup.taught,
            setup.seed,
        )
    observations, actions = info.spaces.observation_names, info.spaces.action_names
    low, high = bounds.observation_low, bounds.observation_high
    finite = bool(low.isfinite().all() and high.isfinite().all())
    with _released(folder, partitions, paid, run, ["config.json", BEHAVIOUR_FILE]) as fresh:
        behaviour.save(
            fresh,
            behaviour_policy(network, weights, normaliser, bounds),
            variant=paid.job.variant,
            environment=info.environment,
            names=(observations, actions) if observations and actions else None,
            elapsed=info.spaces.elapsed,
            observation_range=(low, high) if finite else None,
            one_hot=info.spaces.one_hot or None,
            rounds=trained.rounds,
            engine_version=paid.engine_version,
            public_loss=trained.public_loss,
        )


def behaviour_policy(
    network: CloneNetwork, weights: Weights, normaliser: Normaliser, bounds: Bounds
) -> BehaviourPolicy:
    """Build the policy of trained weights, on the CPU; weights of policies are ``[1, out, in]``."""
    layers = [
        part.detach().cpu().contiguous()
        for weight, bias in zip(weights[::2], weights[1::2], strict=True)
        for part in (weight.mT, bias)
    ]
    size = network.action_size
    last = (layers[-2][:, :size], layers[-1][..., :size])
    spread = (layers[-2][:, size:], layers[-1][..., size:])
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
