"""The figure of the public split."""

import numpy as np
import pytest

from primorl.trajectories.description import length_bins


@pytest.mark.parametrize("high", [7, 57, 109, 1000])
def test_every_bin_of_lengths_holds_equally_many_whole_numbers(high: int) -> None:
    lengths = np.arange(7, high + 1)
    counts, _ = np.histogram(lengths, length_bins(lengths))
    assert counts.sum() == len(lengths)
    assert len(counts) <= 50
    assert len(set(counts[:-1])) <= 1
    assert 0 < counts[-1] <= counts[0]
