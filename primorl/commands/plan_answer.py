"""The answer of ``primorl plan``: what the next run costs, whether it can learn, and its numbers;
or, with numbers given, the cost of a mechanism.
"""

import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

from primorl.base.dvc import Status
from primorl.base.errors import PipelineError
from primorl.base.files import finite
from primorl.base.paths import MANIFEST, PARAMS, PARTITIONS
from primorl.config.params import PUBLIC, RULE, Params, load
from primorl.data.storage.schema import Manifest
from primorl.engine.heads import LENGTHS
from primorl.evaluate.private.results import are_sums
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.figures import right_guesses
from primorl.privacy.accounting.rounding import at_least, at_most
from primorl.privacy.accounting.solving import solve_noise_multiplier, solve_rounds
from primorl.privacy.statement import RELATION_NAME
from primorl.work.bill import MAKE_DATA, UNKNOWN, Bill
from primorl.work.data import Partitions, read_ledger
from primorl.work.jobs import RunPlan
from primorl.work.resolve import cost_of, next_plan

_BY_RULE = (RULE, PUBLIC)
"""Origins of settings that no file gives."""
_EPSILONS = ("epsilon_pld", "epsilon_rdp", "epsilon_replace_one")
_LARGE = 2.0  # ε, from which a guarantee says little


@dataclass(frozen=True)
class Options:
    """Options of the command line; None where one was not given."""

    sampling_probability: float | None = None
    noise_multiplier: float | None = None
    rounds: int | None = None
    delta: float | None = None
    target_epsilon: float | None = None
    solve: str | None = None


@dataclass(frozen=True)
class OwnRun:
    """The run that ``params.yaml`` describes, on the data that are here."""

    params: Params
    partitions: Partitions
    plan: RunPlan

    @classmethod
    def read(cls, changed: Set[str] = frozenset()) -> "OwnRun":
        """Read the run's plan, or decide it where ``changed`` stages will make another; nothing is
        written or charged.

        Raises:
            PipelineError: the data are not here, or the settings do not fit them.
        """
        params = load()
        if not MANIFEST.exists() or Manifest.load(MANIFEST).info.dataset != params.dataset:
            raise PipelineError(
                f"{PARTITIONS}: not there yet for dataset {params.dataset}; run `dvc repro "
                "partition`, which charges nothing; or give the numbers of a mechanism"
            )
        partitions = Partitions.open(PARTITIONS, params)
        return cls(params, partitions, next_plan(params, partitions, changed))

    @property
    def training(self) -> Training:
        """The model's mechanism as the accountant sees it."""
        found = self.plan.model.mechanism
        asked = tuple(found.queries.values())
        return Training(found.sampling_probability, found.noise_multiplier, found.rounds, asked)


def show(options: Options, *, as_json: bool, status: Status | None) -> None:
    """Print the answer to the question that the options ask; ``status`` tells the stages that
    changed.
    """
    if options == Options() and PARAMS.exists():
        own = OwnRun.read()  # while DVC starts
        if as_json:
            _print_json(_own_as_json(own))
            return
        changed = frozenset() if status is None else status.changed_stages()
        if "plan" in changed:
            own = OwnRun.read(changed)
        lines = _own_lines(own, changed)
    else:
        training, delta = asked_for(options)
        if as_json:
            _print_json(_as_json(training, delta))
            return
        units = Manifest.load(MANIFEST).private_units if MANIFEST.exists() else None
        lines = _mechanism_lines(training, delta, units)
    for line in lines:
        print(line)


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2, allow_nan=False))


# ---- the mechanism of given numbers


