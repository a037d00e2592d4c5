"""What is spent is written down before it is spent, adds up over whoever shares units, and never
passes the budget.
"""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from dp_accounting import dp_event

from primorl.base import PipelineError
from primorl.privacy.accounting.epsilon import Training, compose, event_from_json
from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.ledger.history import Budget, BudgetExceeded, Version
from primorl.privacy.ledger.ledger import Ledger
from tests.privacy.ledger.ledgers import DELTA, GAUSSIAN, adaptive, opened, request, version

ANA, BEN, CEM = (version(members) for members in ("abc", "bcd", "xyz"))  # the first two share units
NO_GUARANTEE = dp_event.NonPrivateDpEvent()
RUN = Training(0.1, 20.0, 150).event


@pytest.fixture
def ledger(ledger_url: str, tmp_path: Path) -> Ledger:
    return opened(ledger_url, tmp_path)


@pytest.fixture
def one_file(tmp_path: Path) -> Ledger:
    return opened(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path)


def epsilon(*events: dp_event.DpEvent) -> float:
    return compose(events, DELTA).epsilon_pld


def test_a_charge_is_all_that_was_asked_and_survives(
    ledger: Ledger, ledger_url: str, tmp_path: Path
) -> None:
    first = ledger.reserve(request(ANA, RUN, identity="one"), None)
    second = ledger.reserve(request(ANA, NO_GUARANTEE, identity="two"), None)
    ledger.reserve(request(CEM, dataset="cartpole"), None)
    asked = request(ANA, RUN, identity="one")
    named = ("dataset", "stage", "identity", "delta")
    assert all(getattr(first, key) == getattr(asked, key) for key in named)
    assert (first.dataset_fingerprint, first.units) == (ANA.fingerprint, 3)
    assert event_from_json(first.event) == RUN
    assert first.epsilon == pytest.approx(epsilon(RUN))
    assert second.epsilon is None
    ledger.commit(first.id)
    ledger.commit(first.id)  # twice is once
    with closing(opened(ledger_url, tmp_path)) as again:
        assert again.charges() == ledger.charges()
        assert [charge.state for charge in again.charges()] == ["committed", *["reserved"] * 2]
        assert again.verify() == 6  # two versions, three reservations, one end
        versions = [known.fingerprint for known, _ in again.accounts().values()]
        assert versions == [ANA.fingerprint, CEM.fingerprint]
        records = again._store.read()
    with pytest.raises(PipelineError, match="charge 1234: not in the ledger"):
        ledger.commit("1234")
    assert records[1].previous == records[0].hash
    assert event_from_json(json.loads(records[1].body)["event"]) == RUN
    assert ANA.members.hex() not in str(records)


def test_a_sweep_of_ten_under_a_budget_for_seven(ledger: Ledger) -> None:
    budget = Budget(adaptive(*[RUN] * 7), DELTA)
    granted, refused = [], 0
    for seed in range(10):
        try:
            granted.append(ledger.reserve(request(ANA, RUN, identity=str(seed)), budget).id)
        except BudgetExceeded:
            refused += 1
            continue
        if seed % 2 == 0:
            ledger.commit(granted[-1])
    assert (len(granted), refused, len(ledger.charges())) == (7, 3, 7)
    assert ledger.verify() == 1 + 7 + 4
    spent = ledger.account(ANA).epsilon(DELTA)
    assert spent == budget.epsilon
    assert epsilon(*[RUN] * 7) < spent < 1.04 * epsilon(*[RUN] * 7)


def test_the_refusal_says_what_is_left(one_file: Ledger) -> None:
    """Also where nothing fits, or nothing is guaranteed."""
    left = r"of which (\S+) .*is spent.* and (\S+) is left; .* it would be ([^\s;]+)"

    def refused(event: dp_event.DpEvent, budget: Budget, data: Version = ANA) -> list[float]:
        with pytest.raises(BudgetExceeded) as no:
            one_file.reserve(request(data, event), budget)
        (said,) = re.findall(left, str(no.value))
        return [float(number.replace("∞", "inf")) for number in said]

    budget, endless = Budget(0.35, DELTA), Budget(900.0, DELTA)
    assert refused(RUN, Budget(0.1, DELTA))[0] == 0
    assert refused(NO_GUARANTEE, endless)[2] == float("inf")
    for _ in range(2):
        one_file.reserve(request(ANA, RUN), budget)
    spent = adaptive(RUN, RUN)
    told = at_most(spent), left_of(0.35, spent), at_most(adaptive(RUN, RUN, RUN))
    assert refused(RUN, budget) == [float(number) for number in told]
    one_file.reserve(request(ANA, NO_GUARANTEE), None)
    assert refused(GAUSSIAN, endless)[0] == float("inf")
    # ε at a tenth of δ is larger, and that is where it was set.
    strict = Budget(epsilon(GAUSSIAN), DELTA / 10)
    refused(GAUSSIAN, strict, CEM)
    one_file.reserve(request(CEM), Budget(strict.epsilon, DELTA))  # others' data are not concerned


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
def test_a_version_shares_spending_exactly_if_it_shares_a_unit(
    one_file: Ledger, other: Version, shares: bool
) -> None:
    data, budget = version(["id a", "rows A"]), Budget(epsilon(GAUSSIAN), DELTA)
    first = one_file.reserve(request(data, dataset="one"), budget)
    # Also before it is registered.
    assert one_file.account(other).charges == ([first] if shares else [])
    assert one_file.account(other).epsilon(DELTA) == (budget.epsilon if shares else 0.0)
    if shares:
        with pytest.raises(BudgetExceeded):
            one_file.reserve(request(other, dataset="two"), budget)
    one_file.reserve(request(other, dataset="two"), None if shares else budget)
    assert len(one_file.account(data).charges) == (2 if shares else 1)
