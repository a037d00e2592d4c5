"""The figure of the public split: bins of lengths are as wide as each other in whole steps."""

import numpy as np
import pytest

from primorl.trajectories.description import length_bins


@pytest.mark.parametrize("high", [7, 8, 56, 57, 58, 109, 1000])
def test_every_bin_of_lengths_holds_equally_many_whole_numbers(high: int) -> None:
    """Each length from 7 to ``high`` once is flat; only the last bin may reach beyond them."""
    lengths = np.arange(7, high + 1)
    edges = length_bins(lengths)
    counts, _ = np.histogram(lengths, edges)
    assert counts.sum() == len(lengths)
    assert len(counts) <= 50
    assert len(set(counts[:-1])) <= 1
    assert 0 < counts[-1] <= counts[0]
    assert (edges % 1 == 0.5).all()


def test_bins_of_any_other_width_have_spikes() -> None:
    """The twin: fifty equal parts of 117 steps hold two or three of them."""
    counts, _ = np.histogram(np.arange(20, 137), 50)
    assert set(counts) == {2, 3}
