"""Accounting again what a bundle states: no figure is believed, and none may be lower than the accountant makes it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dp_accounting import dp_event

from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.ledger.account import fixed_epsilon, seen, total_of
from primorl.privacy.mechanism.queries import GaussianQuery, query_types
from primorl.privacy.statement import Accountant, MechanismStatement, Statement
from primorl.privacy.together import joint_event
from primorl.project.errors import PipelineError
from primorl.project.files import finite
from primorl.project.records import printable
from primorl.release.contents import LEDGER, ChargeRecord, LedgerStatement
from primorl.release.stated_figures import ROUNDING, TOLERANCE, misstated
from primorl.training import normaliser_query as _normaliser_query  # noqa: F401 - registers its query

Value = TypeVar("Value")

OURS = Accountant(**accounting.ACCOUNTANT)
MOST_ROUNDS, LEAST_NOISE = 10**6, 0.1


def figures(events: Sequence[dp_event.DpEvent], delta: float) -> dict[str, float | None]:
    """Keys of an account's total and what the accountant makes of ``events`` at ``delta``; None: no guarantee."""
    total = total_of(events, delta)
    return {key: finite(getattr(total, key)) for key in ("epsilon", "epsilon_fixed", "epsilon_rdp")}


def check_statement(path: Path, statement: Statement) -> None:
    """Check that the statement of a mechanism agrees with itself, and account its event again.

    Args:
        path: its file, for the message.
        statement: what was read from it.

    Raises:
        PipelineError: one line; names the key.
    """
    check_facts(path, statement)
    expected, numbers = accounted(path, statement, statement)
    if statement.event != event_to_json(expected):
        raise PipelineError(f"{path}: event: not that of the mechanism the same file describes")
    check_figures(path, statement, numbers)


def check_facts(path: Path, statement: Statement) -> None:
    """Check who did the sums of a statement, and that its δ means something.

    Raises:
        PipelineError: one line; names the key.
    """
    _refuse_other_accountant(path, statement.accountant)
    delta = given(path, "delta", statement.delta)
    largest = max(delta, given(path, "spent_on_dataset", statement.spent_on_dataset).delta)
    if statement.private and largest >= 1 / statement.units and not statement.void:
        raise PipelineError(f"{path}: delta: {largest!r} is not below one over the units, and void does not say so")


def accounted(
    path: Path, mechanism: Statement | MechanismStatement, by: Statement
) -> tuple[dp_event.DpEvent, dict[str, float | None]]:
    """Account a mechanism again from its numbers.

    Args:
        path: of the file that states them, for messages.
        mechanism: the numbers.
        by: the statement that they stand in.

    Returns:
        Its event, and its ε by both accountants; None: no guarantee.

    Raises:
        PipelineError: a number is missing, or no accountant could say something of it in a bounded time.
    """
    for place, query in enumerate(mechanism.queries):
        if query.what not in query_types():
            raise PipelineError(f"{path}: not as declared: queries.{place}.what (no query of this project)")
    multiplier = given(path, "noise_multiplier", mechanism.noise_multiplier)
    q = given(path, "sampling_probability", mechanism.sampling_probability)
    rounds = given(path, "rounds", mechanism.rounds)
    if rounds > MOST_ROUNDS:
        raise PipelineError(f"{path}: rounds: found {rounds}, allowed are up to {MOST_ROUNDS}")
    if not by.private:
        return dp_event.NonPrivateDpEvent(), {"epsilon": None, "epsilon_rdp": None}
    if multiplier < LEAST_NOISE:
        raise PipelineError(f"{path}: private: true, yet without noise (≥ {LEAST_NOISE:g})")
    queries = tuple(query.noise_multiplier for query in mechanism.queries)
    if min(queries, default=LEAST_NOISE) < LEAST_NOISE:
        raise PipelineError(f"{path}: private: true, yet a query without noise (≥ {LEAST_NOISE:g})")
    delta = given(path, "delta", by.delta)
    whole = accounting.Training(q, multiplier, rounds, queries)
    spent = whole.spent(delta)
    for query in mechanism.queries:
        alone = GaussianQuery(query.what, query.sensitivity, query.noise_multiplier).statement(delta)
        refuse_unless_equal(path, f"queries: {query.what}: epsilon", query.epsilon, alone.epsilon, by)
    return whole.event, {"epsilon": finite(spent.epsilon_pld), "epsilon_rdp": finite(spent.epsilon_rdp)}


