"""The answer of ``primorl plan``: what a mechanism costs, what was spent before, and whether the budget allows it."""

import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from dp_accounting import dp_event

from primorl.commands.plan import MOST_ROUNDS
from primorl.commands.plan_settings import Options, Settings, asked_for
from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import RELATION_NAME, Training
from primorl.privacy.accounting.rounding import at_least, at_most, left_of
from primorl.privacy.ledger.account import Account, total_of
from primorl.privacy.ledger.ledger import Budget
from primorl.privacy.ledger.refusals import rounds_that_fit
from primorl.project.dvc import Status
from primorl.project.files import finite
from primorl.project.paths import PARAMS, PARTITIONS, UNITS
from primorl.setup import model_work
from primorl.setup.accounts import begun_ledger, check_secret, dataset_version, losses
from primorl.setup.next_charges import (
    MAKE_DATA,
    UNKNOWN,
    PendingCharge,
    beside_model,
    mark_paid,
    same_questions,
    still_fitting,
)
from primorl.setup.partitions import Partitions
from primorl.trajectories.storage.manifest import Manifest


def show(options: Options, *, as_json: bool) -> None:
    """Print the answer to the question that the options ask."""
    settings = Settings(options)
    if as_json:
        print(json.dumps(_as_json(settings), indent=2, allow_nan=False))
        return
    with Status() if settings.is_a_run else nullcontext() as status:
        for line in _text(settings, status):
            print(line)


def _as_json(settings: Settings) -> dict[str, Any]:
    training, delta = asked_for(settings)
    spent, replaced = training.spent(delta, RELATION_NAME), training.spent(delta, "replace_one")
    numbers = {
        "epsilon_pld": spent.epsilon_pld,
        "epsilon_rdp": spent.epsilon_rdp,
        "epsilon_replace_one": replaced.epsilon_pld,
    }
    answer = {
        "private": not settings.no_guarantee,
        **{name: None if settings.no_guarantee else finite(number) for name, number in numbers.items()},
        **asdict(training),
        "delta": delta,
        "neighboring_relation": RELATION_NAME,
    }
    if settings.is_a_run and settings.fit is not None:
        can_learn, why = settings.verdict
        answer |= {"can_learn": can_learn, "why": why, "fitted": settings.fit[1].values}
    return answer


def _text(settings: Settings, status: Status | None) -> Iterator[str]:
    training, delta = asked_for(settings)
    params, manifest = settings.params, settings.manifest
    spent = training.spent(delta, RELATION_NAME)
    yield (
        f"sampling probability {at_most(training.sampling_probability, 6)}, noise multiplier "
        f"{at_least(training.noise_multiplier, 6)}, {training.rounds} rounds, at δ {at_most(delta, 6)}:"
    )
    if training.queries:
        multipliers = ", ".join(at_least(multiplier, 6) for multiplier in training.queries)
        asked = f"{len(training.queries)} queries of all units (privacy.statistics)"
        yield f"  after {asked}, noise multiplier {multipliers}"
    yield f"  ε {at_most(spent.epsilon_pld, 4)} if one unit is zeroed out ({at_most(spent.epsilon_rdp, 4)} by RDP)"
    yield f"  ε {at_most(training.spent(delta, 'replace_one').epsilon_pld, 4)} if one unit is replaced by another"
    if settings.units is not None:
        yield from _cohort_lines(training, delta, settings.units)
    if settings.is_a_run and settings.fit is not None:
        yield from _fit_lines(settings)
    if params is None:
        return
    if params.dynamics.variant != "private":
        yield f"  {PARAMS} has dynamics.variant {params.dynamics.variant}: a run of it has no guarantee at all"
    others = beside_model(params, spent.epsilon_pld, manifest)
    if others:
        yield _with_others(params, training, others)
    if manifest is not None and UNITS.exists():
        yield from _ledger_lines(settings, training, spent.epsilon_pld, others, status)
    if params.online.asked:
        yield _online_line(params)


def _cohort_lines(training: Training, delta: float, units: int) -> Iterator[str]:
    cohort = training.sampling_probability * units
    yield f"  of {units} units about {cohort:.4g} join a round, {cohort * training.rounds:.4g} local trainings in all"
    noise = at_least(training.noise_multiplier / cohort)
    yield f"  noise per coordinate of the mean update: {noise} of the clipping norm"
    if delta >= 1 / units:
        yield f"  warning: δ is not below 1/{units}: to publish a whole unit would pass; choose a smaller one"


def _fit_lines(settings: Settings) -> Iterator[str]:
    """Say what was fitted, and what is to be expected of it."""
    assert settings.fit is not None
    assert settings.manifest is not None
    values, info = settings.fit[1].values, settings.manifest.info
    if values:
        said = ", ".join(f"{key} {value}" for key, value in sorted(values.items()))
        yield f"  fitted to public facts of the data: {said}"
    for stop in settings.objections.stops:
        yield f"  can it learn? no: {stop}"
    if not settings.objections.stops:
        yield "  can it learn? {}: {}".format(*settings.verdict)
    for warning in settings.objections.warnings:
        yield f"  warning: {warning}"
    if settings.manifest.public_units == 0 and info.environment is None:
        yield (
            "  warning: nobody is public, so nothing tells how long recordings go on; values in the model count every "
            f"step up to the horizon ({info.horizon}), and lie beyond today's return if most are shorter"
        )


