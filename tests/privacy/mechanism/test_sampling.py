"""Cohorts are Poisson: independent coins of the accounted probability, of any size, empty too."""

import numpy as np
import pytest
from scipy import stats

from primorl.privacy.mechanism.entropy import SystemEntropy
from primorl.privacy.mechanism.sampling import PoissonSampler

ROUNDS, UNITS, Q = 4000, 60, 0.2


@pytest.fixture(scope="module")
def joined() -> np.ndarray:
    """[ROUNDS, UNITS] of whether each unit joined each round."""
    sampler, entropy = PoissonSampler(Q), SystemEntropy()
    table = np.zeros((ROUNDS, UNITS), dtype=bool)
    for row in table:
        row[sampler.sample(UNITS, entropy).numpy()] = True
    return table


def sizes_pvalue(table: np.ndarray) -> float:
    """χ² test of cohort sizes against the binomial."""
    sizes = table.sum(1)
    edges = np.arange(6, 19)
    observed = np.array([(sizes < edges[0]).sum(), *[(sizes == e).sum() for e in edges], (sizes > edges[-1]).sum()])
    law = stats.binom(UNITS, Q)
    expected = np.array([law.cdf(edges[0] - 1), *law.pmf(edges), law.sf(edges[-1])]) * len(sizes)
    return float(stats.chisquare(observed, expected).pvalue)


def test_every_unit_joins_with_the_accounted_probability(joined: np.ndarray) -> None:
    """The twin: a coin that favours one unit by two fifths is told apart."""
    spread = np.sqrt(Q * (1 - Q) / ROUNDS)
    assert np.all(np.abs(joined.mean(0) - Q) < 6 * spread)
    favoured = joined.copy()
    favoured[:, 0] |= np.random.default_rng(0).random(ROUNDS) < Q / 2
    assert not np.all(np.abs(favoured.mean(0) - Q) < 6 * spread)


def test_units_join_independently_of_each_other(joined: np.ndarray) -> None:
    """The twin: two units that share a coin one time in four are told apart."""

    def largest(table: np.ndarray) -> float:
        correlations = np.corrcoef(table.T.astype(float))
        return float(np.abs(correlations[~np.eye(UNITS, dtype=bool)]).max())

    assert largest(joined) < 6 / np.sqrt(ROUNDS)
    both = (joined[1:] & joined[:-1]).mean()  # in two rounds
    assert abs(both - Q * Q) < 6 * np.sqrt(Q * Q / (ROUNDS * UNITS))
    shared = joined.copy()
    shared[::4, 1] = shared[::4, 0]
    assert largest(shared) > 6 / np.sqrt(ROUNDS)


def test_sizes_are_binomial_and_a_fixed_size_is_told_apart(joined: np.ndarray) -> None:
    """The twin: cohorts of fixed size, as shuffling makes them, fail the same test."""
    assert sizes_pvalue(joined) > 1e-6
    fixed = np.zeros_like(joined)
    for row in fixed:
        row[np.random.default_rng(0).choice(UNITS, int(Q * UNITS), replace=False)] = True
    assert sizes_pvalue(fixed) < 1e-6
    assert [len(PoissonSampler(q).sample(50, SystemEntropy())) for q in (1.0, 1e-12)] == [50, 0]