def asked_for(options: Options) -> tuple[Training, float]:
    """Complete the mechanism that the options ask about by the numbers of the project's own run;
    solve for the noise or the rounds.

    Returns:
        The training run, and δ.

    Raises:
        PipelineError: options contradict each other, one is missing, or the target cannot be met.
    """
    solved_for = None
    if options.solve is not None or options.target_epsilon is not None:
        solved_for = (options.solve or "noise-multiplier").replace("-", "_")
        if getattr(options, solved_for) is not None:
            raise PipelineError(
                f"{_option(solved_for)}: found where the one for a target is looked for; leave it "
                "out, or look for another number with --solve"
            )
    needed = ["sampling_probability", "noise_multiplier", "rounds", "delta"]
    if solved_for is not None:
        needed = [name for name in (*needed, "target_epsilon") if name != solved_for]
    numbers, queries = _complete(options, needed)
    target = numbers.pop("target_epsilon", None)
    try:
        if solved_for == "rounds":
            numbers["rounds"] = solve_rounds(target, **numbers, queries=queries)
        elif solved_for is not None:
            numbers["noise_multiplier"] = solve_noise_multiplier(target, **numbers, queries=queries)
    except ValueError as impossible:
        raise PipelineError(
            f"--target-epsilon: found {target:.12g}: {impossible}; raise it, or give other numbers"
        ) from None
    delta = numbers.pop("delta")
    return Training(**numbers, queries=queries), delta


def _complete(options: Options, needed: Sequence[str]) -> tuple[dict[str, Any], tuple[float, ...]]:
    """Take the numbers that are needed from the options, and from the project where one was not
    given; and the queries of the project's run, where a number is taken from that.
    """
    numbers = {name: getattr(options, name) for name in needed}
    missing = [name for name, number in numbers.items() if number is None]
    if missing and not PARAMS.exists():
        raise PipelineError(
            f"{_option(missing[0])}: not given, and there is no {PARAMS} here to take it from; "
            "give it"
        )
    queries: tuple[float, ...] = ()
    for name in missing:
        if name in ("delta", "target_epsilon"):
            numbers[name] = getattr(load().privacy, name)
            continue
        run = OwnRun.read().training
        numbers[name], queries = getattr(run, name), run.queries
        if not numbers[name]:
            raise PipelineError(f"{_option(name)}: not given, and this run has none; give it")
    return numbers, queries


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _as_json(training: Training, delta: float) -> dict[str, Any]:
    private = training.noise_multiplier > 0
    found: dict[str, float | None] = dict.fromkeys(_EPSILONS)
    if private:
        spent, replaced = training.spent(delta, RELATION_NAME), training.spent(delta, "replace_one")
        numbers = (spent.epsilon_pld, spent.epsilon_rdp, replaced.epsilon_pld)
        found = dict(zip(_EPSILONS, map(finite, numbers), strict=True))
    return {
        "private": private,
        **found,
        **asdict(training),
        "delta": delta,
        "neighboring_relation": RELATION_NAME,
    }


def _mechanism_lines(training: Training, delta: float, units: int | None) -> Iterator[str]:
    spent = training.spent(delta, RELATION_NAME)
    yield (
        f"sampling probability {at_most(training.sampling_probability, 6)}, noise multiplier "
        f"{at_least(training.noise_multiplier, 6)}, {training.rounds} rounds, at δ "
        f"{at_most(delta, 6)}:"
    )
    if training.queries:
        multipliers = ", ".join(at_least(multiplier, 6) for multiplier in training.queries)
        yield (
            f"  beside {len(training.queries)} queries of all units, noise multiplier {multipliers}"
        )
    yield (
        f"  ε {at_most(spent.epsilon_pld, 4)} if one unit is zeroed out "
        f"({at_most(spent.epsilon_rdp, 4)} by RDP)"
    )
    yield (
        f"  ε {at_most(training.spent(delta, 'replace_one').epsilon_pld, 4)} if one unit is "
        "replaced by another"
    )
    if units is None:
        return
    cohort = training.sampling_probability * units
    yield (
        f"  of {units} units about {cohort:.4g} join a round, {cohort * training.rounds:.4g} "
        "local trainings in all"
    )
    noise = at_least(training.noise_multiplier / cohort)
    yield f"  noise per coordinate of the mean update: {noise} of the clipping norm"
    if delta >= 1 / units:
        yield (
            f"  warning: δ is not below 1/{units}: to publish a whole unit would pass; choose a "
            "smaller one"
        )


# ---- the project's own run


