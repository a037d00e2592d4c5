"""What is spent is written down before it is spent, adds up over whoever shares units, and never passes the budget."""

import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.privacy.accounting.epsilon import compose, training_event
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.ledger.ledger import Budget, BudgetExceeded, Charge, Ledger, Version
from primorl.project.errors import PipelineError
from tests.privacy.ledger.ledgers import DELTA, GAUSSIAN, adaptive, opened, request, version

ANA, BEN, CEM = "abc", "bcd", "xyz"  # members of three versions; the first two share units
NO_GUARANTEE = dp_event.NonPrivateDpEvent()


@pytest.fixture
def ledger(ledger_url: str, tmp_path: Path) -> Iterator[Ledger]:
    with closing(opened(ledger_url, tmp_path)) as found:
        yield found


@pytest.fixture
def one_file(tmp_path: Path) -> Iterator[Ledger]:
    with closing(opened(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path)) as found:
        yield found


def epsilon(*events: dp_event.DpEvent) -> float:
    return compose(events, DELTA).epsilon_pld


# What is written down


def test_a_charge_is_everything_that_was_asked_and_survives_the_object(
    ledger: Ledger, ledger_url: str, tmp_path: Path
) -> None:
    data, event = version(ANA), training_event(0.1, 20.0, 150)
    first = ledger.reserve(request(data, event, identity="one"), None)
    second = ledger.reserve(request(data, NO_GUARANTEE, identity="two"), None)
    third = ledger.reserve(request(version(CEM), dataset="cartpole"), None)
    assert (first.dataset, first.stage, first.identity, first.state) == ("pendulum", "train_model", "one", "reserved")
    assert (first.dataset_fingerprint, first.unit, first.units) == (data.fingerprint, "trajectory", 3)
    assert (first.delta, first.git_commit, first.mlflow_run, first.note) == (DELTA, "c0ffee", None, None)
    assert event_from_json(first.event) == event
    assert first.epsilon == pytest.approx(epsilon(event))
    assert second.epsilon is None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", first.time)
    ledger.commit(first.id)
    ledger.abort(second.id, "training diverged")

    with closing(opened(ledger_url, tmp_path)) as again:
        charges = again.charges()
        assert charges == ledger.charges()
        assert [(charge.id, charge.state, charge.note) for charge in charges] == [
            (first.id, "committed", None),
            (second.id, "aborted", "training diverged"),
            (third.id, "reserved", None),
        ]
        assert again.verify() == 7  # two versions, three reservations, two ends
        found = [(known.fingerprint, known.unit, known.units) for known, _ in again.accounts().values()]
        assert found == [(each.fingerprint, each.unit, each.units) for each in (data, version(CEM))]


def test_the_export_is_what_stands_in_the_database(ledger: Ledger) -> None:
    charge = ledger.reserve(request(version(ANA)), None)
    ledger.commit(charge.id)
    exported = ledger.export()
    assert [json.loads(record["body"])["kind"] for record in exported] == ["version", "reserved", "committed"]
    assert [record["sequence"] for record in exported] == [1, 2, 3]
    assert exported[1]["previous"] == exported[0]["hash"]
    event = json.loads(exported[1]["body"])["event"]
    assert event_from_json(event) == GAUSSIAN
    assert version(ANA).members.hex() not in json.dumps(exported)


def test_what_cannot_be_accounted_again_is_not_written(one_file: Ledger) -> None:
    repeated = dp_event.ComposedDpEvent([GAUSSIAN])
    with pytest.raises(ValueError, match="does not survive being written down"):  # a list cannot be counted
        one_file.reserve(request(version(ANA), repeated), None)
    with pytest.raises(ValueError, match="unknown event type 'NoOpDpEvent'"):
        one_file.reserve(request(version(ANA), dp_event.NoOpDpEvent()), None)
    with pytest.raises(ValueError, match="found inf"):
        one_file.reserve(request(version(ANA), dp_event.GaussianDpEvent(float("inf"))), None)
    for members in (b"", b"x" * 17):
        with pytest.raises(
            PipelineError, match=f"members: found {len(members)} bytes, allowed are whole digests of 16"
        ):
            one_file.reserve(request(Version("f", "trajectory", 1, members)), None)
    assert one_file.verify() == 0


