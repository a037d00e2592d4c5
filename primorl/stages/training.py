"""The trainings of model and clone: set up from their jobs, run for a charge, and written.

Nothing here charges; see `primorl.work.desk`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeGuard, TypeVar

import torch
from torch import Tensor

import primorl
from primorl.base import PipelineError, say
from primorl.base.files import CHECKPOINTS, MODEL, PLAN, check_writable, home
from primorl.base.processes import choose_device, place_among_processes
from primorl.base.reporting import StageLog, progress_bar
from primorl.config.datasets import Bounds as DeclaredBounds
from primorl.config.params import Compute, Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine.heads import EXPLAINED, PERSISTENCE, SURELY_EXPLAINED
from primorl.engine.public import PublicEvaluation, make_start
from primorl.engine.queries import project_to_simplex
from primorl.engine.rounds import check_setup
from primorl.engine.settings import CHUNK_BYTES, Execution
from primorl.engine.setup import CloningSetup, TrainingSetup
from primorl.engine.shards import ALONE, Message, Processes
from primorl.engine.training import Trained, TrainingState, serve, train
from primorl.model.architecture import (
    LITTLE_EXPLAINED,
    Explained,
    ModelConfig,
)
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser
from primorl.policy import behaviour
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import BehaviourConfig
from primorl.privacy.statement import Statement
from primorl.work.data import Partitions, observation_bounds
from primorl.work.desk import Paid, open_private
from primorl.work.jobs import CloneJob, ModelJob, RunPlan, columns_of, identity_of

S = TypeVar("S", bound=TrainingSetup)
_DRAW = "privacy.draw pays for another draw"
# of the parameters on disk at most: a checkpoint holds four, and is replaced by a new one; then the
# model
_COPIES = 8
_COMBINED = 0.15
"""Share of what a clone leaves of actions that squares and products of columns explain, up to which
chance or a clone's error explains it (benchmarks/results.md)."""
_PERSISTENT = 0.33
"""How alike two actions in a row deviate from a clone, up to which chance or weak habits explain it
(benchmarks/results.md)."""

# ---- a job's training


def prepare_model(job: ModelJob, partitions: Partitions, compute: Compute) -> TrainingSetup:
    """Set up the training of a model on the data that the partitions describe."""
    assert job.normaliser != "model", "a model's scales are its own"
    horizon = partitions.manifest.info.horizon
    return _set_up(TrainingSetup, job, partitions, compute, job.normaliser, horizon)


def prepare_clone(job: CloneJob, partitions: Partitions, compute: Compute) -> CloningSetup:
    """Set up the training of a clone, as `prepare_model` does.

    Raises:
        PipelineError: it takes the scales of a released model, which is missing or another one.
    """
    if job.normaliser == "model":
        released = _released_scales(job.scaled_by, partitions)
        return _set_up(CloningSetup, job, partitions, compute, released)
    return _set_up(CloningSetup, job, partitions, compute, job.normaliser)


def _set_up(
    kind: type[S],
    job: ModelJob | CloneJob,
    partitions: Partitions,
    compute: Compute,
    normaliser: Literal["public", "private"] | Normaliser,
    horizon: int | None = None,
) -> S:
    """Set up a training; train the weights that its rounds begin with on the public split, if the
    job says so.
    """
    manifest, public = partitions.manifest, partitions.public
    setup: S = kind(
        mechanism=job.build_mechanism(manifest),
        architecture=job.network(manifest),
        bounds=model_bounds(job.bounds, manifest, public),
        columns=columns_of(manifest),
        normaliser=normaliser,
        local=job.local,
        server=job.server,
        seed=job.seed,
        execution=choose_execution(compute),
        horizon=horizon,
    )
    if job.start != "public":
        return setup
    scales = setup.make_normaliser(setup.view_public(public.flat()), {})
    view, beta = setup.view(public), job.local.beta_nll
    start = make_start(setup.architecture, scales, view, job.seed, beta)
    return replace(setup, start=start)


def choose_execution(compute: Compute) -> Execution:
    """Choose the device, the bound on a chunk's memory and the place of this process."""
    device = choose_device(compute.device)
    return Execution(device, CHUNK_BYTES[device.type], *place_among_processes())


