"""Linear heads: the ensemble made of noised weights, and the network of a linear clone."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot, relu

from primorl.model.architecture import Architecture, CloneNetwork
from primorl.model.ensemble import Bounds, Normaliser, Weights, outputs

_MEMBER_SEED = 7_000_000
_THRESHOLD, _MEDIAN_OF_NORMAL, _MANY = 1.5, 0.6745, 40
_TEACHING_STEPS, _TEACHING_ROWS, _TEACHING_RATE, _TAUGHT = 2000, 512, 5e-3, 0.995


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
    raw = _raw_log_variance(spread, shape.log_variance_low, shape.log_variance_high)
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


def _raw_log_variance(deviation: Tensor, low: float, high: float) -> Tensor:
    """Return what `primorl.model.ensemble.bound_softly` makes the log-variance of."""
    margin = 1e-3 * (high - low)
    wanted = (2 * deviation.clamp(min=1e-9).log()).clamp(low + margin, high - margin)
    share = torch.expm1(wanted - low).log()  # softplus(below - low) = wanted - low
    return high - torch.expm1(high - (share + low)).log()


def distil(
    heads: CloneNetwork,
    weights: Weights,
    normaliser: Normaliser,
    bounds: Bounds,
    spread: Tensor,
    hidden: tuple[int, ...],
    seed: int,
) -> tuple[CloneNetwork, Weights, Normaliser]:
    """Distil a linear clone into a network, on made-up observations: post-processing.

    So all that is made of a clone stays as it is: its files, policies that begin as it does.

    Args:
        heads: linear heads.
        weights: of the heads.
        normaliser: with the features of the heads.
        bounds: of observations.
        spread: standard deviations of the residuals ``[A]``; of actions in a box.
        hidden: units of each hidden layer of the network.
        seed: of the network's weights and the observations.
    """
    shape = replace(heads, features=None, hidden=hidden)
    plain = replace(normaliser, features=None, basis=None)
    generator = torch.Generator().manual_seed(seed)
    layers = [part.requires_grad_() for part in shape.initial_weights(seed)]
    optimiser = torch.optim.Adam(layers, _TEACHING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _TEACHING_STEPS)
    for _ in range(_TEACHING_STEPS):
        observed = _make_up_observations(heads, plain, bounds, generator)
        wanted = outputs(weights, normaliser.inputs(observed)[None])
        output = outputs(tuple(layers), plain.inputs(observed)[None], relu)
        if heads.discrete_actions:
            loss = -(wanted.softmax(-1) * output.log_softmax(-1)).sum(-1).mean()
        else:
            mean = output[..., : heads.action_size].tanh()
            loss = (mean - wanted.clamp(-_TAUGHT, _TAUGHT)).square().sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    taught = tuple(part.detach() for part in layers)
    if not heads.discrete_actions:
        low, high = heads.log_variance_low, heads.log_variance_high
        taught[-2][..., heads.action_size :] = 0.0
        taught[-1][..., heads.action_size :] = _raw_log_variance(spread, low, high)
    return shape, taught, plain


def _make_up_observations(
    heads: CloneNetwork, plain: Normaliser, bounds: Bounds, generator: torch.Generator
) -> Tensor:
    """Draw observations, ``[rows, S]``: every second one twice as far from the mean."""
    z = torch.randn(_TEACHING_ROWS, heads.observation_size, generator=generator)
    z[1::2] *= 2
    observed = plain.input_mean + plain.input_scale * z
    for first, size in heads.features.one_hot if heads.features is not None else ():
        shares = plain.input_mean[first : first + size]
        drawn = torch.multinomial(shares, _TEACHING_ROWS, True, generator=generator)
        observed[:, first : first + size] = one_hot(drawn, size).float()
    return observed.clamp(bounds.observation_low, bounds.observation_high)
