"""No line that is printed promises more than is true: what is spent is rounded up, what is left is rounded down."""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from primorl.commands import audit, frontier, ledger, plan
from primorl.evaluation.wording import account, guarantee, source
from primorl.privacy.accounting.epsilon import Spent, compose, training_event
from primorl.privacy.accounting.rounding import at_least, at_most, left_of, percent_at_most
from primorl.privacy.audits.bounds import LowerBound
from primorl.privacy.ledger.account import Account, Total
from primorl.privacy.ledger.budget_advice import advice
from primorl.privacy.ledger.ledger import Budget, BudgetExceeded
from primorl.project.errors import PipelineError
from primorl.setup import audits
from tests.privacy.ledger.ledgers import DELTA, opened, request, version
from tests.release.test_card import RECORD, STATEMENT, card

AWKWARD = [0.50000001, 0.123456789, 1.00049, 2.99999999, 19.9995001, 1234.5678, 3.00000049e-7]
BUDGET = 25.0000001


def numbers(text: str, before: str) -> Iterator[Decimal]:
    """The numbers that follow a word in a text; ∞ is left out."""
    for found in re.findall(rf"{before}\s*=?\s*(\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?)", text):
        yield Decimal(found.replace(",", ""))


def summed(epsilon: float) -> str:
    """What `primorl ledger show` says of a version on which so much was spent."""
    account: Any = SimpleNamespace(total=lambda delta: Total(epsilon, epsilon, epsilon, delta, 1))
    params: Any = SimpleNamespace(privacy=SimpleNamespace(budget=SimpleNamespace(epsilon=BUDGET, delta=DELTA)))
    some: Any = SimpleNamespace(fingerprint="d473" * 16, units=9, unit="person")
    own: Any = [SimpleNamespace(dataset="small", time="2026-11-20T00:00:00+00:00")]
    return "\n".join(ledger._summary(1, some, account, own, params))


def rendered(epsilon: float) -> dict[str, tuple[str, str]]:
    """By output: its text with ε, and the word that stands before the number."""
    spent = Spent(epsilon, epsilon, DELTA)
    asked: Any = SimpleNamespace(
        spent=lambda relation: spent,
        sampling_probability=0.1,
        noise_multiplier=2.0,
        rounds=3,
        delta=DELTA,
        queries=(),
    )
    settings: Any = SimpleNamespace(units=lambda: None, params=None, manifest=None, is_a_run=False)
    summary = {"private": True, "epsilon": epsilon, "delta": DELTA, "unit": "person", "void": []}
    charged = {"epsilon": epsilon, "epsilon_fixed": epsilon, "delta": DELTA, "charges": 2}
    answers = {"statements": {}, "estimates": [], "total": charged, "units": 9, "unit": "person", "discount": 1}
    answers |= {"horizon": None, "verdict": None}
    made = card(
        STATEMENT | {"epsilon": epsilon, "groups": [{"units": 2, "epsilon": epsilon}]},
        ledger={"epsilon": epsilon, "records": [RECORD | {"day": "2026-11-20", "epsilon": epsilon}]},
    )
    spending = summed(epsilon)
    found: Any = SimpleNamespace(
        claimed=epsilon, delta=DELTA, confidence=0.95, bounds=[SimpleNamespace(name="any", epsilon=0.0, assumes="-")]
    )
    return {
        "plan": ("\n".join(plan._text(settings, asked)), "ε"),
        "plan, by RDP": ("\n".join(plan._text(settings, asked)), r"\("),
        "summary": (guarantee(summary), "ε"),
        "account": (account(summary | {"spent_on_dataset": charged}), "ε"),
        "answer": (source({"estimator": "lstd", "epsilon": epsilon, "delta": DELTA}), "ε"),
        "card, with the answers": (card(answers=answers).markdown().split("it included")[1].split("runs")[0], "ε"),
        "ledger": (spending.splitlines()[1], "ε"),
        "ledger, fixed beforehand": (spending.splitlines()[1], r"\("),
        "card": (made.markdown().split("## For the expert")[0], "ε"),
        "card, groups": (made.markdown(), "ε is"),
        "audit": (audit._bounds(found), "claimed"),
    }


