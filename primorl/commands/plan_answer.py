"""The answer of ``primorl plan``: what the next run costs, whether it can learn, and its numbers;
or, with numbers given, the cost of a mechanism.
"""

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from typing import Any

from primorl.base import PipelineError
from primorl.base.dvc import MAKE_DATA, Status
from primorl.base.files import PARAMS, PARTITIONS
from primorl.base.reporting import in_lines
from primorl.config.params import PUBLIC, RULE, load
from primorl.data.sources.log_paths import describe_edits
from primorl.engine.heads import LENGTHS
from primorl.evaluate.wording import singular
from primorl.model.termination import LEARNED
from primorl.privacy.accounting.epsilon import EPSILONS, Training
from primorl.privacy.accounting.figures import solve_noise_multiplier, solve_rounds
from primorl.privacy.accounting.rounding import at_least, at_most
from primorl.privacy.statement import RELATION_NAME
from primorl.work.bill import UNKNOWN
from primorl.work.data import observation_bounds
from primorl.work.resolve import NextRun

_LARGE = 2.0  # ε, from which a guarantee says little
_MOST_COLUMNS = 12  # that a line names
_Epsilons = dict[str, float | None]
"""See `Training.epsilons`."""


def read_run(changed: Set[str]) -> NextRun:
    """Read the run that ``params.yaml`` describes.

    Raises:
        PipelineError: the data are not here; or see `NextRun`.
    """
    params = load()
    if (found := NextRun.read(params, changed)) is None:
        raise PipelineError(
            f"{PARTITIONS}: not there yet for dataset {params.dataset}; run `dvc repro "
            "plan`, which charges nothing; or give the numbers of a mechanism"
        )
    return found


def show(
    given: Mapping[str, Any], solve: str | None, *, as_json: bool, status: Status | None
) -> None:
    """Print the answer to the question that the options ask.

    Args:
        given: numbers of a mechanism, and ``target_epsilon``, by name.
        solve: the name of the number to look for; None: noise where a target is given.
        as_json: print JSON.
        status: tells the stages that changed; None: numbers are given, or looked for.

    Raises:
        PipelineError: see `complete_mechanism` and `read_run`.
    """
    if status is None or not PARAMS.exists():
        training, delta = complete_mechanism(given, solve)
        epsilons = training.epsilons(delta)
        lines = _mechanism_lines(training, delta, epsilons)
        content = _as_json(training, delta, epsilons)
    else:
        own = read_run(status.changed_stages())
        lines, content = _own_lines(own), _own_as_json(own) if as_json else {}
    print(json.dumps(content, indent=2, allow_nan=False) if as_json else "\n".join(lines))


def complete_mechanism(given: Mapping[str, Any], solve: str | None) -> tuple[Training, float]:
    """Complete the mechanism that the options ask about by the numbers of the project's own run;
    solve for the noise or the rounds.

    Returns:
        The training run, and δ.

    Raises:
        PipelineError: options contradict each other, one is missing, or the target cannot be met.
    """
    needed = ["sampling_probability", "noise_multiplier", "rounds", "delta"]
    if solve is None and "target_epsilon" in given:
        solve = "noise_multiplier"
    if solve is not None:
        if solve in given:
            found = "found where the one for a target is looked for"
            raise PipelineError(f"{_option(solve)}: {found}; leave it out, or name another --solve")
        needed = [*(name for name in needed if name != solve), "target_epsilon"]
    numbers, queries = _complete(given, needed)
    target = numbers.pop("target_epsilon", None)
    try:
        if solve == "rounds":
            numbers[solve] = solve_rounds(target, **numbers, queries=queries)
        elif solve is not None:
            numbers[solve] = solve_noise_multiplier(target, **numbers, queries=queries)
    except ValueError as impossible:
        found = f"{target:.12g}: {impossible}; raise it, or give other numbers"
        raise PipelineError(f"--target-epsilon: found {found}") from None
    delta = numbers.pop("delta")
    return Training(**numbers, queries=queries), delta


def _complete(
    given: Mapping[str, Any], needed: Sequence[str]
) -> tuple[dict[str, Any], tuple[float, ...]]:
    """Take numbers that are not given from the project, and with them the queries of its run."""
    missing = [name for name in needed if name not in given]
    if missing and not PARAMS.exists():
        raise PipelineError(f"{_option(missing[0])}: not given, and there is no {PARAMS}; give it")
    known = {name: given[name] for name in needed if name in given}
    for name in {"delta", "target_epsilon"} & {*missing}:
        known[name] = getattr(load().privacy, name)
    if known.keys() >= {*needed}:
        return known, ()
    run = read_run(MAKE_DATA).plan.model.mechanism.training  # whatever changed
    known = {name: getattr(run, name, None) for name in needed} | known
    if not all(known.values()):
        raise PipelineError("plan: this run has no noise; give --noise-multiplier")
    return known, run.queries


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _as_json(training: Training, delta: float, found: _Epsilons) -> dict[str, Any]:
    return {
        "private": training.noise_multiplier > 0,
        **found,
        **asdict(training),
        "delta": delta,
        "neighboring_relation": RELATION_NAME,
    }


