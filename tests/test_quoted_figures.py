"""Figures that README and privacy.md quote are what the accountant says."""

from dataclasses import astuple

import pytest
from dp_accounting import dp_event
from scipy.stats import norm

from primorl.privacy.accounting.epsilon import gaussian_mean
from primorl.privacy.accounting.figures import Figures, deltas, figures, posterior
from primorl.privacy.accounting.rounding import at_most, percent_at_most
from tests.projects import ROOT

EPSILON, DELTA = 0.5, 1e-5
EVENT = dp_event.GaussianDpEvent(1 / gaussian_mean(EPSILON, DELTA))
"""The default run: rounds and queries ask everybody, so together they are one Gaussian release."""


def rows(page: str, meaning: Figures) -> list[str]:
    groups = [at_most(each.epsilon) for each in meaning.groups]
    gain = deltas(EVENT, EPSILON, [0.0])[0]
    coin = percent_at_most((1 + gain) / 2)
    if page == "README.md":
        rate, power = astuple(meaning.attacks[1])
        return [
            f"wrongly names {100 * rate:g} in 100 of those that were not in the data, she finds at "
            f"most {at_most(100 * power)} in 100",
            f"a belief of 50% becomes at most {percent_at_most(posterior(0.5, rate, power))}",
            f"at most {coin.rstrip('%')} times in 100",
            f"ε is {groups[0]} for two, {groups[1]} for four, {groups[2]} for eight",
        ]
    mean = gaussian_mean(EPSILON, DELTA)
    exceeded = float(norm.sf((EPSILON - mean**2 / 2) / mean))
    found = " | ".join(at_most(1000 * each.true_positive_rate) for each in meaning.attacks)
    return [
        f"| {EPSILON:g} | {found} | {percent_at_most(gain)} | {coin} |",
        f"| ε at δ = 1e-5 | {EPSILON:g} | {' | '.join(groups)} |",
        f"with probability {at_most(exceeded, 2)}, which is {at_most(exceeded / DELTA, 2)} times δ",
        f"{at_most(meaning.epsilon_replace_one)} where zero-out has {EPSILON:g}",
    ]


@pytest.mark.parametrize("page", ["README.md", "docs/privacy.md"])
def test_every_figure_is_what_is_computed(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert [row for row in rows(page, figures(EVENT, DELTA)) if row not in text] == []