@pytest.mark.parametrize("epsilon", AWKWARD)
def test_every_printed_epsilon_is_at_least_the_true_one(epsilon: float) -> None:
    for output, (text, before) in rendered(epsilon).items():
        found = list(numbers(text, before))
        assert found, output
        for number in found:
            if number != Decimal(repr(BUDGET)) and number > 0:
                assert number >= Decimal(repr(epsilon)), output


@pytest.mark.parametrize("epsilon", AWKWARD)
def test_what_is_left_is_never_more_than_there_is(epsilon: float) -> None:
    (left,) = numbers(summed(epsilon), "left")
    assert left <= max(Decimal(0), Decimal(repr(BUDGET)) - Decimal(repr(epsilon)))
    assert Decimal(left_of(BUDGET, epsilon)) == left


@pytest.mark.parametrize("multiplier", [20.0, 23.456789, 31.000001])
def test_a_refusal_rounds_to_the_safe_side(tmp_path: Path, multiplier: float) -> None:
    book = opened(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path)
    event, limit = training_event(0.1, multiplier, 150), 0.30000001
    book.reserve(request(version("ab"), event), None)
    with pytest.raises(BudgetExceeded) as refused:
        book.reserve(request(version("ab"), training_event(0.1, 2.0, 150)), Budget(limit, DELTA))
    pattern = r"budget is ε (\S+) at δ .*of which (\S+) is spent .* and (\S+) is left; .* be (\S+);"
    said = re.search(pattern, str(refused.value))
    assert said is not None
    budget, spent, left, wanted = map(Decimal, said.groups())
    true = compose([event], DELTA).epsilon_pld
    assert budget >= Decimal(repr(limit))
    assert spent >= Decimal(repr(true))
    assert left <= Decimal(repr(limit)) - Decimal(repr(true))
    assert wanted >= Decimal(repr(compose([event, training_event(0.1, 2.0, 150)], DELTA).epsilon_pld))
    book.close()


def test_the_advice_and_the_alarm_of_an_audit_round_to_the_safe_side() -> None:
    text = advice(Account(()), training_event(0.1, 2.34567891, 150), Budget(0.5, DELTA))
    assert "rounds with this noise_multiplier 2.34567:" in text
    bound: Any = SimpleNamespace(epsilon=1.23456)
    found = LowerBound.__new__(LowerBound)
    for name, value in (("bounds", (bound,)), ("claimed", 0.50000001), ("delta", DELTA)):
        object.__setattr__(found, name, value)
    with pytest.raises(PipelineError, match=r"ε is at least 1\.23 and 0\.501 is claimed"):
        audits.refuse(found)


def test_the_frontier_rounds_to_the_safe_side() -> None:
    point = frontier.Point(
        sampling_probability=0.1234567,
        rounds=3,
        noise_multiplier=2.34501,
        noise_per_coordinate=0.10001,
        unit_updates=1.0,
        transitions=None,
        current=False,
    )
    assert "2.346 " in frontier.table([point]), "who types it must not get less noise than the target needs"
    assert " 0.101 " in frontier.table([point])
    assert "0.1235 " in frontier.table([point])


@pytest.mark.parametrize("value", AWKWARD)
def test_the_helpers_round_to_their_side(value: float) -> None:
    exact = Decimal(repr(value))
    for digits in (2, 3, 4, 6):
        up, down = (Decimal(shown(value, digits).replace(",", "")) for shown in (at_most, at_least))
        assert down <= exact <= up
        assert up - down <= exact * Decimal(10) ** (1 - digits)
    if value < 1:
        assert Decimal(percent_at_most(value).rstrip("%")) >= 100 * exact
    assert left_of(value, value) == "0"
    assert left_of(value, float("inf")) == "0"
    assert (at_least(float("nan")), at_least(-1.0), at_most(None), at_most(float("nan"))) == ("0", "0", "∞", "∞")