def model_bounds(declared: DeclaredBounds, manifest: Manifest, public: UnitStore) -> Bounds:
    """Bound model states (see `observation_bounds`), actions and rewards, those as declared or by
    the public split.
    """
    spaces, reward = manifest.info.spaces, declared.reward
    low, high = map(torch.from_numpy, observation_bounds(declared, manifest, public))
    if reward == "public":
        rewards = public.flat()[1][:, public.observation_size]
        reward = (float(rewards.min()), float(rewards.max()))
    actions = (torch.tensor(spaces.action_low), torch.tensor(spaces.action_high))
    return Bounds(
        low,
        high,
        *actions,
        *reward,
        discrete_actions=spaces.discrete_actions,
        before_end=declared.before_end,
        angles=declared.angles,
    )


def _released_scales(model: str | None, partitions: Partitions) -> Normaliser:
    """Read the normaliser of the released model, which must be the one of this identity.

    Raises:
        PipelineError: the model is missing or broken, or it is another one.
    """
    charge = Statement.read(MODEL).charge
    paid = [each.id for each in partitions.account.charges if each.identity == model]
    if charge not in paid:
        raise PipelineError(
            f"{MODEL}: of other numbers or data than {PLAN} says, and the clone would take its "
            "scales; run `dvc repro train_model` (where it is frozen, `dvc unfreeze` it before)"
        )
    return GaussianEnsemble.load(MODEL, torch.device("cpu")).normaliser


def check_before_charge(setup: TrainingSetup, output: Path) -> None:
    """Refuse a training that would fail after it is charged.

    Raises:
        PipelineError: the kernel is not exact on this machine, or the disk has no room.
    """
    check_setup(setup)
    checkpoint = home() / CHECKPOINTS / "charge"
    check_writable([output, checkpoint], _COPIES * 4 * setup.architecture.parameters)


# ---- the rounds


def train_for(
    paid: Paid[TrainingState],
    setup: TrainingSetup,
    partitions: Partitions,
    log: StageLog,
) -> Trained:
    """Run the rounds that a charge has left, or restore the result of an earlier run.

    Every round moves a progress bar; public losses go to ``log``.

    Raises:
        PipelineError: another process was lost.
    """
    stage, charge = paid.charge.stage, paid.charge
    with (
        progress_bar(setup.mechanism.rounds, stage, "round") as bar,
        Processes() if setup.execution.ranks > 1 else ALONE as group,
    ):
        bar.update(paid.state.started)

        def report(evaluation: PublicEvaluation | None) -> None:
            bar.update()
            if evaluation is not None:
                log.metric("public_loss", evaluation.loss, evaluation.round)
                bar.set_postfix(public_loss=f"{evaluation.loss:.3f}", refresh=False)

        rows = None
        if not paid.finished:
            # the ledger has granted the charge: all processes open the private units
            group.ask(Message.GRANT, released=_digest_agreement(charge.identity, setup))
            store = paid.open_rows(setup.mechanism, setup.execution.own)
            group.check_coverage(setup.mechanism.units, store.numbers)
            rows = setup.view(store)
        trained = train(
            setup,
            rows,
            _public_rows(setup, partitions),
            state=paid.state,
            save_checkpoint=paid.save,
            on_round=report,
            group=group,
        )
    names = (*partitions.manifest.info.spaces.observation_names, "reward")
    for name, found in zip(names, setup.explain(trained.answers) or (), strict=False):
        if found is not None:
            log.metric(f"explained.{name}", found.share)
    return trained


def work_for_first(params: Params) -> None:
    """Sum over the units of this process, which is not the first, once the ledger has granted the
    charge.

    Raises:
        PipelineError: this process would train another model than the first one has paid for.
    """
    with Processes() as group:
        request, _, granted = group.wait()
        if request == Message.STOP:
            return
        partitions = Partitions.read(None)
        job = RunPlan.read_for(params, partitions).model
        setup = prepare_model(job, partitions, params.compute)
        identity = identity_of(job, partitions.identity)
        if not torch.equal(_digest_agreement(identity, setup), granted):
            raise PipelineError(
                "data/plan.json, data/partitions or code differ between processes; give all the "
                "same"
            )
        check_setup(setup)
        private = open_private(partitions, setup.execution.own)
        group.check_coverage(setup.mechanism.units, private.numbers)
        serve(group, setup, setup.view(private), _public_rows(setup, partitions))


def _public_rows(setup: TrainingSetup, partitions: Partitions) -> tuple[Tensor, Tensor] | None:
    """Return the public rows that judge; linear heads are not judged by people who may differ from
    the others.
    """
    of_all = setup.architecture.features is None or setup.normaliser == "public"
    if not of_all or not partitions.public.units:
        return None
    return setup.view_public(partitions.public.flat())


