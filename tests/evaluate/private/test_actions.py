"""What a policy does is told by rows that are weighed and cut as people's are."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.evaluate.private.model_values import PaidActions, compare_actions, roll_out
from primorl.evaluate.private.results import Conduct
from primorl.model.termination import RULES, Rule
from tests.evaluate.private.conftest import model, problem

HALVES = torch.tensor([1.0, 0.5, 0.25, 0.125, 0.0], dtype=torch.float64)


def rest(observation: Tensor) -> Tensor:
    """What the clone does: nothing, at any time."""
    return torch.zeros_like(observation)


def conduct(policy: Any, **changes: Any) -> Conduct:
    """Of a policy beside `rest` in a chain of five states that say the time."""
    asked = replace(problem(10, discount=1.0), policy=policy, **changes)
    paid = PaidActions(torch.tensor([0.25]), None)
    names = ["time"], ["7"]
    own, today = (roll_out(asked, act, 512) for act in (policy, rest))
    return compare_actions(asked, own, today, names, paid, ("lost", "won"))


def test_the_largest_change_is_found_where_it_is() -> None:
    """Twins: one that is the same everywhere, and none."""
    found = conduct(lambda state: (state > 2.5).float())
    (use,) = found.actions
    assert (use.name, use.today, use.clone) == ("action 7", 0.25, 0.0)
    assert use.policy == pytest.approx(0.4, abs=0.02), "in two of five steps"
    assert (use.clone_range, use.policy_range) == ((0.0, 0.0), (0.0, 1.0))
    where = found.contrast
    assert where is not None
    assert (where.action, where.column, where.above) == ("action 7", "time", True)
    assert (where.threshold, where.clone) == (2.0, 0.0)
    assert where.policy > 0.75
    everywhere = conduct(torch.ones_like).contrast
    assert everywhere is not None
    assert everywhere.column is None
    assert conduct(rest).contrast is None


def test_every_rollout_counts_once_and_is_cut_as_recordings_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twin: rollouts that are never cut all come to their end."""
    found = conduct(lambda state: (state > 2.5).float(), survival=HALVES)
    assert found.actions[0].policy == pytest.approx(0.125 / 4, abs=0.02)
    assert found.policy_ended is None, "the model has no ends"
    far = Rule(1, lambda observation, action, following: following[:, 0] > 2.5)
    monkeypatch.setitem(RULES, "far", far)
    ensemble = replace(problem(10).ensemble, termination="far")
    assert conduct(rest, ensemble=ensemble).policy_ended == 1.0
    cut = conduct(rest, ensemble=ensemble, survival=HALVES)
    assert cut.policy_ended == pytest.approx(0.25, abs=0.06)


def test_two_outcomes_are_told_by_what_trajectories_earn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends earn -2 and 2: of a mean of 0 each is half. Twin: if none ends, neither."""
    far = Rule(1, lambda observation, action, following: following[:, 0] > 2.5)
    monkeypatch.setitem(RULES, "far", far)
    for pay, end, shares in (
        (0.0, "far", (0.5, 0.5)),
        (2.0, "far", (0.0, 1.0)),
        (0.0, "none", (0.0, 0.0)),
    ):
        ensemble = replace(model([pay], [1.0]), termination=end)
        lost, won = conduct(rest, ensemble=ensemble).outcomes
        assert (lost.name, lost.reward, won.name, won.reward) == ("lost", -2.0, "won", 2.0)
        assert (lost.clone, won.clone) == (lost.policy, won.policy) == shares
