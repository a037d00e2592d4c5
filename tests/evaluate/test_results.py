"""Intervals, the files of results, and their figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from primorl.base.files import read_json
from primorl.evaluate.summary import Estimate, SeedSummary, Summary

PLAIN: dict[str, Any] = {
    **{"dataset": "pendulum-replay", "env_id": "CartPole-v1", "variant": "private", "seed": 0},
    **{"private": True, "epsilon": 1.19, "epsilon_rdp": 1.31, "delta": 1e-5, "void": ()},
    **{"unit": "trajectory", "units": 2970, "spent_on_dataset": None, "normalized_score": None},
    **{"return_mean": -151.25, "return_ci95": (-170.0, -130.0), "episodes": 100},
    **{"policy_sha256": "0" * 64, "seconds": {"collect": 60.25}},
}
SEED = SeedSummary(
    seed=4,
    return_mean=-1.5,
    return_ci95=(-2.0, -1.0),
    normalized_score=None,
    policy_sha256="0" * 64,
)


@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=2, max_size=50))
def test_the_interval_is_student_ts(values: list[float]) -> None:
    sample = np.array(values)
    found = Estimate.of(sample)
    assert found.mean == pytest.approx(sample.mean())
    assert found.low <= found.mean <= found.high
    error = stats.sem(sample)
    if error > 1e-9 * np.abs(sample).max():
        low, high = stats.t.interval(0.95, len(values) - 1, loc=sample.mean(), scale=error)
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)
    with pytest.raises(ValueError, match="at least 2 values, found 1"):
        Estimate.of(sample[:1])


@pytest.mark.parametrize(
    "more",
    [{}, {"seeds": (4, 7), "by_seed": (SEED, SEED)}, {"model_value": -1.5, "return_mean": None}],
)
def test_a_summary_comes_back_as_it_was(tmp_path: Path, more: dict[str, Any]) -> None:
    summary, file = Summary(**PLAIN | more), tmp_path / "summary.json"
    summary.write(file)
    assert Summary.read(file) == summary
    content = read_json(file)
    assert set(content) == {"format", *PLAIN, *more}, (
        "optional keys are left out, the others are null"
    )
