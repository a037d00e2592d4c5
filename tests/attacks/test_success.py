"""AUC, true positives at few false ones, and intervals that hold what they promise."""

import numpy as np
import pytest
from scipy.special import ndtr

from primorl.attacks.success import Success


def test_auc_counts_pairs_and_ties_half() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 8, 30).astype(float), rng.integers(0, 6, 50).astype(float)
    pairs = members[:, None] - others
    slow = (np.count_nonzero(pairs > 0) + 0.5 * np.count_nonzero(pairs == 0)) / pairs.size
    assert Success.of([members], [others]).auc == pytest.approx(slow)


def test_true_positives_are_above_the_99th_percentile_of_others() -> None:
    """Of 200 others two may pass: the threshold is the third highest, and a tie with it does not pass."""
    others = np.arange(200.0)
    members = np.array([196.0, 197.0, 197.5, 198.5, 300.0])
    found = Success.of([members], [others])
    assert found.tpr == pytest.approx(3 / 5)
    low, high = found.tpr_interval
    assert low < found.tpr < high


def coverage(shift: float, truth: float) -> float:
    """Share of 300 samples of two models each whose interval holds ``truth``."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        members = [rng.standard_normal(40) + shift for _ in range(2)]
        others = [rng.standard_normal(120) for _ in range(2)]
        low, high = Success.of(members, others).auc_interval
        held += low <= truth <= high
    return held / 300


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_intervals_hold_the_true_auc(shift: float) -> None:
    """In about 95 of 100 samples; the twin asks for an AUC 0.1 away."""
    truth = float(ndtr(shift / np.sqrt(2)))
    assert 0.91 <= coverage(shift, truth) <= 0.985
    assert coverage(shift, truth + 0.1) < 0.7


@pytest.mark.parametrize(("sign", "ends"), [(1, 1.0), (-1, 0.0)])
def test_perfect_separation_is_not_certainty(sign: int, ends: float) -> None:
    found = Success.of([sign * np.arange(10.0, 20.0)], [sign * np.arange(10.0)])
    low, high = found.auc_interval
    assert found.auc == ends
    assert 0.3 < high - low < 0.7
    assert found.auc in (low, high)


def test_scores_of_two_models_are_never_compared() -> None:
    """Each model's members are above its own others; on one scale they would not be."""
    found = Success.of(
        [np.array([2.0, 3.0]), np.array([102.0, 103.0])], [np.array([0.0, 1.0]), np.array([100.0, 101.0])]
    )
    assert (found.auc, found.tpr, found.members, found.others) == (1.0, 1.0, 4, 4)
