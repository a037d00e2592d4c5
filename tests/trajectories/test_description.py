"""The figure of the public split: bins of lengths are as wide as each other in whole steps."""

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
    edges = length_bins(lengths)
    counts, _ = np.histogram(lengths, edges)
    assert counts.sum() == len(lengths)
    assert len(counts) <= 50
    assert len(set(counts[:-1])) <= 1
    assert 0 < counts[-1] <= counts[0]
    assert (edges % 1 == 0.5).all()


def split(columns: int) -> PublicSplit:
    """Three trajectories of 8 steps: the first column is the step, the others are noise."""
    lengths, generator = np.array([8, 8, 8]), np.random.default_rng(0)
    observation = generator.normal(size=(24, columns))
    observation[:, 0] = np.tile(np.arange(8.0), 3)
    reward = generator.normal(size=24)
    return PublicSplit(observation, np.zeros((24, 1)), lengths, reward, np.ones(3), np.zeros(3, dtype=bool))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is written."""
    kept: list[Figure] = []
    write = Figure.savefig

    def spying(self: Figure, *arguments: Any, **others: Any) -> None:
        kept.append(self)
        write(self, *arguments, **others)

    monkeypatch.setattr(Figure, "savefig", spying)
    return kept


def test_lengths_have_ticks_at_whole_steps_alone(tmp_path: Path, figures: list[Figure]) -> None:
    draw(tmp_path / "a.png", ABOUT | {"spaces": {"one_hot": ()}, "observation_names": []}, split(3))
    lengths = figures[0].axes[1]
    low, high = lengths.get_xlim()
    assert [tick for tick in lengths.get_xticks() if low <= tick <= high] == [8]


def test_one_number_is_drawn_over_the_step(tmp_path: Path, figures: list[Figure]) -> None:
    about = ABOUT | {"spaces": {"one_hot": ((1, 2),)}, "observation_names": ["glucose", "meal=no", "meal=yes"]}
    draw(tmp_path / "a.png", about, split(3))
    coverage = figures[0].axes[2]
    assert (coverage.get_xlabel(), coverage.get_ylabel()) == ("step of the episode", "glucose")
    across, up = coverage.lines[0].get_data()
    assert (np.asarray(across) == np.asarray(up) + 1).all()
    draw(tmp_path / "b.png", ABOUT | {"spaces": {"one_hot": ()}, "observation_names": []}, split(2))
    assert figures[1].axes[2].get_xlabel().startswith("first principal axis")