def check_part(path: Path, number: int, statement: Statement) -> None:
    """Account one of the mechanisms of a statement again; without a guarantee there is nothing to account.

    Args:
        path: its file, for messages.
        number: of the mechanism, from 0.
        statement: what was read from it.

    Raises:
        PipelineError: one line; names the key.
    """
    if not statement.private:
        return
    part = statement.mechanisms[number]
    event, numbers = accounted(path, part, statement)
    if part.event != event_to_json(event):
        raise PipelineError(f"{path}: mechanisms.{number}: event: not that of the mechanism that it describes")
    refuse_unless_equal(path, f"mechanisms.{number}: epsilon", part.epsilon, numbers["epsilon"], statement)


def check_together(path: Path, statement: Statement) -> None:
    """Account the mechanisms of a statement together again.

    Args:
        path: its file, for messages.
        statement: each of whose mechanisms was checked.

    Raises:
        PipelineError: one line; names the key.
    """
    joint = joint_event([part.event for part in statement.mechanisms])
    if statement.event != event_to_json(joint):
        raise PipelineError(f"{path}: event: not that of the mechanisms in the same file together")
    if statement.private:
        spent = accounting.compose([joint], given(path, "delta", statement.delta))
        numbers = {"epsilon": finite(spent.epsilon_pld), "epsilon_rdp": finite(spent.epsilon_rdp)}
        check_figures(path, statement, numbers)


def check_figures(path: Path, statement: Statement, numbers: Mapping[str, float | None]) -> None:
    """Compare a statement's figures with what the accountant makes of its event.

    Args:
        path: its file, for the message.
        statement: whose event was checked.
        numbers: keys and ε of that event.

    Raises:
        PipelineError: one line; names the key.
    """
    for key, number in numbers.items():
        refuse_unless_equal(path, key, getattr(statement, key), number, statement)
    if statement.private and (wrong := misstated(statement)) is not None:
        raise PipelineError(f"{path}: {wrong}: not what the accountant makes of the event in the same file")


def check_ledger(path: Path, ledger: LedgerStatement, of: Path, statement: Statement) -> None:
    """Account every record of a ledger's statement again, all of them together, and what the model's statement repeats.

    Args:
        path: of the ledger's statement, for messages.
        ledger: what was read from it.
        of: file of the model's statement, for messages.
        statement: what was read from that.

    Raises:
        PipelineError: one line; names the record and the key.
    """
    _refuse_other_accountant(path, ledger.accountant)
    for key in ("dataset_fingerprint", "unit", "neighboring_relation"):
        if getattr(ledger, key) != getattr(statement, key):
            raise PipelineError(f"{path}: {key}: differs from {of.name}: the ledger speaks of other data")
    if ledger.charges != len(ledger.records):
        raise PipelineError(f"{path}: charges: not the number of records")
    for place, record in enumerate(ledger.records):
        alone = finite(fixed_epsilon(event_from_json(record.event), record.delta))
        refuse_unless_equal(path, f"records.{place}.epsilon", record.epsilon, alone, ledger)
    account = given(of, "spent_on_dataset", statement.spent_on_dataset)
    if ledger.delta != account.delta:
        raise PipelineError(f"{path}: delta: found {ledger.delta!r}, allowed is {account.delta!r}, as in {of.name}")
    for key, number in figures(_events(ledger), ledger.delta).items():
        refuse_unless_equal(path, key, getattr(ledger, key), number, ledger)
    check_charge(path, ledger, of, statement)
    check_account(of, ledger, statement)