def _digest_agreement(identity: str, setup: TrainingSetup) -> Tensor:
    """Digest what all processes must have the same: identity, settings and code, as 32 numbers."""
    agreed = hashlib.sha256(f"{identity} {setup.digest}".encode())
    for file in sorted(Path(primorl.__file__).parent.rglob("*.py")):
        agreed.update(hashlib.sha256(file.read_bytes()).digest())
    return torch.tensor(list(agreed.digest()), dtype=torch.float64)


def refuse_diverged(setup: TrainingSetup, trained: Trained) -> None:
    """Refuse weights that are not finite, or no better than a constant; the charge stays spent.

    Of random actions no clone beats a constant, and it is one all the same.

    Raises:
        PipelineError: they are refused.
    """
    loss, why = trained.public_loss, None
    key = "behaviour" if isinstance(setup, CloningSetup) else "dynamics"
    remedy = "lower dynamics.learning_rate or privacy.clipping_norm"
    if key == "behaviour":
        remedy = "raise behaviour.log_variance_bounds, or make no clone (privacy.shares)"
    if not trained.finite:
        why = f"training diverged (weights that are not finite); {remedy}"
    elif key == "dynamics" and loss is not None and loss.diverged:
        why = (
            f"the trained model is no better than a constant: its public loss is {loss.final:.4g}, "
            f"that of a constant {loss.constant:.4g}, of the initial weights {loss.initial:.4g}; "
            "lower dynamics.learning_rate, raise privacy.sampling_probability or the target ε, or "
            "train a smaller dynamics.hidden"
        )
    if why is None:
        return
    again = ", and the same settings cost nothing again" if setup.mechanism.is_private else ""
    raise PipelineError(
        f"params.yaml: {key}: {why}. The last good one is untouched; the charge stays spent{again}"
    )


# ---- the files


def warn_of_model(setup: TrainingSetup, trained: Trained, manifest: Manifest) -> tuple[str, ...]:
    """Print what a trained model lacks; return the lines that bar a trial of its policies."""
    if lost := setup.find_lost(trained.answers):
        _warn(
            f"answers to {', '.join(lost)} were lost with a process that died, and count "
            f"as unknown; {_DRAW}"
        )
    spaces = manifest.info.spaces
    names = [*spaces.observation_names, *spaces.action_names, "reward"]
    if hidden := setup.find_hidden_names(trained.answers, names):
        remedy = "more people, or a larger ε, help"
        if setup.bounds.before_end is None or hidden != ["reward"]:  # an outcome's are whole
            remedy += f", or a column's narrower bounds in datasets/{manifest.info.dataset}.yaml"
        _warn(f"noise hides how much these vary at all: {', '.join(hidden)}; {remedy}")
    if rare := setup.find_rare_actions(trained.answers):
        actions = spaces.action_names or range(spaces.action_size)
        _warn(
            f"too few people took {'; '.join(str(actions[each]) for each in rare)} to tell them "
            "from none beside the noise; neither the clone nor a policy near it takes these"
        )
    loss = trained.public_loss
    if loss is not None and loss.public_alone is not None and loss.final >= loss.public_alone:
        _warn(
            f"the private rounds added nothing (public loss {loss.final:.4g}) to what the public "
            f"people alone give ({loss.public_alone:.4g}): ε was spent for a model that costs none"
        )
    bars = []
    if EXPLAINED in lost:
        bars.append(f"what the model explains of the reward is not known; {_DRAW}")
    if "reward" in hidden:
        hides = "noise hides how much the reward varies at all"
        bars.append(f"{hides}; more people, or a larger ε, may show it")
    explained = setup.explain(trained.answers) or ()
    little = warn_of_little(explained, [*spaces.observation_names, "reward"])
    return (*bars, *little)


def warn_of_little(
    explained: Sequence[Explained | None], columns: Sequence[str]
) -> tuple[str, ...]:
    """Print the columns of which the model explains little; return the line that bars a trial where
    it may explain nothing of the reward.
    """
    shares = [(name, e.share) for name, e in zip(columns, explained, strict=False) if e is not None]
    little = [f"{name} {share:.0%}" for name, share in shares if share < LITTLE_EXPLAINED]
    if little:
        _warn(
            f"of how these vary the model explains little: {', '.join(little)}; the rest is "
            "chance, noise, or more than such a model can express"
        )
    reward = explained[-1] if explained else None
    if reward is None or reward.share > SURELY_EXPLAINED * reward.error:
        return ()
    return (
        f"the model explains {reward.share:.0%} of how the reward varies, which may be nothing "
        f"(standard error {reward.error:.1%}); more people, or a larger ε, may tell",
    )