# Ends of a charge


def test_committing_twice_is_committing_once(ledger: Ledger) -> None:
    charge = ledger.reserve(request(version(ANA)), None)
    ledger.commit(charge.id)
    ledger.commit(charge.id)
    assert ledger.verify() == 3


def test_a_charge_ends_once(one_file: Ledger) -> None:
    done, failed = (one_file.reserve(request(version(ANA)), None).id for _ in range(2))
    one_file.commit(done)
    one_file.abort(failed, "diverged")
    with pytest.raises(PipelineError, match=rf"charge {done}: already committed, it cannot be aborted"):
        one_file.abort(done, "too late")
    with pytest.raises(PipelineError, match=rf"charge {failed}: already aborted, it cannot be committed"):
        one_file.commit(failed)
    with pytest.raises(PipelineError, match=rf"charge {failed}: already aborted, it cannot be aborted"):
        one_file.abort(failed, "again")
    for end in (one_file.commit, lambda unknown: one_file.abort(unknown, "why")):
        with pytest.raises(PipelineError, match="charge 1234: not in the ledger; `primorl ledger show`"):
            end("1234")


# The budget


def test_a_sweep_of_ten_under_a_budget_for_seven(ledger: Ledger) -> None:
    """Whatever becomes of the seven, three are refused, and refusing writes nothing."""
    event = training_event(0.1, 20.0, 150)
    budget = Budget(adaptive(*[event] * 7), DELTA)
    granted, refused = [], 0
    for seed in range(10):
        try:
            granted.append(ledger.reserve(request(version(ANA), event, identity=str(seed)), budget))
        except BudgetExceeded:
            refused += 1
            continue
        if seed % 3 == 0:
            ledger.commit(granted[-1].id)
        elif seed % 3 == 1:
            ledger.abort(granted[-1].id, "diverged")
    assert (len(granted), refused) == (7, 3)
    assert len(ledger.charges()) == 7
    assert ledger.verify() == 1 + 7 + 3 + 2
    spent = ledger.account(version(ANA)).total(DELTA)
    assert (spent.epsilon, spent.charges) == (budget.epsilon, 7)
    assert spent.epsilon_fixed == compose([event] * 7, DELTA).epsilon_pld
    assert spent.epsilon_fixed < spent.epsilon < 1.04 * spent.epsilon_fixed < spent.epsilon_rdp


def test_the_refusal_says_what_is_left_and_what_it_suggests_fits(one_file: Ledger) -> None:
    event = training_event(0.1, 20.0, 150)
    budget = Budget(0.35, DELTA)
    one_file.reserve(request(version(ANA), event), budget)
    one_file.reserve(request(version(ANA), event), budget)
    with pytest.raises(BudgetExceeded) as refused:
        one_file.reserve(request(version(ANA), event), budget)
    said = re.fullmatch(
        r"dataset 'pendulum': privacy.budget is ε 0.35 at δ 1e-05, of which (\S+) is spent \(2 charged\) and (\S+) is "
        r"left; with this run it would be (\S+); still fitting: noise_multiplier (\S+) with these 150 rounds: "
        r"`dvc exp run -S privacy.target_epsilon=null -S privacy.noise_multiplier=(\S+)` or (\d+) rounds with this "
        r"noise_multiplier 20: `dvc exp run -S privacy.target_epsilon=null -S privacy.noise_multiplier=20.0 -S "
        r"privacy.rounds=(\d+)`",
        str(refused.value),
    )
    assert said is not None
    spent, left, wanted, multiplier, pasted, rounds, same = map(float, said.groups())
    assert (pasted, same) == (multiplier, rounds), "what is to be pasted is what is said"
    assert spent == pytest.approx(adaptive(event, event), rel=1e-5)
    assert left == pytest.approx(0.35 - spent, abs=1e-5)
    assert wanted == pytest.approx(adaptive(event, event, event), rel=1e-5)
    for smaller in (training_event(0.1, multiplier, 150), training_event(0.1, 20.0, int(rounds))):
        assert adaptive(event, event, smaller) <= 0.35
    for larger in (training_event(0.1, 0.98 * multiplier, 150), training_event(0.1, 20.0, int(rounds) + 2)):
        assert adaptive(event, event, larger) > 0.35
    one_file.reserve(request(version(ANA), training_event(0.1, multiplier, 150)), budget)


