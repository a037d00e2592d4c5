"""No line that is printed promises more than is true: what is spent is rounded up, what is left is rounded down."""

import re
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from primorl.commands import ledger, plan_answer
from primorl.evaluate.wording import account, guarantee, source
from primorl.privacy.accounting.epsilon import Spent, Training
from primorl.privacy.accounting.rounding import at_least, at_most, left_of, percent_at_most
from primorl.privacy.ledger.account import Total
from tests.privacy.ledger.ledgers import DELTA
from tests.release.test_card import RECORD, STATEMENT, card

AWKWARD = [0.50000001, 0.123456789, 1.00049, 19.9995001, 1234.5678, 3.00000049e-7]
BUDGET = 25.0000001


def numbers(text: str, before: str) -> Iterator[Decimal]:
    for found in re.findall(rf"{before}\s*=?\s*(\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?)", text):
        yield Decimal(found.replace(",", ""))


def summed(epsilon: float) -> str:
    account: Any = SimpleNamespace(total=lambda delta: Total(epsilon, epsilon, epsilon, delta, 1))
    params: Any = SimpleNamespace(
        privacy=SimpleNamespace(budget=SimpleNamespace(epsilon=BUDGET, delta=DELTA))
    )
    some: Any = SimpleNamespace(fingerprint="d473" * 16, units=9, unit="person")
    own: Any = [SimpleNamespace(dataset="small", time="2026-11-20T00:00:00+00:00")]
    return "\n".join(ledger._summary(1, some, account, own, params))


def rendered(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    training = Training(0.1, 2.0, 3)
    monkeypatch.setattr(Training, "spent", lambda *_: Spent(epsilon, epsilon, DELTA))
    monkeypatch.setattr(plan_answer, "asked_for", lambda _: (training, DELTA))
    settings: Any = SimpleNamespace(units=None, params=None, manifest=None, run=None)
    planned = "\n".join(plan_answer._text(settings, None))
    summary = {"private": True, "epsilon": epsilon, "delta": DELTA, "unit": "person", "void": []}
    charged = {"epsilon": epsilon, "epsilon_fixed": epsilon, "delta": DELTA, "charges": 2}
    made = card(
        STATEMENT | {"epsilon": epsilon, "groups": [{"units": 2, "epsilon": epsilon}]},
        ledger={
            "epsilon": epsilon,
            "records": [RECORD | {"day": "2026-11-20", "epsilon": epsilon}],
        },
    ).markdown()
    spending = summed(epsilon).splitlines()[1]
    return {
        "plan": (planned, "ε"),
        "plan, by RDP": (planned, r"\("),
        "summary": (guarantee(summary), "ε"),
        "account": (account(summary | {"spent_on_dataset": charged}), "ε"),
        "answer": (source({"estimator": "behaviour", "epsilon": epsilon, "delta": DELTA}), "ε"),
        "ledger": (spending, "ε"),
        "ledger, fixed beforehand": (spending, r"\("),
        "card": (made.split("## For the expert")[0], "ε"),
        "card, groups": (made, "ε is"),
    }


@pytest.mark.parametrize("epsilon", AWKWARD)
def test_every_printed_epsilon_is_at_least_the_true_one(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for output, (text, before) in rendered(epsilon, monkeypatch).items():
        found = list(numbers(text, before))
        assert found, output
        for number in found:
            if number != Decimal(repr(BUDGET)) and number > 0:
                assert number >= Decimal(repr(epsilon)), output


@pytest.mark.parametrize("value", AWKWARD)
def test_the_helpers_round_to_their_side(value: float) -> None:
    (left,) = numbers(summed(value), "left")
    assert left <= max(Decimal(0), Decimal(repr(BUDGET)) - Decimal(repr(value)))
    assert Decimal(left_of(BUDGET, value)) == left
    exact = Decimal(repr(value))
    for digits in (2, 3, 4, 6):
        up, down = (Decimal(shown(value, digits).replace(",", "")) for shown in (at_most, at_least))
        assert down <= exact <= up
        assert up - down <= exact * Decimal(10) ** (1 - digits)
    if value < 1:
        assert Decimal(percent_at_most(value).rstrip("%")) >= 100 * exact
    assert left_of(value, value) == left_of(value, float("inf")) == "0"
    assert (at_least(float("nan")), at_least(-1.0), at_most(None), at_most(float("nan"))) == (
        "0",
        "0",
        "∞",
        "∞",
    )
