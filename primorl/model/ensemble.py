"""The dynamics model: standardised inputs and targets, and the released ensemble of members."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, silu, softplus

from primorl.base import PipelineError
from primorl.model.architecture import END_SCALE, TERMINATION_GAIN, Architecture, ModelConfig
from primorl.model.features import Polynomials
from primorl.model.numerics import to_device
from primorl.model.termination import LEARNED, NONE, RULES, Ends

_MOST_QUANTILE_ROWS = 1 << 18  # torch.quantile takes 16 million numbers at most
_NO_DIRECTION = 1e-6  # length of a vector, up to which it is of no angle
_STEADY = 0.05  # scale of a change that is always the same, in standard deviations of what changes
_HEAVY = 2.0  # a standard deviation of so many usual spreads is that of rare large values


@dataclass(frozen=True)
class Normaliser:
    """Affine maps to standardised inputs and targets, made from public people or from answers to
    charged queries (`primorl.engine.queries.make_normaliser`).

    By public people, inputs are centred on their mean and divided by their standard deviation.
    Targets are centred on their median and divided by a robust spread, the 90% quantile of
    |y - median| over 1.645 (the normal's): a few rare jumps may hold most of a target's variance,
    and scaled by that the usual motion would vanish.

    With ``flag``, targets keep one column behind the standardised ones: whether the episode
    terminated, for linear heads in units of `END_SCALE`. With ``features``, inputs become these, of
    columns that are combined by ``basis`` (`Polynomials.basis`).
    """

    input_mean: Tensor
    input_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor
    flag: bool = False
    features: Polynomials | None = None
    basis: Tensor | None = None

    @classmethod
    def from_public(cls, inputs: Tensor, targets: Tensor, flag: bool = False) -> "Normaliser":
        """Fit maps to public transitions: inputs ``[R, S + A]``, targets ``[R, S + 1]``, one column
        more with ``flag``.
        """
        targets = targets[:, :-1] if flag else targets
        targets = targets[:: -(-len(targets) // _MOST_QUANTILE_ROWS)]
        centre = targets.median(dim=0).values
        spread = (targets - centre).abs().quantile(0.9, dim=0) / 1.645
        # Sparse targets have no such spread; of rewards, rare large ones are what matters, and none
        # may be far outside.
        spread = torch.where(spread > 0, spread, deviation := targets.std(dim=0))
        spread[-1] = deviation[-1] if deviation[-1] > _HEAVY * spread[-1] else spread[-1]
        scale = _positive(inputs.std(0))
        # A counter or a trait of the person moves alike in every step. Its noise must be small
        # beside its own range.
        steady = _STEADY * scale[: len(spread) - 1]
        spread[:-1] = torch.where(spread[:-1] > 1e-6, spread[:-1], steady)
        return cls(inputs.mean(0), scale, centre, _positive(spread), flag)

    def inputs(self, raw: Tensor) -> Tensor:
        """Standardise ``[..., S + A]``, and make features of it where there are any."""
        if self.features is None or self.basis is None:
            return (raw - self.input_mean) / self.input_scale
        return self.features(_by_column(raw, self.input_mean, self.input_scale), self.basis)

    def with_features(self, features: Polynomials, frequencies: Tensor) -> "Normaliser":
        """Make ``features`` of the inputs; their categories have these ``frequencies [S + A]``."""
        shares = features.centre(frequencies)
        one_hot = torch.ones(features.inputs, dtype=torch.bool)
        one_hot[features.continuous] = False
        return replace(
            self,
            input_mean=torch.where(one_hot, shares, self.input_mean),
            input_scale=torch.where(one_hot, torch.ones_like(shares), self.input_scale),
            features=features,
            basis=features.basis(frequencies),
        )

    def targets(self, raw: Tensor) -> Tensor:
        """Standardise the first S + 1 columns of ``[..., >= S + 1]``; gives these, and the flag
        where it is kept.
        """
        size = len(self.target_mean)
        if self.features is None:
            standardised = (raw[..., :size] - self.target_mean) / self.target_scale
            if not self.flag:
                return standardised
            return torch.cat((standardised, raw[..., size : size + 1]), dim=-1)
        return _by_column(raw[..., : size + self.flag], self.target_mean, self.target_scale)

    def to(self, device: torch.device) -> "Normaliser":
        """Return the same maps on ``device``."""
        return to_device(self, device)


def _by_column(raw: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Standardise all columns that have a mean, and divide a flag behind them by `END_SCALE`.

    In memory, values of a column follow each other (`Polynomials`).
    """
    rows, size = raw.reshape(-1, raw.shape[-1]).T, len(mean)
    found = rows.new_empty(rows.shape)
    torch.sub(rows[:size], mean.unsqueeze(1), out=found[:size]).div_(scale.unsqueeze(1))
    torch.div(rows[size:], END_SCALE, out=found[size:])
    return found.T.view(raw.shape)


def _positive(scale: Tensor) -> Tensor:
    return torch.where(scale > 1e-6, scale, torch.ones_like(scale))


# what a damaged or hostile file makes the reader raise
_BROKEN = (ValueError, KeyError, TypeError, OverflowError, RecursionError, SafetensorError)

FEWEST_ENDS, END_MARGIN = 20, 0.1
_RAREST = 1e-3  # probability of an end, where a cross-entropy judges it
Weights = tuple[Tensor, ...]
"""Alternating ``[N, in, out]`` matrices and ``[N, 1, out]`` biases, first layer first."""


def outputs(
    weights: Weights, inputs: Tensor, activation: Callable[[Tensor], Tensor] = silu
) -> Tensor:
    """Run the network: ``[N, B, S + A]`` standardised inputs to ``[N, B, 2(S + 1)]``, or one more
    with a logit.
    """
    hidden = inputs
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        hidden = activation(torch.baddbmm(bias, hidden, weight))
    return torch.baddbmm(weights[-1], hidden, weights[-2])


def gaussian(shape: Architecture, output: Tensor) -> tuple[Tensor, Tensor]:
    """Split `outputs` into mean and log-variance of the standardised targets, two ``[.., S + 1]``
    tensors.

    Where only means are trained, the log-variance is 0.
    """
    size = shape.targets
    if not shape.spread:
        return output[..., :size], torch.zeros_like(output[..., :size])
    raw = output[..., size : 2 * size]
    return output[..., :size], bound_softly(raw, shape.log_variance_low, shape.log_variance_high)


def end_probability(shape: Architecture, output: Tensor) -> Tensor:
    """Return the probability that a step ends the episode, of `outputs` whose last column tells
    it.
    """
    if shape.features is None:
        return torch.sigmoid(TERMINATION_GAIN * output[..., -1])
    return (END_SCALE * output[..., -1]).clamp(0.0, 1.0)


def bound_softly(raw: Tensor, low: float, high: float) -> Tensor:
    """Squeeze ``raw`` smoothly into (low, high) by two softplus functions, as in PETS and MOPO."""
    below_high = high - softplus(high - raw)
    return low + softplus(below_high - low)


def negative_log_likelihood(
    mean: Tensor, log_variance: Tensor, targets: Tensor, beta_nll: float = 0.0
) -> Tensor:
    """Return the Gaussian negative log-likelihood, summed over the last axis, without its constant.

    With β = ``beta_nll`` each term counts variance^β, without its gradient (Seitzer et al. 2022).
    """
    terms = (mean - targets).square() * torch.exp(-log_variance) + log_variance
    if beta_nll > 0:
        terms = terms * torch.exp(beta_nll * log_variance.detach())
    return 0.5 * terms.sum(-1)


@dataclass(frozen=True)
class Bounds:
    """Bounds of model states, actions and rewards: declared or public facts.

    ``observation_*`` are ``[S]``, ``action_*`` are ``[A]``; infinite where nothing is known.
    Discrete actions are one-hot vectors, with bounds 0 and 1. ``before_end`` bounds the rewards of
    steps that do not end the episode; None: as all rewards. ``angles`` are pairs of columns that
    are cosine and sine of one angle.
    """

    observation_low: Tensor
    observation_high: Tensor
    action_low: Tensor
    action_high: Tensor
    reward_low: float
    reward_high: float
    discrete_actions: bool = False
    before_end: tuple[float, float] | None = None
    angles: tuple[tuple[int, int], ...] = ()

    def hold(self, predicted: Tensor, before: Tensor) -> Tensor:
        """Hold predicted states ``[B, S]`` within the bounds, and angles on the unit circle.

        A clipped draw of a cosine near 1 is on average nearer to 0, and so over many steps a model
        leaves the circle, where members that never saw such a state agree. Without a direction an
        angle stays as in ``before [B, S]``.
        """
        held = torch.clamp(predicted, self.observation_low, self.observation_high)
        for pair in self.angles:
            length = torch.hypot(*(held[:, column] for column in pair))
            for column in pair:
                unit = held[:, column] / length
                held[:, column] = torch.where(length > _NO_DIRECTION, unit, before[:, column])
        return held


@dataclass(frozen=True)
class GaussianEnsemble:
    """A trained ensemble with all that is needed to use it.

    ``termination`` says how a rollout knows its end: ``none`` (never), ``learned`` or a name in
    `RULES`.
    """

    architecture: Architecture
    weights: Weights
    normaliser: Normaliser
    bounds: Bounds
    termination: str = NONE

    def __post_init__(self) -> None:
        if self.termination not in (NONE, LEARNED, *RULES):
            raise ValueError(f"no termination rule {self.termination!r}")

    def member(self, number: int) -> "GaussianEnsemble":
        """Return one member as an ensemble of its own."""
        alone = tuple(w[number : number + 1] for w in self.weights)
        return replace(self, architecture=replace(self.architecture, members=1), weights=alone)

    def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Predict (next_observation - observation, reward) with every member, in the data's units.

        An outcome is earned once: where rewards before the end have bounds of their own, and a
        member gives the step a chance p to be the last, its reward is held within (1 - p) of those
        and p of those of all rewards.

        Args:
            observation: ``[B, S]``.
            action: ``[B, A]``.

        Returns:
            Mean and standard deviation, ``[N, B, S + 1]`` each, and the probability that the step
            terminates the episode, ``[N, B]``; None where that is not learned.
        """
        shape = self.architecture
        inputs = self.normaliser.inputs(torch.cat((observation, action), dim=-1))
        output = outputs(self.weights, inputs.expand(shape.members, -1, -1))
        mean, log_variance = gaussian(shape, output)
        scale = self.normaliser.target_scale
        ends = end_probability(shape, output) if shape.learned_termination else None
        mean = mean * scale + self.normaliser.target_mean
        if ends is not None and self.bounds.before_end is not None:
            rewards = self.bounds.reward_low, self.bounds.reward_high
            pairs = zip(self.bounds.before_end, rewards, strict=True)
            low, high = ((1 - ends) * before + ends * last for before, last in pairs)
            reward = torch.minimum(torch.maximum(mean[..., -1], low), high)
            mean = torch.cat((mean[..., :-1], reward.unsqueeze(-1)), dim=-1)
        return mean, torch.exp(0.5 * log_variance) * scale, ends

    def with_ends(self, ends: Ends) -> "GaussianEnsemble":
        """Return the model as a policy's rollouts used it: without its learned termination, with a
        number taken off the output that tells it, or as it is.
        """
        if ends is None or (ends == NONE and self.termination != LEARNED):
            return self
        *others, weight, bias = self.weights
        if ends != NONE:
            bias = bias.clone()
            bias[..., -1] -= float(ends)
            return replace(self, weights=(*others, weight, bias))
        return replace(
            self,
            architecture=replace(self.architecture, learned_termination=False),
            weights=(*others, weight[..., :-1], bias[..., :-1]),
            normaliser=replace(self.normaliser, flag=False),
            termination=NONE,
        )

    def save(self, folder: Path, **facts: Any) -> None:
        """Write ``model.safetensors`` and ``config.json``.

        Args:
            folder: an existing folder.
            facts: fields of `ModelConfig` that the ensemble does not know, such as ``variant`` and
                ``rounds``.
        """
        tensors = {
            f"layers.{i // 2}.{('weight', 'bias')[i % 2]}": w for i, w in enumerate(self.weights)
        }
        for part in (self.normaliser, self.bounds):
            tensors |= {
                name: value for name, value in vars(part).items() if isinstance(value, Tensor)
            }
        save_file(
            {k: v.detach().float().cpu().contiguous() for k, v in tensors.items()},
            folder / "model.safetensors",
        )
        known = vars(self.architecture) | vars(self.bounds) | {"termination": self.termination}
        own = {
            name: value for name, value in known.items() if name in ModelConfig.__dataclass_fields__
        }
        if (features := self.architecture.features) is not None:
            own |= {"degree": features.degree, "one_hot": features.one_hot}
        ModelConfig(**own, **facts).write(folder)

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> "GaussianEnsemble":
        """Read the files of ``save``. Executes nothing from them.

        Raises:
            PipelineError: a file is missing, broken, or does not fit the other.
        """
        try:
            config = ModelConfig.read(folder)
            return cls._assemble(
                config, load_file(folder / "model.safetensors", device=str(device))
            )
        except FileNotFoundError as missing:
            raise PipelineError(
                f"{missing.filename or folder}: not there; `dvc checkout` brings it back"
            ) from None
        except _BROKEN as broken:
            reason = broken if isinstance(broken, _MismatchError) else type(broken).__name__
            raise PipelineError(
                f"{folder}: not a dynamics model ({reason}); `dvc checkout` brings it back"
            ) from None

    @classmethod
    def _assemble(cls, config: ModelConfig, tensors: Mapping[str, Any]) -> "GaussianEnsemble":
        shape = Architecture.of(config)
        S, A = shape.observation_size, shape.action_size
        maps = {
            "input_mean": S + A,
            "input_scale": S + A,
            "target_mean": S + 1,
            "target_scale": S + 1,
        }
        limits = {"observation_low": S, "observation_high": S, "action_low": A, "action_high": A}
        sizes: dict[str, tuple[int, ...]] = {}
        for i, (inputs, outputs) in enumerate(shape.layers):
            sizes[f"layers.{i}.weight"] = (shape.members, inputs, outputs)
            sizes[f"layers.{i}.bias"] = (shape.members, 1, outputs)
        weights = tuple(tensors[name] for name in sizes)
        sizes |= {name: (size,) for name, size in (maps | limits).items()}
        for name, wanted in sizes.items():
            if (found := tuple(tensors[name].shape)) != wanted:
                raise _MismatchError(f"{name} has shape {found}, config.json says {wanted}")
        own = {name: tensors[name] for name in maps}
        basis = None if shape.features is None else tensors["basis"]
        facts = ("reward_low", "reward_high", "discrete_actions", "before_end", "angles")
        bounds = Bounds(
            **{name: tensors[name] for name in limits},
            **{name: getattr(config, name) for name in facts},
        )
        normaliser = Normaliser(**own, features=shape.features, basis=basis)
        return cls(shape, weights, normaliser, bounds, config.termination)


@torch.no_grad()
def judge_ends(ensemble: GaussianEnsemble, inputs: Tensor, terminated: Tensor) -> tuple[bool, str]:
    """Tell whether public rows support the learned termination of a model on the CPU, since a
    predicted end avoids all costs that would follow; and the figures, for a log.

    They do with `FEWEST_ENDS` or more, if the cross-entropy of the members' mean probability beats
    that of their rate by the share `END_MARGIN`.

    ``inputs [R, S + A]`` are public, and so is ``terminated``, bool ``[R]``: whether a step ended
    its episode.
    """
    S = ensemble.architecture.observation_size
    _, _, ends = ensemble.predict(inputs[:, :S], inputs[:, S:])
    assert ends is not None, "this model learned no termination"
    flags = terminated.to(ends.dtype)
    rate = flags.mean().expand_as(flags)
    said = ends.mean(0).clamp(_RAREST, 1 - _RAREST)
    loss, constant = (float(binary_cross_entropy(p, flags)) for p in (said, rate))
    count = int(terminated.sum())
    why = (
        f"{count} public terminations (needed {FEWEST_ENDS}), cross-entropy {loss:.4g} against "
        f"{constant:.4g} of a constant rate (needed {1 - END_MARGIN:g} of it)"
    )
    return count >= FEWEST_ENDS and loss <= (1 - END_MARGIN) * constant, why


def load_model(folder: str | os.PathLike[str], device: str = "cpu") -> GaussianEnsemble:
    """Read a trained dynamics model: ``models/dynamics``, or ``dynamics`` in a released bundle.

    Nothing in the files runs. ``model.predict(observation [B, S], action [B, A])`` gives the
    prediction of every member.

    Raises:
        PipelineError: a file is missing or broken, or the files contradict each other; one line.
    """
    return GaussianEnsemble.load(Path(folder), torch.device(device))


class _MismatchError(ValueError):
    """Two files of one model that contradict each other."""