def _warn(line: str) -> None:
    say(f"train_model: warning: {line}")


def write_model(
    folder: Path,
    plan: RunPlan,
    setup: TrainingSetup,
    trained: Trained,
    manifest: Manifest,
) -> None:
    """Write the files of a trained model, all but its statement.

    Args:
        folder: to write into.
        plan: of the run.
        setup: of the training.
        trained: its result.
        manifest: of the data.
    """
    info, spaces = manifest.info, manifest.info.spaces
    warnings = (*plan.warnings, *warn_of_model(setup, trained, manifest))
    shape, weights = setup.release(trained.weights, trained.answers, plan.model.members)
    ends, shares = info.termination, setup.estimate_shares(trained.answers)
    ensemble = GaussianEnsemble(shape, weights, trained.normaliser, setup.bounds, ends)
    ensemble.save(
        folder,
        environment=info.environment,
        variant=plan.model.variant,
        rounds=trained.rounds,
        observation_names=spaces.observation_names,
        action_names=spaces.action_names,
        engine_version=trained.engine,
        public_loss=trained.public_loss,
        warnings=warnings,
        can_learn=plan.can_learn,
        explained=setup.explain(trained.answers),
        action_shares=None if shares is None else tuple(project_to_simplex(shares.value).tolist()),
        action_shares_error=None if shares is None else float(shares.error[0]),
        rare_actions=setup.find_rare_actions(trained.answers),
    )
    starts = setup.start_model(trained.answers, trained.normaliser)
    if starts is not None:
        starts.save(folder)


def write_clone(
    folder: Path,
    job: CloneJob,
    setup: CloningSetup,
    trained: Trained,
    manifest: Manifest,
) -> None:
    """Write the files of a clone, all but its statement; see `write_model`."""
    info, bounds = manifest.info, setup.bounds
    rare = () if job.scaled_by is None else ModelConfig.read(MODEL).rare_actions
    weights, scales = trained.weights, trained.normaliser
    cloned = BehaviourPolicy.of(setup.architecture, weights, scales, bounds, rare)
    persistence = None
    if PERSISTENCE in trained.answers:
        persistence = (float(trained.answers[PERSISTENCE][0]), setup.noise_of(PERSISTENCE))
    products = setup.estimate_products(trained.answers, trained.normaliser)
    lost = bool(setup.find_lost(trained.answers))
    config = BehaviourConfig(
        made=True,
        rounds=trained.rounds,
        engine_version=trained.engine,
        persistence=persistence,
        products=products,
        warnings=warn_of_reasons(persistence, products, lost=lost),
    )
    behaviour.save(
        folder,
        cloned,
        config,
        variant=job.variant,
        environment=info.environment,
        observation_names=info.spaces.observation_names,
        action_names=info.spaces.action_names,
        observation_range=(bounds.observation_low, bounds.observation_high),
        one_hot=info.spaces.one_hot or None,
    )


def warn_of_reasons(
    persistence: tuple[float, float] | None,
    products: tuple[float, float] | None,
    *,
    lost: bool = False,
) -> tuple[str, ...]:
    """Print and return the lines that bar a trial where people act by something that the clone
    does not know, or an answer about it was ``lost``; None: nobody was asked.
    """
    found = []
    if lost:
        found.append(
            f"what people act by is not known: an answer was lost with a process that died; {_DRAW}"
        )
    if _exceeds(persistence, _PERSISTENT):
        alike, error = persistence
        found.append(
            "people act by something that lasts and that the clone does not know: a habit, or a "
            "sign that they see, and then the model errs about what they did not do (two actions "
            f"in a row deviate alike by {alike:.2f} of 1, standard error {error:.2f}); a column "
            "that tells it helps, and more people or a larger ε where the clone is too simple"
        )
    if _exceeds(products, _COMBINED):
        share, error = products
        found.append(
            "people act by limits or combinations of columns that the clone does not know, and "
            "then the model errs about what they did not do (of what the clone leaves of their "
            f"actions, squares and products of columns explain up to {min(share, 1.0):.0%}, "
            f"standard error {error:.0%}); a column with the combination helps, and more people or "
            "a larger ε where the clone is too simple"
        )
    for line in found:
        say(f"clone_behaviour: warning: {line}")
    return tuple(found)


def _exceeds(answer: tuple[float, float] | None, limit: float) -> TypeGuard[tuple[float, float]]:
    """Whether an answer with its standard error is surely above 0, and above the limit."""
    return answer is not None and answer[0] > max(limit, SURELY_EXPLAINED * answer[1])
