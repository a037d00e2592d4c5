"""What is saved is what is loaded; files that lie are refused; a learned end is believed where
rows support it; first states are drawn within the bounds. The pessimistic MDP: u as the paper
defines it, random members, bounded states and rewards; rules end episodes as environments do.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from primorl.base import PipelineError
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser, judge_ends
from primorl.model.numerics import SeedGenerators
from primorl.model.pessimism import (
    UNCERTAINTIES,
    PessimisticModel,
    Step,
    max_aleatoric,
    max_pairwise_difference,
)
from primorl.model.starts import FILE, StartModel
from primorl.model.termination import RULES, Rule
from primorl.simulators.environments import GymBatch
from tests.model.models import CPU, box, ends_where_positive, plain_maps


def test_uncertainties_by_hand() -> None:
    """max_{i,j} ‖μ_i - μ_j‖₂ and max_i ‖diag(σ_i²)‖_F, by plain loops."""
    generator = torch.Generator().manual_seed(0)
    mean, std = torch.randn(4, 5, 3, generator=generator), torch.rand(4, 5, 3, generator=generator)
    gaps, spreads = max_pairwise_difference(mean, std), max_aleatoric(mean, std)
    for b in range(5):
        gap = max(float((mean[i, b] - mean[j, b]).norm()) for i in range(4) for j in range(4))
        spread = max(float(torch.linalg.matrix_norm(torch.diag(std[i, b] ** 2))) for i in range(4))
        assert (float(gaps[b]), float(spreads[b])) == pytest.approx((gap, spread))


class Announcing(GaussianEnsemble):
    """Member i predicts a change of 10·i in every state, a reward of i and an end with probability
    i/2, surely.
    """

    std = 0.0

    def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        member = torch.arange(3.0).view(3, 1, 1)
        mean = torch.cat(
            (10 * member.expand(3, len(observation), 3), member.expand(3, len(observation), 1)),
            dim=-1,
        )
        ends = (
            member.squeeze(-1).expand(3, len(observation)) / 2
            if self.architecture.learned_termination
            else None
        )
        return mean, torch.full_like(mean, self.std), ends


class Unsure(Announcing):
    std = 50.0


def steps(
    count: int,
    kind: type[GaussianEnsemble] = Announcing,
    *,
    reward_high: float = 100.0,
    limit: float = 1000.0,
    penalty: float = 0.0,
    termination: str = "none",
) -> Step:
    """One step of ``count`` rollouts from zeros."""
    shape = Architecture(3, 1, 3, (8,), -10.0, 0.5, termination == "learned")
    maps, bounds = plain_maps(4, 4), box(limit, 3, (-1.0, reward_high))
    model = PessimisticModel(
        kind(shape, shape.initial_weights(0), maps, bounds, termination),
        uncertainty="max_pairwise_difference",
        penalty=penalty,
    )
    return model.step(torch.zeros(count, 3), torch.zeros(count, 1), SeedGenerators.of([0], CPU))


def test_every_row_follows_one_member_drawn_anew() -> None:
    step = steps(3000)
    assert torch.equal(step.next_observation, 10 * step.reward.unsqueeze(1).expand(-1, 3))
    counts = step.reward.long().bincount(minlength=3)
    assert torch.all((counts - 1000).abs() < 150)


def test_states_are_drawn_within_bounds_and_rewards_are_what_the_member_expects() -> None:
    step = steps(300, Unsure)
    assert set(step.reward.tolist()) == {0.0, 1.0, 2.0}
    assert step.next_observation.std() > 40
    assert set(steps(64, limit=7.0).next_observation.flatten().tolist()) == {0.0, 7.0}


def test_angles_stay_on_the_circle_where_noise_alone_would_leave_it() -> None:
    """From cos θ = -1 draws can only go inwards; twin: two columns that are declared nothing do."""
    shape = Architecture(3, 1, 3, (8,), -4.0, -3.9, False)
    still = tuple(torch.zeros_like(weight) for weight in shape.initial_weights(0))
    ended = []
    for angles in ((), ((2, 0),)):
        bounds = replace(box(1.0, 3, (0.0, 1.0)), angles=angles)
        model = PessimisticModel(
            GaussianEnsemble(shape, still, plain_maps(4, 4), bounds),
            uncertainty="max_aleatoric",
            penalty=0.0,
        )
        state, generators = (
            torch.tensor([[0.0, 0.5, -1.0]]).expand(64, 3),
            SeedGenerators.of([0], CPU),
        )
        for _ in range(20):
            state = model.step(state, torch.zeros(64, 1), generators).next_observation
        ended.append(torch.hypot(state[:, 0], state[:, 2]))
    assert ended[0].min() < 0.7
    torch.testing.assert_close(ended[1], torch.ones(64))


def test_an_angle_without_a_direction_stays_as_it_was() -> None:
    bounds = replace(box(9.0, 3, (0.0, 1.0)), angles=((0, 1),))
    before, predicted = torch.tensor([[0.6, -0.8, 0.0]]), torch.tensor([[0.0, 0.0, 10.0]])
    assert bounds.hold(predicted, before).tolist() == [[*before[0, :2].tolist(), 9.0]]
    torch.testing.assert_close(bounds.hold(-5 * before, before)[0, :2], -before[0, :2])


def test_the_penalty_is_taken_off_after_the_bounds() -> None:
    """r̃ = clamp(r̂) - λu, u = ‖μ_2 - μ_0‖ = √(3·20² + 2²)."""
    doubt = (3 * 20**2 + 4) ** 0.5
    step = steps(64, reward_high=0.5, penalty=2.0)
    torch.testing.assert_close(step.uncertainty, torch.full((64,), doubt))
    assert set(step.reward.add(2 * doubt).mul(10).round().long().tolist()) == {0, 5}


class OneBroken(Announcing):
    """The last member predicts nothing, the others a reward of 0 and 1."""

    def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        mean, std, ends = super().predict(observation, action)
        mean[-1], std[-1] = torch.nan, torch.inf
        return mean, std, ends


@pytest.mark.parametrize("uncertainty", sorted(UNCERTAINTIES))
def test_where_one_member_predicts_no_finite_number_no_reward_is_better_than_the_lowest(
    uncertainty: str,
) -> None:
    shape = Architecture(3, 1, 3, (8,), -10.0, 0.5)
    parts = shape, shape.initial_weights(0), plain_maps(4, 4), box(100.0, 3, (-5.0, 10.0))
    model = PessimisticModel(OneBroken(*parts), uncertainty=uncertainty, penalty=2.0)
    step = model.step(torch.zeros(64, 3), torch.zeros(64, 1), SeedGenerators.of([0], CPU))
    assert step.reward.tolist() == [-5.0] * 64
    assert not step.known.any()
    assert 0 < (step.next_observation > 0).any(1).sum() < 64, "the others are followed"
    assert step.next_observation.isfinite().all()


def test_a_learned_termination_is_that_of_the_member_that_gives_the_state() -> None:
    step = steps(3000, termination="learned")
    assert step.terminated is not None
    shares = [step.terminated[step.reward == i].float().mean().item() for i in range(3)]
    assert shares == [0.0, pytest.approx(0.5, abs=0.06), 1.0]


def test_a_rule_ends_rollouts_and_sees_the_state_before_the_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        RULES, "far", Rule(3, lambda observation, action, following: following[:, 0] > 15)
    )
    step = steps(300, limit=7.0, termination="far")
    assert step.terminated is not None
    assert torch.equal(step.terminated, step.reward == 2)
    assert step.next_observation.max() == 7


def test_the_penalty_without_a_unit_follows_the_rewards_scale() -> None:
    model, scale = ends_where_positive(3.0).with_ends("none"), torch.tensor([7.0, 100.0])
    wide = replace(model.bounds, reward_low=-1e6, reward_high=1e6)
    model = replace(model, bounds=wide, normaliser=replace(model.normaliser, target_scale=scale))
    state, action = torch.randn(2, 64, 1, generator=torch.Generator().manual_seed(0))
    rewards = []
    for penalty in (0.0, 2.0):
        mdp = PessimisticModel(model, uncertainty="standardised_difference", penalty=penalty)
        step = mdp.step(state, action, SeedGenerators.of([0], CPU))
        rewards.append(step.reward)
    mean = model.predict(state, action)[0] / scale
    torch.testing.assert_close(
        step.uncertainty, (mean - mean.mean(0)).square().sum(-1).sqrt().amax(0)
    )
    torch.testing.assert_close(
        rewards[0] - rewards[1], 200 * step.uncertainty, rtol=1e-3, atol=1e-3
    )


ENVIRONMENTS = {
    "cartpole": "CartPole-v1",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
}
STEPS = 3000


def rollout(environment: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(observation, action, next_observation, terminated) of random actions, held for a while so
    that it gets far.
    """
    env, drawn, rows = GymBatch(environment), np.random.default_rng(0), []
    observation = env.reset(20, seed=0)
    for step in range(STEPS // 20):
        if step % 3 == 0:
            low, high = env.action_low, env.action_high
            action: Any = drawn.uniform(low, high, (20, len(low)))
            action = drawn.integers(len(low), size=20) if env.discrete_actions else action
        following, _, terminated, truncated = env.step(action)
        rows.append((observation, action.reshape(20, -1), following, terminated))
        observation = env.restart(terminated | truncated)
    *parts, flags = (torch.from_numpy(np.concatenate(part)) for part in zip(*rows, strict=True))
    assert 30 < flags.sum() < STEPS / 3
    seen, chosen, after = (part.float() for part in parts)
    return seen, chosen, after, flags


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_rule_is_the_environments_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some thousand transitions.

    The twin, a rule that looks at the observation before the step, finds no end.
    """
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working directory
    observation, action, following, flags = rollout(ENVIRONMENTS[name])
    assert observation.shape[1] == RULES[name].observation_size
    assert torch.equal(RULES[name].ends(observation, action, following), flags)
    assert not RULES[name].ends(observation, action, observation)[flags].any()


def test_what_is_not_a_number_ends_an_episode() -> None:
    for rule in RULES.values():
        nowhere = torch.full((2, rule.observation_size), torch.nan)
        assert bool(rule.ends(nowhere, torch.zeros(2, 1), nowhere).all())


@pytest.fixture
def ensemble(shape: Architecture) -> GaussianEnsemble:
    normaliser = Normaliser(
        torch.randn(4), torch.rand(4) + 0.5, torch.randn(4), torch.rand(4) + 0.5
    )
    low, high = torch.tensor([-1.0, -1.0, -torch.inf]), torch.tensor([1.0, 1.0, torch.inf])
    bounds = Bounds(low, high, torch.tensor([-2.0]), torch.tensor([2.0]), -16.0, 0.0)
    return GaussianEnsemble(shape, shape.initial_weights(1), normaliser, bounds)


def test_what_is_saved_is_what_is_loaded(ensemble: GaussianEnsemble, tmp_path: Path) -> None:
    head = replace(ensemble.architecture, learned_termination=True)
    observation, action = torch.randn(7, 3), torch.randn(7, 1)
    for made in (
        ensemble,
        replace(
            ensemble,
            termination="hopper",
            bounds=replace(ensemble.bounds, discrete_actions=True, angles=((2, 0),)),
        ),
        replace(
            ensemble, architecture=head, weights=head.initial_weights(1), termination="learned"
        ),
    ):
        made.save(tmp_path, environment="Pendulum-v1", variant="private", rounds=3)
        loaded = GaussianEnsemble.load(tmp_path, CPU)
        assert (loaded.architecture, loaded.termination) == (made.architecture, made.termination)
        assert loaded.bounds.discrete_actions is made.bounds.discrete_actions
        assert loaded.bounds.angles == made.bounds.angles
        assert torch.equal(loaded.bounds.observation_high, made.bounds.observation_high)
        ours, theirs = loaded.predict(observation, action), made.predict(observation, action)
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
    assert ours[2] is not None
    torch.testing.assert_close(ours[2], torch.full((3, 7), 0.01))
    assert sum(w.numel() for w in loaded.weights) == head.parameters


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"members": 5}, r"layers.0.weight has shape \(3, 4, 16\), config.json says \(5, 4, 16\)"),
        ({"termination": "os.system"}, "not a dynamics model"),
    ],
)
def test_broken_files_are_refused_in_one_line(
    ensemble: GaussianEnsemble, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    ensemble.save(tmp_path, environment=None, variant="private", rounds=3)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(PipelineError, match=says):
        GaussianEnsemble.load(tmp_path, CPU)


def test_target_scales() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (
        torch.randn(10_000, 3, generator=generator),
        torch.randn(10_000, 2, generator=generator),
    )
    targets[::100, 0] *= 100
    assert 0.9 < float(Normaliser.from_public(inputs, targets).target_scale[0]) < 1.1
    assert float(targets[:, 0].std()) > 5, "the standard deviation would not have done"
    sparse = (torch.arange(1000) % 20 == 0).float()[:, None]
    torch.testing.assert_close(
        Normaliser.from_public(inputs[:1000], sparse).target_scale, sparse.std(0)
    )
    constant = Normaliser.from_public(torch.ones(50, 3), torch.zeros(50, 2))
    assert torch.equal(constant.input_scale, torch.ones(3))
    torch.testing.assert_close(constant.target_scale, torch.tensor([0.05, 1.0]))


def rows(count: int = 400) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, 0] > 0


def test_a_head_is_believed_where_it_beats_the_rate_of_ends() -> None:
    inputs, ended = rows()
    for sharpness, believed in ((3.0, True), (0.05, False), (-3.0, False)):
        supported, why = judge_ends(ends_where_positive(sharpness), inputs, ended)
        assert supported is believed
        assert why.startswith(f"{int(ended.sum())} public terminations")
    few = ended & (ended.cumsum(0) <= 19)
    some = few | ~ended
    assert not judge_ends(ends_where_positive(3.0), inputs[some], few[some])[0]


def test_without_its_head_a_model_moves_and_pays_as_before_and_never_ends() -> None:
    model = ends_where_positive(3.0)
    bare = model.with_ends("none")
    inputs, _ = rows(64)
    with_head, alone = (one.predict(inputs[:, :1], inputs[:, 1:]) for one in (model, bare))
    torch.testing.assert_close(with_head[:2], alone[:2])
    assert alone[2] is None
    assert bare.with_ends("none") is bare
    assert model.with_ends(None) is model
    assert model.with_ends("none").termination == "none", "as the policy's rollouts used it"


MODEL = StartModel(
    low=torch.tensor([-2.0, 0.0, 0.0, 0.0, 10.0]),
    high=torch.tensor([6.0, 1.0, 1.0, 1.0, 21.0]),
    mean=torch.tensor([1.0, 0.0, 0.0, 0.0, 20.0]),
    factor=torch.diag(torch.tensor([0.5, 0.0, 0.0, 0.0, 2.0])),
    block=torch.tensor([-1, 0, 0, 0, -1]),
    probabilities=torch.tensor([0.0, 0.25, 0.5, 0.25, 0.0]),
)


def test_draws_are_within_the_bounds_and_have_one_category() -> None:
    states = MODEL.sample(20000, torch.Generator().manual_seed(0))
    assert float(states[:, 0].mean()) == pytest.approx(1, abs=0.02)
    assert float(states[:, 0].std()) == pytest.approx(0.5, rel=0.05)
    assert float(states[:, 4].max()) == 21.0
    category = states[:, 1:4]
    assert torch.equal(category.sum(1), torch.ones(len(states)))
    assert set(category.unique().tolist()) <= {0.0, 1.0}
    assert category.mean(0).tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.02)


def test_it_comes_back_from_its_file_and_a_broken_one_is_one_clear_error(tmp_path: Path) -> None:
    model, file = MODEL, tmp_path / FILE
    model.save(tmp_path)
    assert StartModel.load(tmp_path, CPU).survival is None
    model = replace(model, survival=torch.tensor([[1.0, 0.5], [1.0, 0.25]]))
    model.save(tmp_path)
    again = StartModel.load(tmp_path, CPU)
    assert all(
        torch.equal(a, b) for a, b in zip(vars(model).values(), vars(again).values(), strict=True)
    )
    whole = load_file(file)
    for change in ({"mean": torch.full((5,), torch.nan)}, {"first_state": torch.zeros(5)}, None):
        less = {name: value for name, value in whole.items() if name != "factor"}
        save_file(whole | change if change else less, file)
        with pytest.raises(PipelineError, match=rf"{FILE}.*not a model of first states"):
            StartModel.load(tmp_path, CPU)
    file.unlink()
    with pytest.raises(PipelineError, match=r"nobody was asked"):
        StartModel.load(tmp_path, CPU)
