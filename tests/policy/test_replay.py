"""Rollouts in the model and the rows that a seed draws from."""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from primorl.model.numerics import SeedGenerators
from primorl.model.pessimism import Step
from primorl.policy.config import SacConfig
from primorl.policy.replay import ReplayBuffer, Rollouts, Scaling

CONFIG = SacConfig(
    target_rate=0.01,
    reward_scale=0.1,
    target_entropy=-3.0,
    epochs=5,
    updates_per_epoch=400,
    buffer_size=50_000,
    horizon=30,
    rollout_every=100,
    rollout_batch=64,
)
STARTS = torch.linspace(-2, 2, 64).unsqueeze(1)


@dataclass(frozen=True)
class Counter:
    """Every step adds 1 to the state; the reward is ten times the state, the uncertainty the
    action.
    """

    discrete_actions = False
    action_low: Tensor = field(default_factory=lambda: torch.tensor([2.0]))
    action_high: Tensor = field(default_factory=lambda: torch.tensor([6.0]))
    observation_mean: Tensor = field(default_factory=lambda: torch.tensor([1.0]))
    observation_scale: Tensor = field(default_factory=lambda: torch.tensor([2.0]))

    def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> Step:
        known = torch.ones(len(action), dtype=torch.bool)
        return Step(observation + 1, 10 * observation[:, 0], action[:, 0], None, known)


CPU = torch.device("cpu")


def numbered(start: int, count: int) -> Tensor:
    return torch.arange(start, start + count, dtype=torch.float32).view(1, count, 1)


@given(
    st.integers(1, 12).flatmap(
        lambda size: st.tuples(st.just(size), st.lists(st.integers(0, size), max_size=12))
    )
)
def test_the_ring_keeps_the_newest_rows_and_nothing_else(case: tuple[int, list[int]]) -> None:
    capacity, writes = case
    buffer, expected, written = ReplayBuffer(capacity, 1, CPU), deque[float](maxlen=capacity), 0
    for count in writes:
        rows = numbered(written + 1, count)
        buffer.extend(rows)
        expected.extend(rows.flatten().tolist())
        written += count
        assert sorted(buffer.rows.flatten().tolist()) == list(expected)
        assert len(buffer) == len(expected)


def test_each_seed_draws_from_all_of_its_own_rows_what_it_draws_alone() -> None:
    both, first = ReplayBuffer(600, 1, CPU, seeds=2), ReplayBuffer(600, 1, CPU)
    for begin, count in ((1, 400), (401, 400)):
        rows = numbered(begin, count)
        both.extend(torch.cat((rows, -rows)))
        first.extend(rows)
    together = torch.stack(list(both.batches(200, 32, SeedGenerators.of([3, 4], CPU))))
    alone = torch.stack(list(first.batches(200, 32, SeedGenerators.of([3], CPU))))
    assert torch.equal(together[:, :1], alone)
    assert set(together[:, 1].flatten().tolist()) == {float(-i) for i in range(201, 801)}
    assert not torch.equal(together[:, 1], -together[:, 0])


def rollouts(
    batch: int, horizon: int, reset_fraction: float, model: Any = None
) -> tuple[Rollouts, Scaling]:
    model = model or Counter()
    config = replace(CONFIG, rollout_batch=batch, horizon=horizon, reward_scale=0.1)
    made = Rollouts(
        model,
        torch.zeros(7, 1),
        config,
        SeedGenerators.of([0], torch.device("cpu")),
        reset_fraction,
    )
    return made, Scaling.of(model, 0.1)


def halfway(observation: Tensor) -> Tensor:
    return torch.full((*observation.shape[:2], 1), 0.5)


def test_rows_are_the_steps_of_unbroken_rollouts_that_never_terminate() -> None:
    made, scaling = rollouts(batch=3, horizon=4, reset_fraction=1.0)
    seen: list[Tensor] = []

    def act(observation: Tensor) -> Tensor:
        seen.append(observation)
        return halfway(observation)

    columns, (rows, reward, uncertainty) = scaling.columns, made.collect(act)
    assert torch.cat(seen).flatten().tolist() == [-0.5] * 3 + [0.0] * 3 + [0.5] * 3 + [1.0] * 3, (
        "standardised"
    )
    rows = rows.view(4, 3, columns.width)
    states = torch.arange(5.0).view(5, 1, 1).expand(5, 3, 1)
    torch.testing.assert_close(rows[..., columns.observation], scaling.observation(states[:4]))
    torch.testing.assert_close(rows[..., columns.next_observation], scaling.observation(states[1:]))
    torch.testing.assert_close(rows[..., columns.reward], states[:4, :, 0])
    assert bool((rows[..., columns.observation_action][..., 1] == 0.5).all())
    assert bool((rows[..., columns.continues] == 1).all())
    assert (reward.item(), uncertainty.item()) == (15.0, 5.0)


@dataclass(frozen=True)
class Mortal(Counter):
    """Ends where the state reaches 3."""

    def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> Step:
        step = super().step(observation, action, generators)
        return replace(step, terminated=step.next_observation[:, 0] >= 3)


@pytest.mark.parametrize("reset_fraction", [1.0, 0.5])
def test_a_rollout_that_terminates_is_not_bootstrapped_and_begins_again(
    reset_fraction: float,
) -> None:
    made, scaling = rollouts(batch=400, horizon=8, reset_fraction=reset_fraction, model=Mortal())
    columns = scaling.columns
    for number in range(3):
        rows = made.collect(halfway)[0].view(8, 400, columns.width)
        before = rows[..., columns.observation][..., 0] * 2 + 1
        after = rows[..., columns.next_observation][..., 0] * 2 + 1
        torch.testing.assert_close(after, before + 1)
        assert torch.equal(rows[..., columns.continues] == 0, after >= 3)
        assert torch.equal(before[1:], torch.where(after[:-1] >= 3, 0.0, after[:-1]))
        # A fresh one was at 2 after the 8 steps, and after 8 more at 1.
        carried_on = {0.0, 2.0, 1.0} if number == 2 else {0.0, 2.0} if number == 1 else {0.0}
        assert set(before[0].tolist()) == ({0.0} if reset_fraction == 1.0 else carried_on)
        if number == 1:
            assert abs(float((before[0] == 0).float().mean()) - reset_fraction) < 0.1, (
                "4 standard deviations"
            )
