"""Riverswim: counters whose noise is that of ε, optimal plans, and steps that stay in the trust
region.
"""

import math

import numpy as np
import pytest

from research import riverswim
from research.ucbvi import Stream, TreeCounter


@pytest.mark.parametrize("people", [1, 7, 8, 21])
def test_one_person_changes_as_many_nodes_as_the_noise_is_made_for(people: int) -> None:
    """Each node is released once; L nodes of L1 sensitivity Δ with noise of scale L Δ / ε
    cost ε.
    """
    made = TreeCounter(people, 3, math.inf)
    worst, ones = 0.0, np.ones((1, 2), np.int64)
    for at in range(people):
        streams, total = (Stream(made, 1, 2), Stream(made, 1, 2)), 0.0
        for person in range(people):
            own = np.array([[2, 1]]) if person == at else ones
            released = streams[0].add(own), streams[1].add(0 * ones if person == at else ones)
            level = ((person + 1) & -(person + 1)).bit_length() - 1
            distance = np.abs(streams[0].sums[level] - streams[1].sums[level]).sum()
            assert distance <= made.sensitivity
            total += distance
            assert np.abs(released[0] - released[1]).sum() == (3 if person >= at else 0)
        worst = max(worst, total)
    assert worst <= made.levels * made.sensitivity
    if people in (1, 8):
        assert worst == made.levels * made.sensitivity, "fewer levels would not do"
    with pytest.raises(ValueError, match="as many as are paid for"):
        streams[0].add(ones)
    private = TreeCounter(people, 3, 0.7)
    assert private.levels * private.sensitivity / private.scale <= 0.7


def test_noise_is_discrete_laplace_and_fresh_in_every_node() -> None:
    made = TreeCounter(64, 3, 1.0)
    stream = Stream(made, 2, 2500)
    released = np.array([stream.add(np.zeros((2, 2500), np.int64)).ravel() for _ in range(64)])
    assert abs(np.corrcoef(released[0], released[1])[0, 1]) < 0.1
    for person in (1, 3, 63, 64):  # as many nodes as binary ones
        expected = 2 * made.scale**2 * person.bit_count()
        assert released[person - 1].var() == pytest.approx(expected, rel=0.3)
    assert (np.abs(released) > made.error(0.01)).mean() <= 0.01


@pytest.mark.parametrize("algorithm", ["dppg-l2", "dppg-kl"])
def test_modes_differ_in_what_they_say(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards of 50 users: with noise alone they do not depend on the gradient; without noise all
    runs stay close.
    """
    monkeypatch.setattr(riverswim, "USERS", 50)
    key = {"algorithm": algorithm, "epsilon": "1.0", "p": 0.9}
    paper = riverswim.SETTINGS["paper"]
    found = {mode: riverswim.dppg({**key, "mode": mode}, paper) for mode in riverswim.MODES}
    assert all(rewards.shape == (50, riverswim.RUNS) for rewards in found.values())
    assert found["clip alone"][-10:].mean() < 0.2, "the gradient leads to the left bank"
    assert found["noise alone"][-10:].mean() > 0.5
    assert found["learning"][-10:].mean() > 0.5