def check_charge(path: Path, ledger: LedgerStatement, of: Path, statement: Statement) -> ChargeRecord:
    """Find the charge that paid for what a statement speaks of.

    Args:
        path: of the ledger's statement, for messages.
        ledger: what was read from it.
        of: file of the statement, for messages.
        statement: what was read from that.

    Raises:
        PipelineError: there is no committed charge with its id and event on this version of the data, or the account
            that the statement repeats does not count it.
    """
    return find_charge(path, ledger, of, statement.charge, statement.event, statement)


def find_charge(
    path: Path, ledger: LedgerStatement, of: Path, charge: str | None, event: dict[str, Any], by: Statement
) -> ChargeRecord:
    """As `check_charge`, for the id and event of a charge that the statement ``by`` names."""
    places = [place for place, record in enumerate(ledger.records) if record.id == charge]
    own = ledger.records[places[0]] if len(places) == 1 else None
    if own is None or own.event != event or own.state != "committed" or not own.same_version:
        raise PipelineError(f"{path}: found no committed charge with the id and event of {of.name}")
    account = given(of, "spent_on_dataset", by.spent_on_dataset)
    if not places[0] < account.charges <= ledger.charges:  # oldest first; its own among them
        raise PipelineError(f"{of}: spent_on_dataset: charges: not a number of charges that {LEDGER} has")
    return own


def check_account(of: Path, ledger: LedgerStatement, statement: Statement) -> None:
    """Account again what a statement says was spent on the dataset: the oldest of the ledger's charges, together.

    Args:
        of: file of the statement, for messages.
        ledger: every record of which was checked.
        statement: whose charge was found.

    Raises:
        PipelineError: one line; names the key.
    """
    account = given(of, "spent_on_dataset", statement.spent_on_dataset)
    for key, number in figures(_events(ledger)[: account.charges], account.delta).items():
        refuse_unless_equal(of, f"spent_on_dataset: {key}", getattr(account, key), number, statement)


def _events(ledger: LedgerStatement) -> list[dp_event.DpEvent]:
    return [seen(event_from_json(record.event), record.units_each) for record in ledger.records]


def given(path: Path, key: str, value: Value | None) -> Value:
    """A value of the statement that is null where nothing was asked through a mechanism.

    Raises:
        PipelineError: it is null.
    """
    if value is None:
        raise PipelineError(f"{path}: not as declared: {key} (null); the statement of a mechanism has it")
    return value


def _refuse_other_accountant(path: Path, found: Accountant) -> None:
    if found.name != OURS.name:
        raise PipelineError(f"{path}: accountant: name: found {printable(found.name)}, allowed is {OURS.name}")


def refuse_unless_equal(path: Path, key: str, stated: float | None, accounted: float | None, by: Any) -> None:
    """Refuse an ε (None: infinite) that is not what the accountant makes of the events in the same file.

    The same version makes the same figure. One of another version may be higher, and lower by `TOLERANCE`.
    """
    same = by.accountant == OURS
    if stated is None or accounted is None:
        agrees = stated is None and (accounted is None or not same)
    elif same:
        agrees = math.isclose(stated, accounted, rel_tol=ROUNDING, abs_tol=1e-12)
    else:
        agrees = accounted <= stated * (1 + TOLERANCE)
    if not agrees:
        less = accounted is None or (stated is not None and stated < accounted)
        version = "" if same else f" by version {printable(by.accountant.version)}"
        raise PipelineError(
            f"{path}: {key}: {'less' if less else 'more'} than the accountant makes of the events in the same bundle: "
            f"found {_shown(stated)}{version}, allowed is {_shown(accounted)}; make the bundle again"
        )


def _shown(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else f"{epsilon!r}"
