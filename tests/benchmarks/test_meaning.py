"""docs/concepts.md says what the accountant says, and another method says the same."""

import json

import pytest

from benchmarks.machine import RESULTS
from benchmarks.privacy import meaning
from primorl.privacy.accounting.epsilon import accountant_near, releases
from primorl.privacy.accounting.figures import true_positive_rates
from primorl.privacy.accounting.rounding import at_most


def test_the_page_shows_what_the_results_hold() -> None:
    """No figure there that no command made; `python -m benchmarks.privacy.meaning` writes it anew."""
    page = meaning.PAGE.read_text(encoding="utf-8")
    rows = json.loads((RESULTS / "meaning.json").read_text(encoding="utf-8"))
    assert len(rows) == 4 * len(meaning.EPSILONS)
    for row in rows:
        if row["what"].endswith("at 0.1% false positives"):
            epsilon = row["what"].removeprefix("ε ").partition(":")[0]
            assert f"| {epsilon} | {at_most(1000 * row['ours'])} |" in page
        assert row["ratio"] == pytest.approx(1, abs=1e-3), "ours beside riskcal's"


def test_riskcal_reads_the_same_rates_off_the_same_losses() -> None:
    """Kulynych et al. 2024, Algorithm 1, in the place of lines under the privacy profile."""
    analysis = pytest.importorskip("riskcal").analysis
    training = meaning.Training(0.1, 8.763, 150)
    losses = accountant_near(training.event, 0.5, releases(training.event))._pld
    rates = (0.001, 0.01, 0.1, 0.5)
    ours = true_positive_rates(training.event, 0.5, rates)
    theirs = [1 - float(analysis.get_beta_from_pld(losses, alpha=rate)) for rate in rates]
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert all(own >= other - 1e-9 for own, other in zip(ours, theirs, strict=True)), "ours are upper bounds"
    assert meaning.advantage(training, 0.5) == pytest.approx(analysis.get_advantage_from_pld(losses))


def test_less_noise_is_noticed() -> None:
    """The twin that must fail: half the noise does not have these rates."""
    half = true_positive_rates(meaning.Training(0.1, 4.38, 150).event, 1.1, (0.001,))
    assert half[0] > 1.3 * 0.0016