def test_the_refusal_says_when_nothing_fits(one_file: Ledger) -> None:
    event = training_event(0.1, 20.0, 150)
    with pytest.raises(BudgetExceeded, match=r"0 is spent .* still fitting"):
        one_file.reserve(request(version(ANA), event), Budget(0.1, DELTA))
    one_file.reserve(request(version(ANA), event), None)
    with pytest.raises(BudgetExceeded, match=r"\(1 charged\) and 0 is left; .*; nothing fits any more$"):
        one_file.reserve(request(version(ANA), event), Budget(0.1, DELTA))
    with pytest.raises(BudgetExceeded, match=r"no smaller run was found that fits$"):  # there is none to look for
        one_file.reserve(request(version(CEM), GAUSSIAN), Budget(0.1, DELTA))


def test_a_run_without_a_guarantee_fits_no_budget_and_is_counted_without_one(one_file: Ledger) -> None:
    large = Budget(1e6, DELTA)
    with pytest.raises(
        BudgetExceeded, match=r"with this run it would be ∞ .*; a run without a guarantee fits no budget$"
    ):
        one_file.reserve(request(version(ANA), NO_GUARANTEE), large)
    assert one_file.charges() == []
    one_file.reserve(request(version(ANA), NO_GUARANTEE), None)
    assert one_file.account(version(ANA)).epsilon(DELTA) == float("inf")
    with pytest.raises(BudgetExceeded, match=r"∞ .* is spent .* nothing fits any more$"):
        one_file.reserve(request(version(ANA)), large)
    one_file.reserve(request(version(CEM)), large)  # others' data are not concerned


def test_the_budget_is_read_at_its_own_delta(one_file: Ledger) -> None:
    """ε at a tenth of δ is larger, and that is where the budget was set."""
    strict = Budget(epsilon(GAUSSIAN), DELTA / 10)
    with pytest.raises(BudgetExceeded):
        one_file.reserve(request(version(ANA)), strict)
    one_file.reserve(request(version(ANA)), Budget(strict.epsilon, DELTA))


# Who shares


@pytest.mark.parametrize(
    ("other", "shares"),
    [
        (version(["id a", "rows A"]), True),
        (version(["id a", "rows B"]), True),  # the same person came back with other rows
        (version(["id q", "rows A"]), True),  # the same rows under another name
        (version(["id q", "rows B", "id z", "rows Z", "id a", "rows Q"]), True),  # one of many
        (version(["id q", "rows B"]), False),
        (version(["id q", "rows B"], version(["id a", "rows A"]).fingerprint), False),
    ],
)
def test_a_version_shares_spending_exactly_if_it_shares_a_unit(ledger: Ledger, other: Version, shares: bool) -> None:
    data, budget = version(["id a", "rows A"]), Budget(epsilon(GAUSSIAN), DELTA)
    first = ledger.reserve(request(data, dataset="one"), budget)
    assert ledger.account(other).charges == ([first] if shares else [])  # also before it is registered
    assert ledger.account(other).epsilon(DELTA) == (budget.epsilon if shares else 0.0)
    if shares:
        with pytest.raises(BudgetExceeded):
            ledger.reserve(request(other, dataset="two"), budget)
        ledger.reserve(request(other, dataset="two"), None)
        assert len(ledger.account(data).charges) == 2
    else:
        ledger.reserve(request(other, dataset="two"), budget)
        assert ledger.account(data).charges == [first]


def test_a_version_in_between_pays_for_both_sides_and_joins_them_no_further(one_file: Ledger) -> None:
    left, middle, right = version("ab"), version("bc"), version("cd")
    one = one_file.reserve(request(left), None)
    two = one_file.reserve(request(right), None)
    three = one_file.reserve(request(middle), None)
    assert one_file.account(left).charges == [one, three]
    assert one_file.account(middle).charges == [one, two, three]
    assert one_file.account(right).charges == [two, three]
    assert until(one_file, middle, three) == [one, two, three]
    assert until(one_file, right, two) == [two]  # what came later is not part of it
    four = one_file.reserve(request(right), None)
    assert until(one_file, right, four) == [two, three, four]


