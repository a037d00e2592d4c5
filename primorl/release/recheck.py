"""Accounting again what a bundle states: no figure is believed, and none may be lower than the accountant makes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from dp_accounting import dp_event

from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.ledger.account import fixed_epsilon, seen, total_of
from primorl.privacy.mechanism.queries import GaussianQuery, query_types
from primorl.privacy.statement import NOTHING_READ, Accountant, MechanismStatement, SpentOnDataset, Statement
from primorl.privacy.together import joint_event
from primorl.project.errors import PipelineError
from primorl.project.files import finite
from primorl.project.records import printable
from primorl.release.contents import LEAST_NOISE, LEDGER, MOST_ROUNDS, LedgerStatement
from primorl.release.stated_figures import OURS, agrees, misstated
from primorl.training import head_queries as _head_queries  # noqa: F401 - registers its queries, and those of networks

Value = TypeVar("Value")


def check_statement(path: Path, statement: Statement) -> None:
    """Check that a statement, read from ``path``, agrees with itself, and account its events again."""
    _refuse_other_accountant(path, statement.accountant)
    delta = given(path, "delta", statement.delta)
    largest = max(delta, spent(path, statement).delta)
    if statement.private and largest >= 1 / statement.units and not statement.void:
        raise PipelineError(f"{path}: delta: {largest!r} is not below one over the units, and void does not say so")
    if statement.mechanisms:
        _check_mechanisms(path, statement, delta)
        return
    event, numbers = _accounted(path, statement, statement, delta)
    if statement.event != event_to_json(event):
        raise PipelineError(f"{path}: event: not that of the mechanism the same file describes")
    _check_figures(path, statement, numbers)


def _check_mechanisms(path: Path, statement: Statement, delta: float) -> None:
    for number, part in enumerate(statement.mechanisms):
        if statement.private:
            event, numbers = _accounted(path, part, statement, delta)
            if part.event != event_to_json(event):
                raise PipelineError(f"{path}: mechanisms.{number}: event: not that of the mechanism that it describes")
            _refuse_unless_equal(path, f"mechanisms.{number}: epsilon", part.epsilon, numbers["epsilon"], statement)
    joint = joint_event([part.event for part in statement.mechanisms])
    if statement.event != event_to_json(joint):
        raise PipelineError(f"{path}: event: not that of the mechanisms in the same file together")
    if statement.private:
        total = accounting.compose([joint], delta)
        numbers = {"epsilon": finite(total.epsilon_pld), "epsilon_rdp": finite(total.epsilon_rdp)}
        _check_figures(path, statement, numbers)


def _accounted(
    path: Path, mechanism: Statement | MechanismStatement, by: Statement, delta: float
) -> tuple[dp_event.DpEvent, dict[str, float | None]]:
    """Account a mechanism in the statement ``by`` again from its numbers: its event, and its ε by both accountants."""
    if mechanism.event == NOTHING_READ:
        return dp_event.NoOpDpEvent(), {"epsilon": 0.0, "epsilon_rdp": 0.0}
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
    queries = tuple(query.noise_multiplier for query in mechanism.queries)
    if multiplier < LEAST_NOISE:
        raise PipelineError(f"{path}: private: true, yet without noise (≥ {LEAST_NOISE:g})")
    if min(queries, default=LEAST_NOISE) < LEAST_NOISE:
        raise PipelineError(f"{path}: private: true, yet a query without noise (≥ {LEAST_NOISE:g})")
    for query in mechanism.queries:
        alone = GaussianQuery(query.what, query.sensitivity, query.noise_multiplier).statement(delta)
        _refuse_unless_equal(path, f"queries: {query.what}: epsilon", query.epsilon, alone.epsilon, by)
    whole = accounting.Training(q, multiplier, rounds, queries)
    total = whole.spent(delta)
    return whole.event, {"epsilon": finite(total.epsilon_pld), "epsilon_rdp": finite(total.epsilon_rdp)}


def _check_figures(path: Path, statement: Statement, numbers: dict[str, float | None]) -> None:
    for key, number in numbers.items():
        _refuse_unless_equal(path, key, getattr(statement, key), number, statement)
    if statement.private and (wrong := misstated(statement)) is not None:
        raise PipelineError(f"{path}: {wrong}: not what the accountant makes of the event in the same file")


def check_ledger(path: Path, ledger: LedgerStatement, of: Path, model: Statement) -> None:
    """Account every record of a ledger's statement again, and all of them together.

    Args:
        path: of the ledger's statement, for messages.
        ledger: read from it; of the same data as the model.
        of: file of the model's statement, for messages.
        model: read from that.
    """
    _refuse_other_accountant(path, ledger.accountant)
    for key in ("dataset_fingerprint", "unit", "neighboring_relation"):
        if getattr(ledger, key) != getattr(model, key):
            raise PipelineError(f"{path}: {key}: differs from {of.name}: the ledger speaks of other data")
    if ledger.charges != len(ledger.records):
        raise PipelineError(f"{path}: charges: not the number of records")
    for place, record in enumerate(ledger.records):
        alone = finite(fixed_epsilon([event_from_json(record.event)], record.delta))
        _refuse_unless_equal(path, f"records.{place}.epsilon", record.epsilon, alone, ledger)
    for key, number in account_figures(_events(ledger), ledger.delta).items():
        _refuse_unless_equal(path, key, getattr(ledger, key), number, ledger)


def check_payment(
    of: Path, statement: Statement, ledger: LedgerStatement, paid: Statement | MechanismStatement
) -> None:
    """Check that a committed charge paid for a mechanism, and account again what had been spent on the dataset by then.

    Args:
        of: file of the statement, for messages.
        statement: has the account.
        ledger: every record of which was checked.
        paid: the statement itself, or that of a mechanism in it.

    Raises:
        PipelineError: there is no such charge on this version of the data, the account does not count it, or the
            account is not that of the ledger's oldest charges together.
    """
    account = spent(of, statement)
    places = [place for place, record in enumerate(ledger.records) if record.id == paid.charge]
    own = ledger.records[places[0]] if len(places) == 1 else None
    if own is None or own.event != paid.event or own.state != "committed" or not own.same_version:
        raise PipelineError(f"{of}: charge: found no committed charge with the id and event in {LEDGER}")
    if not places[0] < account.charges <= ledger.charges:  # oldest first; its own among them
        raise PipelineError(f"{of}: spent_on_dataset: charges: not a number of charges that {LEDGER} has")
    if account.delta != ledger.delta:
        raise PipelineError(f"{of}: spent_on_dataset: delta: differs from {LEDGER}; run `dvc repro`")
    for key, number in account_figures(_events(ledger)[: account.charges], account.delta).items():
        _refuse_unless_equal(of, f"spent_on_dataset: {key}", getattr(account, key), number, statement)


def account_figures(events: Sequence[dp_event.DpEvent], delta: float) -> dict[str, float | None]:
    """Keys of an account's total and what the accountant makes of ``events`` at ``delta``; None: no guarantee."""
    total = total_of(events, delta)
    return {key: finite(getattr(total, key)) for key in ("epsilon", "epsilon_fixed", "epsilon_rdp")}


