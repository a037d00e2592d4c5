"""What to run instead of a refused run: the same run with more noise, or with fewer rounds.

Every command that names a run that fits takes the figure from here, so that one budget has one figure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from dp_accounting import dp_event

from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.rounding import at_least, rounded_up
from primorl.privacy.ledger.account import Account
from primorl.privacy.ledger.requests import Budget

_MOST_TRIES = 24  # of each search: a limit on work, not on time, so that a busy machine finds the same figure
_PRECISION = 1.01
_DIGITS = 3  # short enough to be typed

Fits = Callable[[dp_event.DpEvent], bool]


def advice(account: Account, event: dp_event.DpEvent, budget: Budget, beside: Sequence[dp_event.DpEvent] = ()) -> str:
    """What still fits the budget, each as a command to paste.

    The words set ``privacy.target_epsilon`` to null, and with it the dataset's suggestion for it, so that they mean the
    same for every dataset.

    Args:
        account: what was spent on the same units.
        event: the refused run.
        budget: what it would exceed.
        beside: what will be charged after it, for which the budget must be enough too.
    """
    if isinstance(event, dp_event.NonPrivateDpEvent):
        return "a run without a guarantee fits no budget"
    if account.epsilon(budget.delta) >= budget.epsilon:
        return "nothing fits any more"

    def fits(other: dp_event.DpEvent) -> bool:
        return account.fits_all([other, *beside], budget)

    run, multiplier, rounds = Training.of(event), multiplier_that_fits(event, fits), rounds_that_fit(event, fits)
    found = []
    if run is not None and multiplier is not None:
        command = _command(multiplier)
        found.append(f"noise_multiplier {multiplier!r} with these {run.rounds} rounds: {command}")
    if run is not None and rounds is not None:
        same, command = at_least(run.noise_multiplier, 6), _command(run.noise_multiplier, rounds)
        found.append(f"{rounds} rounds with this noise_multiplier {same}: {command}")
    return f"still fitting: {' or '.join(found)}" if found else "no smaller run was found that fits"


def multiplier_that_fits(event: dp_event.DpEvent, fits: Fits) -> float | None:
    """The smallest noise multiplier, to about 1%, with which the rounds of ``event`` fit (three digits, rounded up).

    Queries before the rounds stay as they are.

    Args:
        event: the refused one.
        fits: whether the budget allows an event in its place.

    Returns:
        None where none was found, or ``event`` is not that of a training run.
    """
    run = Training.of(event)
    if run is None:
        return None
    tries = _MOST_TRIES

    def would_fit(multiplier: float) -> bool:
        nonlocal tries
        tries -= 1
        return fits(replace(run, noise_multiplier=multiplier).event)

    low, high = float(run.noise_multiplier), rounded_up(4 * float(run.noise_multiplier), _DIGITS)
    while not would_fit(high):
        low, high = high, rounded_up(4 * high, _DIGITS)
        if tries < _MOST_TRIES // 2:
            return None
    while high > low * _PRECISION and tries > 0:
        middle = rounded_up(math.sqrt(low * high), _DIGITS)
        if middle >= high:
            break
        low, high = (low, middle) if would_fit(middle) else (middle, high)
    return high


def rounds_that_fit(event: dp_event.DpEvent, fits: Fits) -> int | None:
    """The largest number of rounds of ``event``'s own mechanism that fits, after the same queries.

    Args:
        event: the refused one.
        fits: whether the budget allows an event in its place.

    Returns:
        None where not even one round fits, or ``event`` is not that of a training run.
    """
    run = Training.of(event)
    if run is None:
        return None

    def would_fit(rounds: int) -> bool:
        return fits(replace(run, rounds=rounds).event)

    if not would_fit(1):
        return None
    low, high = 1, run.rounds
    for _ in range(_MOST_TRIES):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        low, high = (middle, high) if would_fit(middle) else (low, middle)
    return low


def _command(multiplier: float, rounds: int | None = None) -> str:
    words = ["privacy.target_epsilon=null", f"privacy.noise_multiplier={multiplier!r}"]
    words += [] if rounds is None else [f"privacy.rounds={rounds}"]
    return f"`dvc exp run {' '.join(f'-S {word}' for word in words)}`"