def until(ledger: Ledger, on: Version, charge: Charge) -> list[Charge]:
    """The charges of a version's account, up to this one."""
    account = ledger.account(on)
    assert [each for each, _ in account.running(DELTA)] == account.charges
    return account.charges[: account.charges.index(charge) + 1]


# Whatever happens

_EVENTS = [GAUSSIAN, dp_event.GaussianDpEvent(8.0), NO_GUARANTEE]
_DATA = [version(members) for members in (ANA, BEN, CEM)]
_BUDGETS = [Budget(1.0, DELTA), Budget(1.6, DELTA)]
_steps = st.one_of(
    st.tuples(st.just("reserve"), st.sampled_from(_EVENTS), st.sampled_from(_DATA)),
    st.tuples(st.sampled_from(["commit", "abort"]), st.integers(0, 9), st.none()),
)


@settings(max_examples=12, deadline=None)
@given(steps=st.lists(_steps, max_size=12), budget=st.sampled_from(_BUDGETS))
def test_spent_never_decreases_and_never_passes_the_budget(steps: list[tuple[str, Any, Any]], budget: Budget) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = opened(f"sqlite:///{folder}/ledger.db", Path(folder))
        before = [0.0] * len(_DATA)
        for what, which, data in steps:
            ids = [charge.id for charge in ledger.charges()]
            try:
                if what == "reserve":
                    ledger.reserve(request(data, which), budget)
                elif ids:
                    (ledger.commit if what == "commit" else lambda i: ledger.abort(i, "n"))(ids[which % len(ids)])
            except PipelineError:
                assert len(ledger.charges()) == len(ids)
            now = [ledger.account(data).epsilon(DELTA) for data in _DATA]
            assert all(later >= earlier for later, earlier in zip(now, before, strict=True))
            assert max(now) <= budget.epsilon
            before = now
        opened(f"sqlite:///{folder}/ledger.db", Path(folder)).verify()


def killed_after(action: str, url: str, folder: Path) -> None:
    """A process that reserves and dies by kill -9: afterwards, or in the middle of the database's transaction."""
    child = os.fork()
    if child == 0:
        try:
            ledger = opened(url, folder)
            if action == "in the transaction":
                from sqlalchemy import event

                event.listen(ledger._store._engine, "commit", lambda _: os.kill(os.getpid(), signal.SIGKILL))
            ledger.reserve(request(version(ANA)), None)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_run_that_dies_after_reserving_has_spent(ledger_url: str, tmp_path: Path) -> None:
    budget = Budget(epsilon(GAUSSIAN), DELTA)
    killed_after("afterwards", ledger_url, tmp_path)
    with closing(opened(ledger_url, tmp_path)) as ledger:
        assert [charge.state for charge in ledger.charges()] == ["reserved"]
        with pytest.raises(BudgetExceeded):
            ledger.reserve(request(version(ANA)), budget)


def test_a_reservation_that_dies_half_written_never_was(ledger_url: str, tmp_path: Path) -> None:
    opened(ledger_url, tmp_path).reserve(request(version(CEM)), None)
    killed_after("in the transaction", ledger_url, tmp_path)
    with closing(opened(ledger_url, tmp_path)) as ledger:
        assert ledger.verify() == 2
        assert ledger.account(version(ANA)).charges == []
        ledger.reserve(request(version(ANA)), None)
        assert ledger.verify() == 4


def test_a_charge_is_resumed_under_its_last_token_alone(ledger: Ledger) -> None:
    """Of two copies of a checkpoint, the second asks with a token that is no longer the last."""
    charge = ledger.reserve(request(version(ANA)), None).id
    never = ledger.last_take(charge)
    assert ledger.take(charge, never, "first")
    assert not ledger.take(charge, never, "second")
    assert ledger.take(charge, "first", "third")
    ledger.commit(charge)
    assert not ledger.take(charge, "third", "fourth"), "it has ended"