def _own_as_json(own: OwnRun) -> dict[str, Any]:
    plan = own.plan
    return _as_json(own.training, plan.model.delta) | {
        "can_learn": plan.can_learn,
        "why": plan.reason,
        "settings": {key: asdict(each) for key, each in plan.settings.items()},
        "jobs": [asdict(each) for each in plan.jobs],
    }


def _own_lines(own: OwnRun, changed: Set[str]) -> Iterator[str]:
    """What it costs first, then whether it can learn, then the numbers."""
    with read_ledger(own.params) as ledger:
        bill = Bill.of(own.params, own.plan, own.partitions, ledger)
    yield from _cost_lines(own)
    yield f"  {UNKNOWN if changed & MAKE_DATA else bill}"
    yield from _learning_lines(own)
    training, delta = own.training, own.plan.model.delta
    if training.noise_multiplier > 0:
        yield from _mechanism_lines(training, delta, own.partitions.manifest.private_units)
    for key, setting in own.plan.settings.items():
        if setting.origin in _BY_RULE:
            yield f"  {key}: {json.dumps(setting.value)} ({setting.origin})"
    if own.params.online.asked:
        yield _online_line(own.params)


def _cost_lines(own: OwnRun) -> Iterator[str]:
    """What all jobs of the run cost together, paid or not."""
    plan = own.plan
    if plan.model.variant != "private":
        yield f"dynamics.variant is {plan.model.variant}: a run of it has no guarantee at all"
        return
    manifest, delta = own.partitions.manifest, plan.model.delta
    together = cost_of(plan, manifest)
    parts = ", ".join(f"{each.name} {at_most(each.epsilon or 0, 4)}" for each in plan.jobs)
    yield f"this run costs ε {at_most(together, 4)} at δ {at_most(delta)}: {parts}"
    yield (
        "  whoever sees all that is released, and knows everybody else, tells rightly at most "
        f"{at_most(right_guesses(plan.events(manifest)))} times in 100 whether one "
        f"{manifest.info.unit} took part (a coin: 50)"
    )
    if together >= _LARGE:
        yield f"  warning: ε {at_most(together, 4)} is large: this promises little"
    if line := _today_line(own):
        yield line


def _learning_lines(own: OwnRun) -> Iterator[str]:
    plan, manifest = own.plan, own.partitions.manifest
    if plan.can_learn is not None:
        yield f"can it learn? {plan.can_learn}: {plan.reason}"
    for warning in plan.warnings:
        if warning == plan.reason:
            continue
        yield f"  warning: {warning}"
    asked = LENGTHS in plan.model.mechanism.queries
    if manifest.public_units == 0 and manifest.info.environment is None and not asked:
        yield (
            "  warning: nobody is public, so nothing tells how long recordings go on; values in "
            f"the model count every step up to the horizon ({manifest.info.horizon}), and lie "
            "beyond today's return if most are shorter"
        )


def _today_line(own: OwnRun) -> str | None:
    """Foretell the noise in today's mean return, which grows with its range; None: not asked, or
    not known yet.
    """
    manifest, bounds = own.partitions.manifest, own.plan.model.bounds
    asked = next((each for each in own.plan.questions if each.question == "behaviour"), None)
    if asked is None or (asked.return_bounds == "public" and manifest.public_units > 0):
        return None
    of_range = 1.96 * asked.noise_multiplier / 2 / manifest.private_units
    said = "  today's mean return will be known at best to ±"
    if not isinstance(asked.return_bounds, str):
        low, high = asked.return_bounds
        return f"{said} {of_range * (high - low):.3g}, as its bounds are {low:g} to {high:g}"
    if not are_sums(bounds.before_end, manifest.info.horizon):
        return None
    return f"{said} {min(2 * of_range, 1):.1%} of how far returns spread, which is found first"


def _online_line(params: Params) -> str:
    from primorl.stages.online import cohorts_of

    asked, cohorts = params.online, cohorts_of(params.online)
    each = "no guarantee"
    if asked.target_epsilon is not None:
        each = f"ε {at_most(asked.target_epsilon, 4)} for each"
    return (
        f"online: {len(cohorts)} cohorts of {asked.cohort} users, {each}; counted apart from the "
        "log's units"
    )
