"""A cloned behaviour on disk: the distribution that was trained comes back, and its mean is a
policy like any other.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import primorl
from primorl.base import PipelineError
from primorl.model.ensemble import bound_softly
from primorl.model.numerics import SeedGenerators
from primorl.policy import behaviour, exported
from primorl.policy.behaviour import BehaviourPolicy, make_released
from primorl.policy.config import SPREAD, BehaviourConfig
from primorl.policy.exported import DeterministicPolicy

CPU = torch.device("cpu")
S, A, H = 3, 2, 5
MEAN, SCALE = torch.tensor([0.1, 0.2, 3.0]), torch.tensor([1.0, 2.0, 0.5])
ROWS = torch.randn(4, 6, S, generator=torch.Generator().manual_seed(3))
TRAINED = BehaviourConfig(made=True, rounds=40, engine_version=3)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def clone(*, discrete: bool) -> BehaviourPolicy:
    shapes = ((1, H, S), (1, 1, H), (1, A, H), (1, 1, A))
    layers = tuple(drawn(*shape, seed=seed) for seed, shape in enumerate(shapes))
    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 10.0])
    if discrete:
        low, high = torch.zeros(A), torch.ones(A)
    policy = DeterministicPolicy(layers, MEAN, SCALE, low, high, discrete)
    if discrete:
        return BehaviourPolicy(policy, None, None)
    return BehaviourPolicy(policy, (drawn(1, A, H, seed=4), drawn(1, 1, A, seed=5)), (-5.0, 1.0))


def saved(folder: Path, *, discrete: bool) -> BehaviourPolicy:
    made = clone(discrete=discrete)
    facts: Any = {"variant": "private", "environment": None, "action_names": ("x", "y")}
    facts["observation_names"] = ("a", "b", "c")
    behaviour.save(folder, made, TRAINED, **facts)
    return made


def hidden(policy: DeterministicPolicy) -> Tensor:
    return torch.relu(((ROWS - MEAN) / SCALE) @ policy.layers[0][0].T + policy.layers[1][0])


def test_a_clone_of_discrete_actions_draws_them_as_people_do(tmp_path: Path) -> None:
    """In the files that leave, and where it is judged.

    The twin takes the largest output, as other policies do.
    """
    read = saved(tmp_path, discrete=True)
    rows = MEAN + SCALE * torch.tensor([[-0.3], [0.0], [0.2]])
    expected = read.log_probabilities(rows).exp()[:, 1]
    assert ((expected > 0.02) & (expected < 0.98)).all()
    many = rows.repeat_interleave(4000, dim=0)
    clone = make_released(BehaviourPolicy.load(tmp_path, CPU), SeedGenerators.of([0], CPU))
    drawn = clone.act(many[None])[0].argmax(-1)
    torch.testing.assert_close(drawn.view(3, -1).float().mean(1), expected, atol=0.03, rtol=0)
    leaves = primorl.load_policy(tmp_path)
    np.testing.assert_allclose(leaves.probabilities(rows)[:, 1], expected, rtol=1e-5)
    with pytest.raises(PipelineError, match="probabilities"):
        leaves.act(rows)


def test_what_people_hardly_did_is_never_done(tmp_path: Path) -> None:
    """By the clone, and by a policy near it. The twin has nothing rare."""
    made = clone(discrete=True)
    barred = replace(made, policy=made.policy.without((0,)), rare=(0,))
    assert (made.log_probabilities(ROWS)[..., 0].exp() > 0.02).any()
    assert (barred.log_probabilities(ROWS)[..., 0].exp() == 0).all()
    facts: Any = {"variant": "private", "environment": None}
    behaviour.save(tmp_path, barred, TRAINED, **facts)
    assert BehaviourPolicy.load(tmp_path, CPU).rare == (0,)
    assert made.policy.act(ROWS[:1])[..., 0].any()
    assert not barred.policy.act(ROWS[:1])[..., 0].any()


def test_a_gaussian_comes_back(tmp_path: Path) -> None:
    made = saved(tmp_path, discrete=False)
    assert make_released(made, SeedGenerators.of([0], CPU)) is made.policy
    read = BehaviourPolicy.load(tmp_path, CPU)
    mean, std = read.mean_and_std(ROWS)
    assert made.spread is not None
    h, (*_, weight, bias) = hidden(made.policy), made.policy.layers
    torch.testing.assert_close(mean, torch.tanh(h @ weight[0].T + bias[0]))
    raw = h @ made.spread[0][0].T + made.spread[1][0]
    torch.testing.assert_close(std, torch.exp(0.5 * bound_softly(raw, -5.0, 1.0)))
    taken = torch.from_numpy(primorl.load_policy(tmp_path).act(ROWS[0]))
    torch.testing.assert_close(taken, torch.stack((2 * mean[0, :, 0], 5 + 5 * mean[0, :, 1]), -1))


@pytest.mark.parametrize("discrete", [False, True])
def test_an_actor_begins_as_it(discrete: bool) -> None:
    """It sees observations on another scale, and acts the same there; its log σ is the middle of
    the bounds.
    """
    made = clone(discrete=discrete)
    mean, scale = torch.linspace(-1, 1, S), torch.linspace(0.5, 2, S)
    seen = ((ROWS - mean) / scale).view(1, -1, S)
    output = exported.mlp(made.actor_layers(mean, scale), seen).view(4, 6, -1)
    if discrete:
        torch.testing.assert_close(output.log_softmax(-1), made.log_probabilities(ROWS))
        return
    torch.testing.assert_close(output[..., :A].tanh(), made.mean_and_std(ROWS)[0])
    assert bool((output[..., A:] == -1.0).all())  # bounds -5 and 1 of the log-variance


def test_files_that_are_missing_or_of_another_clone_are_refused(tmp_path: Path) -> None:
    BehaviourConfig(made=False).write(tmp_path)
    with pytest.raises(PipelineError, match="no clone was made"):
        BehaviourPolicy.load(tmp_path, CPU)
    saved(tmp_path, discrete=False)
    (tmp_path / SPREAD).write_bytes(b"")
    with pytest.raises(PipelineError, match="missing or broken"):
        BehaviourPolicy.load(tmp_path, CPU)
