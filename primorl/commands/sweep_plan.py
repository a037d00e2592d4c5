"""What the trials of a sweep would charge, before any of them is run: ``primorl sweep FILE --plan``."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from primorl.commands.plan_settings import Options, Settings, asked_for
from primorl.project.errors import PipelineError
from primorl.project.paths import PARTITIONS

if TYPE_CHECKING:
    from dp_accounting import dp_event

    from primorl.config.params import Params
    from primorl.privacy.ledger.account import Account
    from primorl.setup.partitions import Partitions
    from primorl.sweeps.file import Sweep
    from primorl.sweeps.trials import Trial

_AS_IT_STANDS = Options(**{field.name: None for field in fields(Options)})


@dataclass(frozen=True)
class Planned:
    """What is known of a trial beforehand.

    Attributes:
        trial: the trial.
        epsilon: of its model, by PLD; None: it has no guarantee, or cannot run.
        noise_multiplier: z.
        noise_per_coordinate: z/(qK) of a mean update, in units of the clipping norm.
        noise_share: s, the noise norm of all rounds over the most that they can move.
        can_learn: the verdict on its settings.
        why_not: what speaks against the trial; None: nothing.
        charges: what would be charged, by identity; what is paid is left out.
        finished: whether its row is there.
    """

    trial: "Trial"
    epsilon: float | None
    noise_multiplier: float | None
    noise_per_coordinate: float | None
    noise_share: float | None
    can_learn: str
    why_not: str | None
    charges: "dict[str, dp_event.DpEvent]"
    finished: bool


def planned(sweep: "Sweep") -> "tuple[list[Planned], Partitions, Account]":
    """All trials of a grid, in its order. Settings are fitted as ``primorl plan`` fits them; nothing is charged.

    Returns:
        The trials, the partitions, and what was charged to their units so far.

    Raises:
        PipelineError: it is a search, which chooses as it goes; or the settings do not fit.
    """
    from absl import logging

    from primorl.config import params
    from primorl.privacy.ledger.account import Account
    from primorl.project.progress import progress_bar
    from primorl.setup import accounts
    from primorl.setup.partitions import Partitions
    from primorl.sweeps.sweeping import checked
    from primorl.sweeps.trials import expand

    if sweep.content.search is not None:
        raise PipelineError(f"{sweep.path}: search: chooses its trials as it goes; --plan is for a grid")
    logging.set_verbosity(logging.ERROR)  # the RDP accountant names every order that it leaves out
    trials = expand(sweep)
    checked(sweep, trials)
    partitions, account = Partitions.open(PARTITIONS), Account(())
    ledger = accounts.begun_ledger(params.load())
    if ledger is not None:
        with closing(ledger):
            account = ledger.account(partitions.version)
    found = []
    with progress_bar(len(trials), f"{sweep.name}: plan", "trial") as bar:
        for trial in trials:
            found.append(_planned(sweep, trial, partitions, account))
            bar.update()
    return found, partitions, account


def lines(sweep: "Sweep") -> Iterator[str]:
    """The plan as text: a table, and what all of it comes to."""
    from primorl.commands.printing import one_line, rendered
    from primorl.privacy.accounting.rounding import at_most
    from primorl.sweeps.trials import short, varying

    found, partitions, account = planned(sweep)
    keys = varying([each.trial for each in found])
    heads = short(keys)
    columns = ("trial", "case", *heads, "ε", "z", "z/(qK)", "s", "can it learn?", "charges")
    yield rendered(
        columns,
        (
            (
                each.trial.name,
                each.trial.case or "",
                *(str(each.trial.settings.get(key, "")) for key in keys),
                *(
                    "-" if number is None else at_most(number, 4)
                    for number in (each.epsilon, each.noise_multiplier, each.noise_per_coordinate, each.noise_share)
                ),
                each.can_learn,
                "finished" if each.finished else f"{len(each.charges)} new" if each.charges else "paid",
            )
            for each in found
        ),
        right=columns[2:-2],
        cut=("trial", "case", *heads, "can it learn?"),
    )
    yield from (f"{each.trial.name} no: {one_line(each.why_not)}" for each in found if each.why_not)
    yield from _total(found, partitions, account)


def _planned(sweep: "Sweep", trial: "Trial", partitions: "Partitions", account: "Account") -> Planned:
    from primorl.privacy.accounting.epsilon import RELATION_NAME
    from primorl.sweeps.folders import trial_folder, trial_params
    from primorl.sweeps.rows import read_row

    params, row = trial_params(trial), read_row(trial_folder(sweep.name, trial))
    finished = row is not None and row.finished
    settings = Settings(_AS_IT_STANDS, params)
    if settings.no_guarantee:
        charges = {} if finished else _without_guarantee(params, trial)
        return Planned(trial, None, None, None, None, "no guarantee", None, charges, finished)
    try:
        asked = asked_for(settings)
        stops = settings.objections.stops
        assert settings.fit is not None  # the partitions are of this dataset
        _, fit = settings.fit
        epsilon = asked.spent(RELATION_NAME).epsilon_pld
        charges = {} if finished else _charges(params, asked.event, epsilon, partitions, account, trial)
    except PipelineError as refused:
        return Planned(trial, None, None, None, None, "no", str(refused), {}, finished)
    cohort = asked.sampling_probability * partitions.manifest.private_units
    verdict, why_not = ("no", "; ".join(stops)) if stops else (fit.answer, None)
    noise = asked.noise_multiplier
    return Planned(trial, epsilon, noise, noise / cohort, fit.noise, verdict, why_not, charges, finished)


def _charges(
    params: "Params",
    event: "dp_event.DpEvent",
    epsilon: float,
    partitions: "Partitions",
    account: "Account",
    trial: "Trial",
) -> "dict[str, dp_event.DpEvent]":
    """What is not paid yet; equal identities are one charge, also of several trials.

    Questions are about a trial's own policy, so each trial pays for its own.
    """
    from primorl.setup import model_work
    from primorl.setup.clone_work import clone_identity
    from primorl.setup.next_charges import PendingCharge, beside_model, mark_paid

    wanted = [PendingCharge(model_work.STAGE, None, event), *beside_model(params, epsilon, partitions.manifest)]
    if account.entries:
        wanted = mark_paid(params, partitions, account, wanted, questions_stay=lambda: False)
    found = {}
    for each in wanted:
        if each.paid:
            continue
        if each.stage == model_work.STAGE:
            name = model_work.model_identity(params, partitions)
        elif each.question is None:
            name = clone_identity(params, partitions)
        else:
            name = f"{trial.name} {each.stage}"
        found[name] = each.event
    return found


def _without_guarantee(params: "Params", trial: "Trial") -> "dict[str, dp_event.DpEvent]":
    from dp_accounting import dp_event

    return {f"{trial.name} {params.dynamics.variant}": dp_event.NonPrivateDpEvent()}


def _total(found: list[Planned], partitions: "Partitions", account: "Account") -> Iterator[str]:
    """What the sweep would charge in all, and whether the budget allows it."""
    from dp_accounting import dp_event

    from primorl.config import params
    from primorl.privacy.accounting.rounding import at_most, left_of
    from primorl.privacy.ledger.account import Account
    from primorl.setup import accounts

    checked = params.load()
    delta = checked.privacy.budget.delta
    charges = {name: event for each in found for name, event in each.charges.items()}
    private = [event for event in charges.values() if not isinstance(event, dp_event.NonPrivateDpEvent)]
    open_ended = len(charges) - len(private)
    waiting = sum(not each.finished for each in found)
    yield f"{len(found)} trials, {waiting} to run; {len(charges)} new charges"
    if open_ended:
        yield f"  {open_ended} of them without any guarantee: they make what is spent infinite, and fit no budget"
    if not private:
        return
    alone = Account(()).with_events(private, delta)
    yield f"  ε {at_most(alone, 4)} in all at δ {at_most(delta)} for the others (ε compose, they do not add)"
    spent, together = account.epsilon(delta), account.with_events(private, delta)
    yield f"  {_epsilon(spent)} is spent on these units; with the sweep it would be {_epsilon(together)}"
    budget = accounts.budget(checked, partitions.manifest.private_units)
    if budget is None:
        yield "  budget: none (privacy.budget.epsilon is null)"
        return
    counts = range(1, len(private) + 1)
    fitting = bisect_left(counts, True, key=lambda count: not account.fits_all(private[:count], budget))
    left = left_of(budget.epsilon, spent)
    yield f"  budget: ε {at_most(budget.epsilon, 6)}, left {left}; the first {fitting} of {len(private)} charges fit"


def _epsilon(value: float) -> str:
    from primorl.privacy.accounting.rounding import at_most

    return f"ε {at_most(value, 4)}" if value < float("inf") else "ε ∞"
