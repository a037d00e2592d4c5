"""Charges of the trials of a sweep, before any of them is run: ``primorl sweep FILE --plan``."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from absl import logging
from dp_accounting import dp_event

from primorl.base.errors import PipelineError
from primorl.base.paths import PARTITIONS
from primorl.base.reporting import progress_bar
from primorl.commands.plan_answer import Options, Settings, asked_for
from primorl.commands.terminal import one_line, rendered
from primorl.config import params
from primorl.config.params import Params
from primorl.paid import accounts
from primorl.paid.bill import Bill, never
from primorl.paid.partitions import Partitions
from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.ledger.account import Account
from primorl.privacy.statement import RELATION_NAME
from primorl.sweeps.file import Sweep, Trial, column_heads, expand
from primorl.sweeps.sweeping import check_trials
from primorl.sweeps.trial import read_row, trial_folder, trial_params


@dataclass(kw_only=True)
class _Planned:
    """Facts of a trial known beforehand; ``charges`` are those that are not paid yet, by identity."""

    trial: Trial
    finished: bool
    numbers: tuple[float | None, ...] = (None,) * 4  # ε by PLD, z, z/(qK), s
    can_learn: str = "no"
    why_not: str | None = None
    charges: dict[str, dp_event.DpEvent] = field(default_factory=dict)


def lines(sweep: Sweep) -> Iterator[str]:
    """Write the plan of a grid as text: a table, and the total of it. Nothing is charged.

    Raises:
        PipelineError: the settings do not fit.
    """
    logging.set_verbosity(logging.ERROR)  # the RDP accountant names every order that it leaves out
    trials = expand(sweep)
    check_trials(sweep, trials)
    partitions = Partitions.open(PARTITIONS, params.load())
    account = partitions.account
    found = []
    with progress_bar(len(trials), f"{sweep.name}: plan", "trial") as bar:
        for trial in trials:
            found.append(_planned(sweep, trial, partitions, account))
            bar.update()
    yield _table(sweep, found)
    yield from (f"{each.trial.name} no: {one_line(each.why_not)}" for each in found if each.why_not)
    yield from _total(found, partitions, account)


def _planned(sweep: Sweep, trial: Trial, partitions: Partitions, account: Account) -> _Planned:
    own, row = trial_params(trial), read_row(trial_folder(sweep.name, trial))
    planned = _Planned(trial=trial, finished=row is not None and row.finished)
    settings = Settings(Options(), own)
    if settings.no_guarantee:
        planned.can_learn = "no guarantee"
        if not planned.finished:
            planned.charges = {f"{trial.name} {own.dynamics.variant}": dp_event.NonPrivateDpEvent()}
        return planned
    try:
        training, delta = asked_for(settings)
        assert settings.fit is not None  # the partitions are of this dataset
        planned.can_learn, why = settings.verdict
        epsilon = training.spent(delta, RELATION_NAME).epsilon_pld
        if not planned.finished:
            planned.charges = _charges(own, training.event, partitions, account, trial)
    except PipelineError as refused:
        planned.why_not = str(refused)
        return planned
    if settings.objections.stops:
        planned.why_not = why
    cohort = training.sampling_probability * partitions.manifest.private_units
    noise = training.noise_multiplier
    planned.numbers = (epsilon, noise, noise / cohort, settings.fit[1].noise)
    return planned


def _charges(
    own: Params, event: dp_event.DpEvent, partitions: Partitions, account: Account, trial: Trial
) -> dict[str, dp_event.DpEvent]:
    """List the charges that are not paid yet; equal identities are one charge, also of several trials.

    Questions are about a trial's own policy, so each trial pays for its own.
    """
    bill = Bill.of(own, partitions.manifest, event, account).mark_paid(partitions, never)
    return {each.identity or f"{trial.name} {each.stage}": each.event for each in bill.unpaid}


def _table(sweep: Sweep, found: list[_Planned]) -> str:
    heads = column_heads(sweep.keys)
    columns = ("trial", "case", *heads, "ε", "z", "z/(qK)", "s", "can it learn?", "charges")
    cells = []
    for each in found:
        varied = [str(each.trial.settings.get(key, "")) for key in sweep.keys]
        numbers = ["-" if number is None else at_most(number, 4) for number in each.numbers]
        charges = (
            "finished" if each.finished else f"{len(each.charges)} new" if each.charges else "paid"
        )
        cells.append(
            (each.trial.name, each.trial.case or "", *varied, *numbers, each.can_learn, charges)
        )
    return rendered(
        columns, cells, right=columns[2:-2], cut=("trial", "case", *heads, "can it learn?")
    )


def _total(found: list[_Planned], partitions: Partitions, account: Account) -> Iterator[str]:
    """State the charges of the whole sweep, and whether the budget allows them."""
    checked = params.load()
    delta = checked.privacy.budget.delta
    charges = {name: event for each in found for name, event in each.charges.items()}
    private = [
        event for event in charges.values() if not isinstance(event, dp_event.NonPrivateDpEvent)
    ]
    open_ended = len(charges) - len(private)
    waiting = sum(not each.finished for each in found)
    yield f"{len(found)} trials, {waiting} to run; {len(charges)} new charges"
    if open_ended:
        yield f"  {open_ended} of them without any guarantee: they make what is spent infinite, and fit no budget"
    if not private:
        return
    alone, spent = Account(()).with_events(private, delta), account.epsilon(delta)
    yield f"  ε {at_most(alone, 4)} in all at δ {at_most(delta)} for the others (ε compose, they do not add)"
    together = account.with_events(private, delta)
    yield f"  ε {at_most(spent, 4)} is spent on these units; with the sweep it would be ε {at_most(together, 4)}"
    budget = accounts.budget(checked, partitions.manifest.private_units)
    if budget is None:
        yield "  budget: none (privacy.budget.epsilon is null)"
        return
    counts = range(1, len(private) + 1)
    fitting = bisect_left(
        counts, True, key=lambda count: not account.fits_all(private[:count], budget)
    )
    left = left_of(budget.epsilon, spent)
    yield f"  budget: ε {at_most(budget.epsilon, 6)}, left {left}; the first {fitting} of {len(private)} charges fit"
