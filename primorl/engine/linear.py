"""Linear heads: the ensemble that is made of noised weights."""

from dataclasses import replace

import torch
from torch import Tensor

from primorl.model.architecture import Architecture
from primorl.model.ensemble import Weights

_MEMBER_SEED = 7_000_000
_THRESHOLD, _MEDIAN_OF_NORMAL, _MANY = 1.5, 0.6745, 40


def make_members(
    trained: Weights, spread: Tensor, error: float, shape: Architecture, seed: int
) -> Weights:
    """Make the weights of an ensemble of one set of noised weights: post-processing.

    The first member is ``trained``. To its weights the others add draws from the known distribution
    of the noise of the rounds. So where they differ, privacy made the model unsure. Of features of
    degree 3 every second member keeps those of degree 2 alone: away from the data they differ much.

    Args:
        trained: weights of the means, ``[1, F, targets]`` and ``[1, 1, targets]``, and the logit
            behind them.
        spread: standard deviations of the residuals, in scales of the target, ``[targets]``.
        error: standard deviation of the noise in every weight
            (`primorl.engine.heads.noise_in_weights`).
        shape: of the ensemble.
        seed: of the draws.
    """
    assert shape.features is not None, "networks are released as they are"
    generator = torch.Generator().manual_seed(_MEMBER_SEED + seed)
    parts, others = [part.cpu() for part in trained], shape.members - 1
    noise = [torch.randn(others, *part.shape[1:], generator=generator) for part in parts]
    pairs = zip(parts, noise, strict=True)
    factors, biases = (torch.cat((part, part + error * drawn)) for part, drawn in pairs)
    if shape.features.degree > 2:
        factors[1::2, replace(shape.features, degree=2).size :] = 0.0
    raw = raw_log_variance(spread, shape.log_variance_low, shape.log_variance_high)
    joined = []
    for part, own in ((factors, torch.zeros_like(raw)), (biases, raw)):
        means, logit = part[..., : shape.targets], part[..., shape.targets :]
        joined.append(torch.cat((means, own.expand_as(means), logit), -1))
    return tuple(joined)


def shrink_weights(weights: Weights, error: float) -> Weights:
    """Shrink weights that noise could have made: w (1 - (1.5 σ / w)²), and 0 below 1.5 σ (garrote;
    Breiman 1995).

    σ is the known ``error``, or less where most weights of a target are smaller than that. Biases
    stay as they are, and so do all weights of fewer than 40 features: of few, most count, and
    Pendulum's policies were worse with it.
    """
    if weights[0].shape[1] < _MANY:
        return weights
    factors, biases = (part.cpu() for part in weights)
    usual = (factors.abs().median(1, keepdim=True).values / _MEDIAN_OF_NORMAL).clamp(max=error)
    kept = (1 - (_THRESHOLD * usual / factors.abs().clamp(min=1e-12)).square()).clamp(min=0)
    return factors * kept, biases


def raw_log_variance(deviation: Tensor, low: float, high: float) -> Tensor:
    """Return what `primorl.model.ensemble.bound_softly` makes the log-variance of."""
    margin = 1e-3 * (high - low)
    wanted = (2 * deviation.clamp(min=1e-9).log()).clamp(low + margin, high - margin)
    share = torch.expm1(wanted - low).log()  # softplus(below - low) = wanted - low
    return high - torch.expm1(high - (share + low)).log()
