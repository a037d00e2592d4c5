"""What the tree counter must keep to: right sums, the noise that ε asks for, nobody in more nodes than are paid for."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from primorl.privacy.accounting.pure import pure_epsilon
from primorl.privacy.mechanism.counters import Stream, TreeCounter, discrete_laplace
from primorl.privacy.mechanism.entropy import SeededEntropy


def counter(people: int, epsilon: float, sensitivity: int = 3, seed: int = 0) -> TreeCounter:
    return TreeCounter(people, sensitivity, epsilon, SeededEntropy(seed))


def test_without_noise_the_releases_are_the_running_sums() -> None:
    vectors = np.random.default_rng(0).integers(-1, 2, (37, 3))
    stream = counter(37, math.inf).stream(3)
    np.testing.assert_array_equal([stream.add(vector) for vector in vectors], vectors.cumsum(0))
    with pytest.raises(ValueError, match="37 people"):
        stream.add(vectors[0])


def _probability(draws: NDArray[np.int64], scale: float) -> float:
    """p-value of a χ² test against the discrete Laplace distribution; cells of a tenth of the scale."""
    q, cell = math.exp(-1 / scale), max(int(scale / 2), 1)
    edges = np.arange(-6 * cell, 6 * cell + 1, cell)
    counted = np.histogram(draws, edges - 0.5)[0]
    support = np.arange(edges[0], edges[-1])
    weights = (1 - q) / (1 + q) * q ** np.abs(support)
    expected = weights.reshape(-1, cell).sum(1)
    counted = np.append(counted, len(draws) - counted.sum())
    return float(stats.chisquare(counted, np.append(expected, 1 - expected.sum()) * len(draws)).pvalue)


@pytest.mark.parametrize("scale", [1, 2, 37])
def test_noise_is_discrete_laplace_of_the_scale_and_of_no_other(scale: int) -> None:
    draws = discrete_laplace(SeededEntropy(scale), 40_000, scale)
    assert _probability(draws, scale) > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert _probability(draws, scale * wrong) < 1e-6


def _nodes_that_differ(stream: Stream, other: Stream, at: int, people: int) -> list[float]:
    """L1 distance between the nodes that two streams make, which differ in person ``at``; one for each person."""
    distances = []
    for person in range(people):
        stream.add(np.array([2, 1] if person == at else [1, 1]))
        other.add(np.array([0, 0] if person == at else [1, 1]))
        level = ((person + 1) & -(person + 1)).bit_length() - 1
        distances.append(float(np.abs(stream._sums[level] - other._sums[level]).sum()))
    return distances


@pytest.mark.parametrize("people", [1, 7, 8, 21])
def test_one_person_changes_as_many_nodes_as_the_scale_is_made_for(people: int) -> None:
    """Each node is released once; L nodes of L1 sensitivity Δ with noise of scale L Δ / ε cost ε."""
    made = counter(people, math.inf)
    worst = 0.0
    for at in range(people):
        distances = _nodes_that_differ(made.stream(2), made.stream(2), at, people)
        assert max(distances) <= made.sensitivity
        worst = max(worst, sum(distances))
    assert worst <= made.levels * made.sensitivity
    if people in (1, 8):  # the bound is reached, so fewer levels would not do
        assert worst == made.levels * made.sensitivity
    private = counter(people, 0.7)
    assert private.levels * private.sensitivity / private.scale <= 0.7
    assert pure_epsilon(private.event) == 0.7


def test_a_vector_above_the_sensitivity_counts_as_zeros() -> None:
    stream = counter(4, math.inf).stream(2)
    np.testing.assert_array_equal(stream.add(np.array([2, -2])), [0, 0])
    np.testing.assert_array_equal(stream.add(np.array([-(2**63), 2**62])), [0, 0])
    np.testing.assert_array_equal(stream.add(np.array([2, -1])), [2, -1])


def test_every_node_has_fresh_noise_and_errors_stay_below_the_bound() -> None:
    made = counter(64, 1.0)
    stream = made.stream(500)
    released = np.array([stream.add(np.zeros(500, np.int64)) for _ in range(64)])
    assert abs(np.corrcoef(released[0], released[1])[0, 1]) < 0.2  # person 2's node has its own noise
    variance = 2 * made.scale**2
    for person in (1, 3, 31, 63, 64):  # as many nodes as binary ones
        assert released[person - 1].var() == pytest.approx(variance * person.bit_count(), rel=0.3)
    assert (np.abs(released) > made.error(0.01)).mean() <= 0.01
    assert (np.abs(released[62]) > made.error(0.5) / 6).mean() > 0.1  # the test above can fail


def test_what_cannot_be_counted_is_refused() -> None:
    for bad in (0.0, -1.0, math.nan, 1e-13):
        with pytest.raises(ValueError, match="epsilon"):
            counter(5, bad)
    with pytest.raises(ValueError, match="people and sensitivity"):
        counter(0, 1.0)
    with pytest.raises(ValueError, match="vector"):
        counter(5, 1.0).stream(2).add(np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="no event"):
        _ = counter(5, math.inf).event
    assert counter(5, 1.0).void() == ["noise is seeded"]
    assert TreeCounter(5, 1, 1.0).void() == []
