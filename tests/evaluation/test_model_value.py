"""The value in the model: whole rollouts of one member at a time, ended by the model's own terminations."""

from dataclasses import replace

import pytest
import torch

from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.termination import RULES, Rule
from primorl.evaluation.statistics import ModelValue
from primorl.policy.member_values import returns_by_member, step_weights
from tests.evaluation.conftest import random_policy
from tests.evaluation.private.conftest import model


def values(ensemble: GaussianEnsemble, start: float = 0.0) -> list[float]:
    """Of rollouts of ten steps, by each member."""
    policy, starts = random_policy(2, 1, 1.0), torch.full((5, 1), start)
    found = returns_by_member(ensemble, policy, starts, rollouts=6, weights=step_weights(10), seed=0).mean(-1)
    assert torch.equal(found[0], found[1]), "whatever the policy does"
    one: list[float] = found[0].tolist()
    return one


def test_every_member_is_rolled_out_alone_undiscounted_and_unpenalised() -> None:
    """However much the members disagree: nothing is taken off for it, and the spread shows it."""
    found = values(model([1.0, -2.0, 1.5], [0.0, 0.0, 0.0]))
    assert found == pytest.approx([10.0, -20.0, 15.0], rel=1e-5)
    spread = ModelValue.of(torch.tensor(found))
    assert (spread.mean, spread.low, spread.high) == pytest.approx((5 / 3, -20.0, 15.0), rel=1e-5)


def test_a_rollout_that_terminates_earns_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that ends it still counts; one that goes on is worth its whole horizon."""
    monkeypatch.setitem(RULES, "far", Rule(1, lambda observation, action, following: following[:, 0] > 2.5))
    ensemble = replace(model([1.0, 0.75, -1.0], [1.0, 0.75, -0.1]), termination="far")
    assert values(ensemble) == pytest.approx([3.0, 3.0, -10.0], rel=1e-5)
    assert values(ensemble, start=2.0)[0] == pytest.approx(1.0, rel=1e-5), "from where it is begun"
