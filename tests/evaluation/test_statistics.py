import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from primorl.evaluation.statistics import MeanInterval


@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=2, max_size=50))
def test_the_interval_is_student_ts(values: list[float]) -> None:
    sample = np.array(values)
    found = MeanInterval.of(sample)
    assert found.mean == pytest.approx(sample.mean())
    assert found.low <= found.mean <= found.high
    error = stats.sem(sample)
    if error > 1e-9 * np.abs(sample).max():
        low, high = stats.t.interval(0.95, len(values) - 1, loc=sample.mean(), scale=error)
        assert (found.low, found.high) == (pytest.approx(low, rel=1e-6), pytest.approx(high, rel=1e-6))


def test_it_covers_the_truth_19_times_in_20_and_no_other_share() -> None:
    samples = np.random.default_rng(0).normal(3.0, 2.0, size=(20_000, 5))
    covered = np.mean([interval.low <= 3.0 <= interval.high for interval in map(MeanInterval.of, samples)])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 20_000)
    assert abs(covered - 0.878) > 0.05  # what a normal interval, 1.96 instead of 2.776, would cover
    with pytest.raises(ValueError, match="at least 2 values, found 1"):
        MeanInterval.of(np.array([1.0]))
