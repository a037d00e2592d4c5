"""Riverswim: the best policy, and what the modes of learning say."""

import numpy as np
import pytest

from research import riverswim


def test_the_best_policy_swims_right() -> None:
    right = np.tile([0.0, 1.0], (1, riverswim.S, 1))
    found = riverswim.played(0.9, right, 20_000, np.random.default_rng(0)).totals
    assert found.mean() == pytest.approx(riverswim.optimal_value(0.9), rel=0.02)


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
