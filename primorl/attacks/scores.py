"""What an attacker computes from a release about a unit: higher where the unit seems to have been in the data."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata
from torch import Tensor

from primorl.attacks.units import Units
from primorl.dynamics.ensemble import GaussianEnsemble, forward, negative_log_likelihood
from primorl.dynamics.pessimism import max_pairwise_difference
from primorl.policy.exported import DeterministicPolicy

Floats = NDArray[np.float64]

_LARGEST = 1e100  # squares still have a mean


@torch.no_grad()
def model_scores(model: GaussianEnsemble, units: Units) -> dict[str, Floats]:
    """Scores ``[U]`` from a released model.

    ``loss``: minus the negative log-likelihood of the trajectory's transitions, mean over them and over the ensemble.
    ``disagreement``: minus the mean of u_MPD along the trajectory; an ensemble agrees about what it was trained on.
    """
    shape, size = model.architecture, model.architecture.observation_size
    inputs, targets = units.flat()
    known = model.normaliser.inputs(inputs).expand(shape.members, -1, -1)
    mean, log_variance = forward(model.weights, known, shape.log_variance_low, shape.log_variance_high)
    loss = negative_log_likelihood(mean, log_variance, model.normaliser.targets(targets)).mean(0)
    predicted, std, _ = model.predict(inputs[:, :size], inputs[:, size:])
    doubt = max_pairwise_difference(predicted, std)
    return {"loss": _by_unit(-loss, units).mean(1), "disagreement": _by_unit(-doubt, units).mean(1)}


@torch.no_grad()
def policy_scores(policy: DeterministicPolicy, units: Units) -> dict[str, Floats]:
    """Scores ``[U]`` from a released policy, which holds neither a critic nor a likelihood of its own.

    ``actions``: log-likelihood of the trajectory's actions, up to constants, under a normal around the policy's: minus
    the mean squared distance. ``rewards``: correlation along the trajectory between the reward and that closeness; it
    is high where the policy does what paid in this trajectory, whether or not the trajectory itself did it often.
    """
    inputs, targets = units.flat()
    size = policy.observation_size
    near = _by_unit(-(inputs[:, size:] - policy.act(inputs[None, :, :size])[0]).square().sum(1), units)
    reward = _by_unit(targets[:, -1], units)
    spread = near.std(1) * reward.std(1)
    together = ((near - near.mean(1, keepdims=True)) * (reward - reward.mean(1, keepdims=True))).mean(1)
    rewards = np.divide(together, spread, out=np.zeros_like(spread), where=spread > 0)
    return {"actions": near.mean(1), "rewards": rewards}


def likelihood_ratio(score: Floats, shadows: Sequence[Floats]) -> Floats:
    """A score as the surprise that it is under models trained without the unit: offline LiRA (Carlini et al. 2022).

    With few shadow models the variance of a score is best taken as common to all units (their section VI), and then
    the one-sided test orders units by score minus mean shadow score. Scores become normal quantiles of their rank among
    all candidates first: noise scales the losses of one model by powers of ten against another's.

    Args:
        score: of every candidate under the release, ``[U]``.
        shadows: the same under models trained, the same way, on the attacker's own units.
    """
    return np.asarray(_normal(score) - np.stack([_normal(shadow) for shadow in shadows]).mean(0))


def _normal(score: Floats) -> Floats:
    return np.asarray(ndtri((rankdata(score) - 0.5) / len(score)), dtype=np.float64)


def _by_unit(rows: Tensor, units: Units) -> Floats:
    """``[U·M]`` to ``[U, M]``; what a broken model says of a unit, NaN, counts as least likely."""
    sound = rows.double().nan_to_num(nan=-np.inf).clamp(-_LARGEST, _LARGEST)
    return np.asarray(sound.view(units.units, -1).numpy())