def _mechanism_lines(training: Training, delta: float, found: _Epsilons) -> Iterator[str]:
    q, z = at_most(training.sampling_probability, 6), at_least(training.noise_multiplier, 6)
    yield (
        f"sampling probability {q}, noise multiplier {z}, {training.rounds} rounds, at δ "
        f"{at_most(delta, 6)}:"
    )
    if training.queries:
        noise = ", ".join(at_least(multiplier, 6) for multiplier in training.queries)
        yield f"  beside {len(training.queries)} queries of all units, noise multiplier {noise}"
    by_pld, by_rdp, replaced = (at_most(found[key]) for key in EPSILONS)
    yield f"  ε {by_pld} if one unit is zeroed out ({by_rdp} by RDP)"
    yield f"  ε {replaced} if one unit is replaced by another"


# ---- the project's own run


def _own_as_json(own: NextRun) -> dict[str, Any]:
    plan = own.plan
    return _as_json(own.plan.model.mechanism.training, plan.model.delta, own.figures.model) | {
        "can_learn": plan.can_learn,
        "why": plan.reason,
        "settings": {key: asdict(each) for key, each in plan.settings.items()},
        "jobs": [asdict(each) for each in plan.jobs],
        "changed": sorted(own.changed),  # stages that DVC will run before, or again
    }


def _own_lines(own: NextRun) -> Iterator[str]:
    """What it costs first, then whether it can learn, then the numbers."""
    plan, manifest, training = own.plan, own.partitions.manifest, own.plan.model.mechanism.training
    bill = own.bill()
    yield from _cost_lines(own)
    older = "as the log was collected, " * bool(
        describe_edits(own.params.dataset, own.params.chosen)
    )
    yield f"  {UNKNOWN if own.changed & MAKE_DATA else f'{older}{bill}'}"
    if plan.can_learn is not None:
        yield "\n  ".join(in_lines(f"can it learn? {plan.can_learn}: {plan.reason}"))
        if plan.can_learn == "marginal":
            yield (
                "  marginal bars no trial, and makes one less likely; for a yes: a larger ε, "
                "more people, or shorter trajectories if outcomes are all"
            )
        yield from _column_lines(own)
    for each in plan.warnings:
        if each != plan.reason:
            yield f"  warning, which bars a trial: {each}"
    asked = LENGTHS in plan.model.mechanism.queries
    if manifest.public_units == 0 and manifest.info.environment is None and not asked:
        yield (
            "  warning: nobody is public, so nothing tells how long recordings go on; values in "
            f"the model count every step up to the horizon ({manifest.info.horizon}), and lie "
            "beyond today's return if most are shorter"
        )
    if manifest.public_units == 0 and manifest.info.termination == LEARNED:
        yield (
            "  ends rarer than 1 in 20 trajectories (deaths, say) may stay unlearned, which no "
            "question shows: where they are as rare in the model, no trial is recommended"
        )
    if training.noise_multiplier > 0:
        yield from _mechanism_lines(training, plan.model.delta, own.figures.model)
        cohort = training.sampling_probability * manifest.private_units
        yield f"  of {manifest.private_units} units about {cohort:.4g} join a round"
    for key, setting in plan.settings.items():
        if setting.origin in (RULE, PUBLIC):  # that no file gives
            yield f"  {key}: {json.dumps(setting.value)} ({setting.origin})"


def _column_lines(own: NextRun) -> Iterator[str]:
    """Say how much each column must vary to be seen beside the noise, in its own unit."""
    manifest, public = own.partitions.manifest, own.partitions.public
    least, spaces = own.figures.least_spread, manifest.info.spaces
    if least is None or not spaces.observation_names:
        return
    ends = observation_bounds(own.params.chosen.bounds, manifest, public)
    rows = zip(spaces.observation_names, *ends, strict=True)
    # categories (meal=snack) are no columns
    seen = [f"{n} {at_most(least * (b - a) / 2, 2)}" for n, a, b in rows if "=" not in n]
    if seen:
        more = f" and {len(seen) - _MOST_COLUMNS} more" * (len(seen) > _MOST_COLUMNS)
        told = ", ".join(seen[:_MOST_COLUMNS])
        yield (
            f"  it may hide columns that deviate by less than: {told}{more}; narrower bounds make "
            "these numbers smaller"
        )


def _cost_lines(own: NextRun) -> Iterator[str]:
    """What all jobs of the run cost together, paid or not."""
    plan, found = own.plan, own.figures
    if plan.model.variant != "private":
        yield f"dynamics.variant is {plan.model.variant}: a run of it has no guarantee at all"
        return
    parts = ", ".join(f"{each.name} {at_most(each.epsilon or 0)}" for each in plan.jobs)
    unit = own.partitions.manifest.info.unit
    limit = at_most(own.params.privacy.target_epsilon, 6)
    less = "; together less than their sum" if len(plan.jobs) > 1 else ""
    yield (
        f"this run costs ε {at_most(found.epsilon)} at δ {at_most(plan.model.delta)} "
        f"(target_epsilon {limit}): {parts}{less}"
    )
    yield (
        "  whoever sees all that this run releases, and knows everybody else, tells rightly at "
        f"most {at_most(found.right_guesses)} times in 100 whether one "
        f"{singular(unit, own.params.chosen.card.labels)} took part (a coin: 50)"
    )
    if found.epsilon is None or found.epsilon >= _LARGE:
        yield f"  warning: ε {at_most(found.epsilon)} is large: this promises little"
