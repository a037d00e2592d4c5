"""The figure of the public split."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from primorl.trajectories.description import PublicSplit, draw, length_bins

ABOUT: dict[str, Any] = {"dataset": "a", "public_units": 3, "private_units": 9}


@pytest.mark.parametrize("high", [7, 57, 109, 1000])
def test_every_bin_of_lengths_holds_equally_many_whole_numbers(high: int) -> None:
    lengths = np.arange(7, high + 1)
    counts, _ = np.histogram(lengths, length_bins(lengths))
    assert counts.sum() == len(lengths)
    assert len(counts) <= 50
    assert len(set(counts[:-1])) <= 1
    assert 0 < counts[-1] <= counts[0]


def test_what_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trajectories of 8 steps: the first column of observations is the step, the others are noise."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *arguments, **others: figures.append(self))
    random = np.random.default_rng(0)
    observation = np.column_stack([np.tile(np.arange(8.0), 3), random.normal(size=(24, 2))])
    ends = np.zeros(3, dtype=bool)
    public = PublicSplit(observation, np.zeros((24, 1)), np.full(3, 8), random.normal(size=24), np.ones(3), ends)
    draw(tmp_path / "a.png", ABOUT | {"spaces": {"one_hot": ()}, "observation_names": []}, public)
    low, high = figures[0].axes[1].get_xlim()
    assert [tick for tick in figures[0].axes[1].get_xticks() if low <= tick <= high] == [8], "whole steps alone"
    assert figures[0].axes[2].get_xlabel().startswith("first principal axis")
    names = ["glucose", "meal=no", "meal=yes"]  # one number, and a category: drawn over the step
    draw(tmp_path / "b.png", ABOUT | {"spaces": {"one_hot": ((1, 2),)}, "observation_names": names}, public)
    coverage = figures[1].axes[2]
    assert (coverage.get_xlabel(), coverage.get_ylabel()) == ("step of the episode", "glucose")
    across, up = coverage.lines[0].get_data()
    assert (np.asarray(across) == np.asarray(up) + 1).all()
