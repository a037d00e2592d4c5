"""The answer of ``primorl plan``: what the next run costs, whether it can learn, and its numbers;
or, with numbers given, the cost of a mechanism.
"""

import json
from collections.abc import Callable, Iterator, Set
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

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
from primorl.work.bill import MAKE_DATA, UNKNOWN, Bill, whose_account
from primorl.work.data import Partitions, read_ledger
from primorl.work.jobs import RunPlan, event_of
from primorl.work.resolve import cost_of, next_plan

T = TypeVar("T")
_BY_RULE = (RULE, PUBLIC)
"""Origins of settings that no file gives."""
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
    def training(self) -> Training | None:
        """The model's mechanism as the accountant sees it; None: it has no guarantee."""
        return Training.of(event_of(self.plan.model, self.partitions.manifest))


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
    target_given = options.solve is not None or options.target_epsilon is not None
    if options.solve == "rounds" and options.rounds is not None:
        raise PipelineError(
            "--rounds: found with --solve rounds, which looks for them; leave one of the two out"
        )
    if options.solve != "rounds" and target_given and options.noise_multiplier is not None:
        raise PipelineError(
            "--noise-multiplier: found where the one for a target is looked for; leave it out, or "
            "look for the rounds with --solve rounds"
        )
    known = _Known(options)
    q, delta = known.number("sampling_probability"), known.number("delta")
    if options.solve == "rounds":
        target, z = known.number("target_epsilon"), known.number("noise_multiplier")
        solve = partial(solve_rounds, target, delta, q, z, known.queries)
        rounds = _solve("the noise multiplier", target, solve)
        return Training(q, z, rounds, known.queries), delta
    rounds = known.number("rounds")
    if not target_given:
        return Training(q, known.number("noise_multiplier"), rounds, known.queries), delta
    target = known.number("target_epsilon")
    find = partial(solve_noise_multiplier, target, delta, q, rounds, known.queries)
    z = _solve("lower sampling probability or rounds", target, find)
    return Training(q, z, rounds, known.queries), delta


class _Known:
    """Numbers of the options, and of the project where one was not given."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._own: OwnRun | None = None

    def number(self, name: str) -> Any:
        """Return δ, the target ε, or a number of the model's mechanism."""
        number, option = getattr(self._options, name), f"--{name.replace('_', '-')}"
        if number is not None:
            return number
        if not PARAMS.exists():
            raise PipelineError(
                f"{option}: not given, and there is no {PARAMS} here to take it from; give it"
            )
        if name in ("delta", "target_epsilon"):
            number = getattr(load().privacy, name)
        else:
            self._own = self._own or OwnRun.read()
            number = getattr(self._own.plan.model.mechanism, name)
        if not number:
            raise PipelineError(f"{option}: not given, and this run has none; give it")
        return number

    @property
    def queries(self) -> tuple[float, ...]:
        """Noise multipliers of the own run's queries, where a number is taken from it."""
        return () if self._own is None else tuple(self._own.plan.model.mechanism.queries.values())


def _solve(otherwise: str, target: float, solve: Callable[[], T]) -> T:
    try:
        return solve()
    except ValueError as impossible:
        raise PipelineError(
            f"--target-epsilon: found {target:.12g}: {impossible}; raise it, or {otherwise}"
        ) from None


def _as_json(training: Training, delta: float) -> dict[str, Any]:
    spent, replaced = training.spent(delta, RELATION_NAME), training.spent(delta, "replace_one")
    return {
        "private": True,
        "epsilon_pld": finite(spent.epsilon_pld),
        "epsilon_rdp": finite(spent.epsilon_rdp),
        "epsilon_replace_one": finite(replaced.epsilon_pld),
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
    plan, training, mechanism = own.plan, own.training, own.plan.model.mechanism
    if training is not None:
        content = _as_json(training, mechanism.delta)
    else:
        content = {
            **dict.fromkeys(("epsilon_pld", "epsilon_rdp", "epsilon_replace_one")),
            "private": False,
            "sampling_probability": mechanism.sampling_probability,
            "noise_multiplier": mechanism.noise_multiplier,
            "rounds": mechanism.rounds,
            "queries": list(mechanism.queries.values()),
            "delta": mechanism.delta,
            "neighboring_relation": RELATION_NAME,
        }
    return content | {
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
    training, delta = own.training, own.plan.model.mechanism.delta
    if training is not None:
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
    from primorl.stages.online import Arrivals

    asked, arrivals = params.online, Arrivals.of(params)
    each = "no guarantee"
    if asked.target_epsilon is not None:
        each = f"ε {at_most(asked.target_epsilon, 4)} for each"
    return (
        f"online: {arrivals.people} users in {len(arrivals.cohorts)} cohorts of {asked.cohort}, "
        f"{each}; {whose_account(params)}"
    )