def _with_others(params: Params, training: Training, others: list[PendingCharge]) -> str:
    """Say what this run, the clone of the behaviour and the private evaluation of the policy come to together."""
    budget, words, clone = params.privacy.budget, [], params.behaviour.target_epsilon
    if clone is not None:
        words.append(f"a clone of the behaviour ({at_most(clone, 4)})")
    questions = [f"{each.question} {at_most(each.epsilon or 0, 4)}" for each in others if each.question is not None]
    if questions:
        words.append(f"the private evaluation of its policy ({', '.join(questions)})")
    together = total_of([training.event, *(each.event for each in others)], budget.delta).epsilon
    line = f"  with {' and '.join(words)}: about ε {at_most(together, 4)} in all"
    if budget.epsilon is not None and together > budget.epsilon:
        line += f", which privacy.budget.epsilon {budget.epsilon!r} does not allow"
    return line


def _online_line(params: Params) -> str:
    """Say what the stage `online` charges, and to whom."""
    from primorl.setup.arrivals import Arrivals, whose_account

    asked, arrivals = params.online, Arrivals.of(params)
    each = "no guarantee" if asked.target_epsilon is None else f"ε {at_most(asked.target_epsilon, 4)} for each"
    whose = whose_account(shared=arrivals.shared)
    return f"online: {arrivals.people} users in {len(arrivals.cohorts)} cohorts of {asked.cohort}, {each}; {whose}"


def _ledger_lines(
    settings: Settings, training: Training, epsilon: float, others: list[PendingCharge], status: Status | None
) -> Iterator[str]:
    """Say what was spent on the dataset, what the next run charges, and whether the budget allows it."""
    params, manifest = settings.params, settings.manifest
    assert params is not None
    assert manifest is not None
    ledger, account = begun_ledger(params), Account(())
    lost = losses(ledger)
    for loss in lost:
        yield f"warning: {loss.says}, so more may be spent than is known here; `primorl ledger verify` says more"
    declared = params.privacy.budget
    if ledger is None:
        if not lost:
            yield "nothing was charged to this dataset yet: no ledger was begun"
    else:
        check_secret(manifest, PARTITIONS)  # under another one the ledger would recognise nobody
        with closing(ledger):
            account = ledger.account(dataset_version(manifest, PARTITIONS))
    total = account.total(declared.delta)
    if ledger is not None:
        spent = f"ε {at_most(total.epsilon, 4)} spent at δ {at_most(declared.delta)}"
        yield f"{manifest.info.dataset}: {spent}, in {total.charges} charge(s)"
    if total.charges > 1:
        fixed = at_most(total.epsilon_fixed, 4)
        yield f"  ε {fixed} if all their settings were fixed beforehand, whatever the results"
    charges = [PendingCharge(model_work.STAGE, None, training.event), *others]
    changed = status.changed_stages() if status is not None else set()
    if changed & MAKE_DATA:
        yield f"  {UNKNOWN}"
    elif settings.is_a_run:
        if account.entries:
            stay = partial(same_questions, changed)
            charges = mark_paid(params, Partitions.open(PARTITIONS), account, charges, questions_stay=stay)
        yield _next_line(charges, epsilon)
    if declared.epsilon is None:
        yield "  budget: none (privacy.budget.epsilon is null)"
        return
    budget = Budget(declared.epsilon, declared.delta)
    yield f"  budget: ε {at_most(budget.epsilon, 6)}, left {left_of(budget.epsilon, total.epsilon)}"
    if params.dynamics.variant != "private":
        yield f"  a run of variant {params.dynamics.variant} does not fit: it has no guarantee and fits no budget"
    elif not changed & MAKE_DATA:
        yield from _budget_lines(params, account, budget, training, charges, manifest)


def _next_line(charges: list[PendingCharge], epsilon: float) -> str:
    """Say what `dvc repro` would charge next, by stage; ``epsilon`` is the model's."""
    if all(each.paid for each in charges):
        return "  next `dvc repro`: all of it is paid, nothing is charged"
    words = []
    for each in charges:
        words.append(f"{each.stage} {'0 (paid)' if each.paid else at_most(each.epsilon or epsilon, 4)}")
    return f"  next `dvc repro` charges ε: {', '.join(words)}"


def _budget_lines(
    params: Params,
    account: Account,
    budget: Budget,
    training: Training,
    charges: list[PendingCharge],
    manifest: Manifest,
) -> Iterator[str]:
    """Say whether the budget allows what is not paid yet, and what else it allows."""
    model, *others = charges
    beside = [each for each in others if not each.paid]
    events = [each.event for each in beside]
    wanted = events if model.paid else [model.event, *events]
    if not wanted:
        return
    if account.fits_all(wanted, budget):
        with_it = account.with_events(wanted, budget.delta)
        what = "this run fits: with it" if len(wanted) == 1 else "this run fits: with all of it"
        yield f"  {what} ε {at_most(with_it, 4)} in all (ε compose, they do not add)"
    elif model.paid:
        yield (
            "  what is not paid yet does not fit; ask for a smaller ε (behaviour.target_epsilon or "
            f"evaluation.private.estimators in {PARAMS})"
        )
    else:
        yield f"  this run does not fit; {still_fitting(params, account, model.event, beside, budget, manifest)}"
    if model.paid:
        return

    def fits(event: dp_event.DpEvent) -> bool:
        return account.fits_all([event, *events], budget)

    most = training.rounds
    while most < MOST_ROUNDS and fits(replace(training, rounds=most).event):
        most *= 4
    rounds = rounds_that_fit(replace(training, rounds=most).event, fits)
    yield f"  rounds left with its noise multiplier: {'none' if rounds is None else rounds}"
