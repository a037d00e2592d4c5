"""Linear heads: the ensemble made of noised weights, and the network of a linear clone."""

from dataclasses import replace

import torch
from torch import Tensor

from primorl.model.architecture import Architecture, CloneNetwork
from primorl.model.ensemble import Bounds, Normaliser, Weights, outputs

_MEMBER_SEED = 7_000_000
_THRESHOLD, _MEDIAN_OF_NORMAL, _MANY = 1.5, 0.6745, 40
_TEACHING_STEPS, _TEACHING_ROWS, _TEACHING_RATE, _TAUGHT = 2000, 512, 5e-3, 0.995


def released_heads(
    trained: Weights,
    spread: Tensor,
    members: int,
    error: float,
    shape: Architecture,
    seed: int,
) -> tuple[Architecture, Weights]:
    """Make an ensemble of one set of noised weights: post-processing.

    The first member is ``trained``. To its weights the others add draws from the known distribution
    of the noise of the rounds. So where they differ, privacy made the model unsure. Of features of
    degree 3 every second member keeps those of degree 2 alone: away from the data they differ much.

    Args:
        trained: weights of the means, ``[1, F, targets]`` and ``[1, 1, targets]``, and the logit
            behind them.
        spread: standard deviations of the residuals, in scales of the target, ``[targets]``.
        members: N.
        error: standard deviation of the noise in every weight
            (`primorl.engine.heads.noise_in_weights`).
        shape: that was trained.
        seed: of the draws.
    """
    low, high = shape.log_variance_low, shape.log_variance_high
    assert shape.features is not None, "networks are released as they are"
    kept = (
        replace(shape.features, degree=2).size if shape.features.degree > 2 else shape.features.size
    )
    whole = replace(shape, members=members, spread=True)
    weights = []
    generator = torch.Generator().manual_seed(_MEMBER_SEED + seed)
    for number, part in enumerate(trained):
        drawn = error * torch.randn(members - 1, *part.shape[1:], generator=generator)
        varied = torch.cat((part.cpu(), part.cpu() + drawn))
        if not number:
            varied[1::2, kept:] = 0.0
        means, logit = varied[..., : shape.targets], varied[..., shape.targets :]
        raw = torch.zeros(members, *part.shape[1:-1], shape.targets)
        if number:
            raw += raw_log_variance(2 * spread.clamp(min=1e-9).log(), low, high)
        weights.append(torch.cat((means, raw, logit), -1))
    return whole, tuple(weights)


def without_noise(weights: Weights, error: float) -> Weights:
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


def raw_log_variance(wanted: Tensor, low: float, high: float) -> Tensor:
    """Invert `primorl.model.ensemble.soft_bounded`."""
    margin = 1e-3 * (high - low)
    share = torch.expm1(
        wanted.clamp(low + margin, high - margin) - low
    ).log()  # softplus(below - low) = wanted - low
    return high - torch.expm1(high - (share + low)).log()


def distilled(
    heads: CloneNetwork,
    weights: Weights,
    normaliser: Normaliser,
    bounds: Bounds,
    spread: Tensor,
    hidden: tuple[int, ...],
    seed: int,
) -> tuple[CloneNetwork, Weights, Normaliser]:
    """Distil a linear clone into a network, on made-up observations: post-processing.

    So all that is made of a clone stays as it is: its files, ONNX, policies that begin as it does.

    Args:
        heads: linear heads.
        weights: of the heads.
        normaliser: with the features of the heads.
        bounds: of observations.
        spread: standard deviations of the residuals ``[A]``; of actions in a box.
        hidden: units of each hidden layer of the network.
        seed: of the network's weights and the observations.
    """
    shape, S = replace(heads, features=None, hidden=hidden), heads.observation_size
    plain = replace(normaliser, features=None, basis=None)
    generator = torch.Generator().manual_seed(seed)
    layers = [part.requires_grad_() for part in shape.initial_weights(seed)]
    optimiser = torch.optim.Adam(layers, _TEACHING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _TEACHING_STEPS)
    one_hot = heads.features.one_hot if heads.features is not None else ()
    for _ in range(_TEACHING_STEPS):
        z = torch.randn(_TEACHING_ROWS, S, generator=generator) * (
            1 + (torch.arange(_TEACHING_ROWS) % 2).unsqueeze(1)
        )
        observed = plain.input_mean + plain.input_scale * z
        for first, size in one_hot:
            drawn = torch.multinomial(
                plain.input_mean[first : first + size], _TEACHING_ROWS, True, generator=generator
            )
            observed[:, first : first + size] = torch.nn.functional.one_hot(drawn, size).float()
        observed = observed.clamp(bounds.observation_low, bounds.observation_high)
        wanted = outputs(weights, normaliser.inputs(observed)[None])
        signal = plain.inputs(observed)[None]
        for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
            signal = torch.baddbmm(bias, signal, weight).relu()
        output = torch.baddbmm(layers[-1], signal, layers[-2])
        if heads.discrete_actions:
            loss = -(wanted.softmax(-1) * output.log_softmax(-1)).sum(-1).mean()
        else:
            mean = output[..., : heads.action_size].tanh()
            loss = (mean - wanted.clamp(-_TAUGHT, _TAUGHT)).square().sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    taught = [part.detach() for part in layers]
    if not heads.discrete_actions:
        low, high = heads.log_variance_low, heads.log_variance_high
        taught[-2][..., heads.action_size :] = 0.0
        taught[-1][..., heads.action_size :] = raw_log_variance(
            2 * spread.clamp(min=1e-9).log(), low, high
        )
    return shape, tuple(taught), plain