def _events(ledger: LedgerStatement) -> list[dp_event.DpEvent]:
    return [seen(event_from_json(record.event), record.units_each) for record in ledger.records]


def given(path: Path, key: str, value: Value | None) -> Value:
    """Refuse null for a value of a statement that only a statement without a mechanism leaves out."""
    if value is None:
        raise PipelineError(f"{path}: not as declared: {key} (null); the statement of a mechanism has it")
    return value


def spent(path: Path, statement: Statement) -> SpentOnDataset:
    """The account of the dataset in a statement, which must have one."""
    return given(path, "spent_on_dataset", statement.spent_on_dataset)


def _refuse_other_accountant(path: Path, found: Accountant) -> None:
    if found.name != OURS.name:
        raise PipelineError(f"{path}: accountant: name: found {printable(found.name)}, allowed is {OURS.name}")


def _refuse_unless_equal(path: Path, key: str, stated: float | None, accounted: float | None, by: Any) -> None:
    if agrees(stated, accounted, by.accountant, least=1e-12):
        return
    less = accounted is None or (stated is not None and stated < accounted)
    version = "" if by.accountant == OURS else f" by version {printable(by.accountant.version)}"
    shown, allowed = ("infinite" if epsilon is None else repr(epsilon) for epsilon in (stated, accounted))
    raise PipelineError(
        f"{path}: {key}: {'less' if less else 'more'} than the accountant makes of the events in the same bundle: "
        f"found {shown}{version}, allowed is {allowed}; make the bundle again"
    )
