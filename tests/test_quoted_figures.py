"""Figures that README, privacy.md and concepts.md quote are what the accountant and a run say."""

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import yaml
from dp_accounting import dp_event
from scipy.stats import norm

from primorl.privacy.accounting.figures import Figures, deltas, figures, posterior
from primorl.privacy.accounting.gaussian import gaussian_mean
from primorl.privacy.accounting.rounding import at_most, percent_at_most

ROOT = Path(__file__).resolve().parents[1]
EPSILON, DELTA = 0.5, 1e-5
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75)
PRIORS = (0.5, 0.1, 0.01)
EVENT = dp_event.GaussianDpEvent(1 / gaussian_mean(EPSILON, DELTA))
"""The default run: rounds and queries ask everybody, so together they are one Gaussian release."""
DATASET = yaml.safe_load((ROOT / "datasets/pendulum-replay.yaml").read_text(encoding="utf-8"))


@lru_cache
def meaning() -> Figures:
    return figures(EVENT, DELTA)


def belief(rate: float, power: float) -> list[str]:
    return [percent_at_most(posterior(prior, rate, power)) for prior in PRIORS]


def rows_of_privacy() -> list[str]:
    found = meaning()
    mean = gaussian_mean(EPSILON, DELTA)
    exceeded = float(norm.sf((EPSILON - mean**2 / 2) / mean))
    profile = [at_most(delta, 2) for delta in deltas(EVENT, EPSILON, SHARES)]
    return [
        *(
            f"| {percent_at_most(a)} | {percent_at_most(b)} | {' | '.join(belief(a, b))} |"
            for a, b in found.attacks
        ),
        f"| ε at δ = 1e-5 | {EPSILON:g} | {' | '.join(at_most(epsilon) for _, epsilon in found.groups)} |",
        f"| δ | {' | '.join([*profile[:-2], '1e-5', profile[-1]])} |",
        f"with probability {at_most(exceeded, 2)}, which is {at_most(exceeded / DELTA, 2)} times δ",
        f"{at_most(found.epsilon_replace_one)} where zero-out has {EPSILON:g}",
    ]


def rows_of_concepts() -> list[str]:
    gain = deltas(EVENT, EPSILON, [0.0])[0]
    found = " | ".join(at_most(1000 * power) for _, power in meaning().attacks)
    return [
        f"| {EPSILON:g} | {found} | {percent_at_most(gain)} | {percent_at_most((1 + gain) / 2)} |"
    ]


def rows_of_readme() -> list[str]:
    found = meaning()
    rate, power = found.attacks[1]
    groups = [at_most(epsilon) for _, epsilon in found.groups]
    shown = json.loads((ROOT / "examples/quick_start.ipynb").read_text(encoding="utf-8"))
    (results,) = (
        [line.rstrip() for line in output["data"]["text/plain"]]
        for cell in shown["cells"]
        if "".join(cell["source"]) == "run"
        for output in cell["outputs"]
    )
    score = DATASET["score"]
    return [
        *(line for line in results if not line.startswith("time ")),
        f"ε = {EPSILON:g} (δ = 0.00001)",
        f"wrongly names {100 * rate:g} in 100 of those that were not in the data, she finds at most "
        f"{at_most(100 * power)} in 100",
        f"a belief of 50% becomes at most {belief(rate, power)[0]}",
        f"at most {percent_at_most((1 + deltas(EVENT, EPSILON, [0.0])[0]) / 2).rstrip('%')} times in 100",
        f"ε is {groups[0]} for two, {groups[1]} for four, {groups[2]} for eight",
        f"The score is 0 for a return of {score['low']:,.0f} and {score['scale']:,.0f} for {score['high']:.0f}",
        f"{DATASET['options']['episodes']} private units",
    ]


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        ("README.md", rows_of_readme),
        ("docs/privacy.md", rows_of_privacy),
        ("docs/concepts.md", rows_of_concepts),
    ],
    ids=["README", "privacy", "concepts"],
)
def test_every_figure_is_what_is_computed(page: str, rows: Callable[[], list[str]]) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert [row for row in rows() if " ".join(row.split()) not in text] == []
