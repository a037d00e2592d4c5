"""Scores see what they are meant to see, and take what broken models say for least likely."""

from dataclasses import replace

import numpy as np
import torch
from scipy.stats import spearmanr

from primorl.attacks.membership import public_units, recipe
from primorl.attacks.population import OBSERVATION_SIZE, bounds, population
from primorl.attacks.scores import likelihood_ratio, model_scores, policy_scores
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.policy.exported import DeterministicPolicy


def untrained() -> GaussianEnsemble:
    shape = recipe("no_clip").setup.architecture
    return GaussianEnsemble(shape, shape.initial_weights(0), Normaliser.from_public(*public_units().flat()), bounds())


def policy(weight: torch.Tensor) -> DeterministicPolicy:
    """tanh(wᵀ observation), on the observation's own scale."""
    size = OBSERVATION_SIZE
    layers = (weight.view(1, 1, size), torch.zeros(1, 1, 1))
    return DeterministicPolicy(layers, torch.zeros(size), torch.ones(size), -torch.ones(1), torch.ones(1))


def test_loss_is_the_likelihood_of_the_whole_trajectory() -> None:
    """A unit that moves as the model predicts is likelier than the same unit with other targets."""
    model, units = untrained(), population(20, 5, 0)
    inputs = units.inputs.flatten(0, 1)
    mean, _, _ = model.predict(inputs[:, :OBSERVATION_SIZE], inputs[:, OBSERVATION_SIZE:])
    predicted = replace(units, targets=mean.mean(0).view_as(units.targets))
    moved = replace(units, targets=predicted.targets + 1.0)
    assert (model_scores(model, predicted)["loss"] > model_scores(model, moved)["loss"]).all()


def test_what_a_broken_model_says_is_least_likely_and_finite() -> None:
    model = untrained()
    broken = replace(model, weights=tuple(w * float("nan") for w in model.weights))
    scores = model_scores(broken, population(4, 5, 0))
    assert all(np.isfinite(score).all() for score in scores.values())
    assert scores["loss"].max() < -1e50


def test_rewards_find_the_policy_that_does_what_paid() -> None:
    """One policy gives each unit its best dose, the twin the opposite; random doses hide that from ``actions``."""
    units = population(200, 20, 3)
    doses, rewards = units.inputs[:, :, -1], units.targets[:, :, -1]
    best = ((doses * rewards).mean(1) - doses.mean(1) * rewards.mean(1)).sign()
    covariates = units.inputs[:, 0, :OBSERVATION_SIZE]
    weight = torch.linalg.lstsq(covariates, best.unsqueeze(1)).solution
    right = (covariates @ weight).squeeze(1).sign() == best
    assert 0.6 < right.float().mean() < 0.8  # signs do not depend on covariates: a line cannot fit 200 of them
    for sign in (1, -1):
        found = policy_scores(policy(3 * sign * weight.squeeze(1)), units)["rewards"]
        same = right.numpy() if sign == 1 else ~right.numpy()
        assert found[same].mean() > 0.5 > -0.5 > found[~same].mean()


def test_a_likelihood_ratio_takes_away_what_is_hard_for_every_model() -> None:
    """Scores are difficulty and membership, and shadows know difficulty. Rising maps of scores change nothing."""
    rng = np.random.default_rng(0)
    member = rng.random(500) < 0.5
    difficulty = 3 * rng.standard_normal(500)
    score = member + difficulty + 0.1 * rng.standard_normal(500)
    shadows = [difficulty + 0.1 * rng.standard_normal(500) for _ in range(3)]
    ratio = likelihood_ratio(score, shadows)
    assert spearmanr(ratio, member).statistic > 0.7 > 0.3 > spearmanr(score, member).statistic
    np.testing.assert_allclose(likelihood_ratio(np.exp(score), [np.exp(s) for s in shadows]), ratio)
