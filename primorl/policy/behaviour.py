"""A cloned behaviour: a stochastic policy, the released policy that is made of it, its files."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import Tensor

from primorl.base import PipelineError
from primorl.model.architecture import CloneNetwork
from primorl.model.ensemble import Bounds, Normaliser, Weights, bound_softly
from primorl.model.numerics import SeedGenerators
from primorl.policy import exported
from primorl.policy.config import NO_BEHAVIOUR, SPREAD, BehaviourConfig
from primorl.policy.exported import DeterministicPolicy, Layers
from primorl.policy.loaded import check_shapes


@dataclass(frozen=True)
class BehaviourPolicy:
    """How the people in a log acted, as a distribution over actions at every observation.

    Actions in a box, scaled to [-1, 1], are independent normals. Discrete actions are one-hot
    vectors.

    Attributes:
        policy: its mean or likeliest action; one network (P = 1); its output is the mean before
            tanh, or the logits.
        spread: weight ``[1, A, in]`` and bias ``[1, 1, A]`` of the raw log-variance in the last
            layer; None: discrete.
        log_variance: its bounds.
        rare: discrete actions that are never taken, as people hardly ever took them.
    """

    policy: DeterministicPolicy
    spread: tuple[Tensor, Tensor] | None
    log_variance: tuple[float, float] | None
    rare: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        network: CloneNetwork,
        weights: Weights,
        normaliser: Normaliser,
        bounds: Bounds,
        rare: tuple[int, ...] = (),
    ) -> "BehaviourPolicy":
        """Build the policy of trained weights, which never takes ``rare`` actions, on the CPU;
        weights of policies are ``[1, out, in]``.
        """
        layers = [
            part.detach().cpu().contiguous()
            for weight, bias in zip(weights[::2], weights[1::2], strict=True)
            for part in (weight.mT, bias)
        ]
        size = network.action_size
        last = (layers[-2][:, :size], layers[-1][..., :size])
        maps = normaliser.to(torch.device("cpu"))
        scales = (maps.input_mean, maps.input_scale, bounds.action_low, bounds.action_high)
        policy = DeterministicPolicy((*layers[:-2], *last), *scales, network.discrete_actions)
        if network.discrete_actions:
            return cls(policy.without(rare), None, None, rare)
        spread = (layers[-2][:, size:], layers[-1][..., size:])
        return cls(policy, spread, (network.log_variance_low, network.log_variance_high))

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> "BehaviourPolicy":
        """Read the files of `save`. Executes nothing from them.

        Raises:
            PipelineError: no clone was made, a file is missing or broken, or the files contradict
                each other.
        """
        config = BehaviourConfig.read(folder)
        if not config.made:
            raise PipelineError(
                f"{folder}: no clone was made; give clone a share in privacy.shares (charged)"
            )
        policy = DeterministicPolicy.load(folder, device=device)
        if policy.discrete_actions:
            return cls(policy, None, None, config.rare_actions)
        try:
            spread = load_file(folder / SPREAD)
            shapes = (layer.shape for layer in policy.layers[-2:])
            check_shapes(spread, dict(zip(("weight", "bias"), shapes, strict=True)))
        except (OSError, SafetensorError, KeyError, ValueError):
            raise PipelineError(f"{folder / SPREAD}: missing or broken; {NO_BEHAVIOUR}") from None
        weight, bias = (torch.from_numpy(spread[part]).to(device) for part in ("weight", "bias"))
        return cls(policy, (weight, bias), config.log_variance)

    @property
    def discrete_actions(self) -> bool:
        """Whether actions are one-hot vectors."""
        return self.policy.discrete_actions

    def mean_and_std(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and standard deviation of actions in a box, scaled to [-1, 1]; no
        gradient flows through them.

        Args:
            observation: ``[.., S]``, in the environment's units.

        Returns:
            Two ``[.., A]`` tensors.
        """
        assert self.spread is not None, "actions are discrete"
        assert self.log_variance is not None
        *_, weight, bias = self.policy.layers
        last = torch.cat((weight, self.spread[0]), dim=1), torch.cat((bias, self.spread[1]), dim=2)
        mean, raw = self._output(observation, (*self.policy.layers[:-2], *last)).chunk(2, dim=-1)
        return mean.tanh(), torch.exp(0.5 * bound_softly(raw, *self.log_variance))

    def log_probabilities(self, observation: Tensor) -> Tensor:
        """Return the log-probability of every discrete action: ``[.., S]`` in the environment's
        units to ``[.., A]``; no gradient flows through.
        """
        return self._output(observation, self.policy.layers).log_softmax(-1)

    def sample(self, observation: Tensor, generators: SeedGenerators) -> Tensor:
        """Draw an action for each row: ``[B, S]`` to ``[B, A]``, one-hot, or scaled to and held
        within [-1, 1].
        """
        if self.discrete_actions:
            logs = self.log_probabilities(observation)
            # The least wins with its probability.
            race = generators.exponential(len(logs), logs.shape[-1]) / logs.exp()
            return torch.nn.functional.one_hot(race.argmin(-1), logs.shape[-1]).to(logs.dtype)
        mean, std = self.mean_and_std(observation)
        return (mean + std * generators.randn(len(mean), mean.shape[-1])).clamp(-1.0, 1.0)

    def act(self, observation: Tensor, generators: SeedGenerators) -> Tensor:
        """Draw an action as `sample` does, in the environment's units: ``[B, S]`` to ``[B, A]``."""
        action = self.sample(observation, generators)
        low, high = self.policy.action_low, self.policy.action_high
        return action if self.discrete_actions else low + (high - low) * (action + 1) / 2

    def actor_layers(self, observation_mean: Tensor, observation_scale: Tensor) -> Layers:
        """Return the layers of SAC's actor (`primorl.policy.sac`) that acts as this policy does.

        Its mean action or its logits are this policy's. Its log σ, before tanh, is the middle of
        this policy's bounds at every observation.

        Args:
            observation_mean: ``[S]``, of the observations as the actor is given them.
            observation_scale: ``[S]``.
        """
        own = self.policy
        weight, bias = own.layers[:2]
        shift = (observation_mean - own.observation_mean) / own.observation_scale
        bias = bias + (weight @ shift).unsqueeze(1)
        weight = weight * (observation_scale / own.observation_scale)
        *hidden, weight, bias = (weight, bias, *own.layers[2:])
        if self.log_variance is None:
            return (*hidden, weight, bias)
        log_std = torch.full_like(bias, sum(self.log_variance) / 4)
        wide = torch.cat((weight, torch.zeros_like(weight)), 1)
        return (*hidden, wide, torch.cat((bias, log_std), 2))

    @torch.no_grad()
    def _output(self, observation: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
        """Return the network's output ``[.., out]``."""
        rows = (observation - self.policy.observation_mean) / self.policy.observation_scale
        output = exported.mlp(layers, rows.reshape(1, -1, rows.shape[-1]))
        return output.view(*observation.shape[:-1], -1)


@dataclass(frozen=True)
class SampledClone:
    """The clone as a policy that draws its actions (`primorl.model.pessimism.Policies`)."""

    behaviour: BehaviourPolicy
    generators: SeedGenerators
    policies: int = 1

    def act(self, observation: Tensor) -> Tensor:
        """Return the actions ``[1, B, A]`` for observations ``[1, B, S]``."""
        return self.behaviour.act(observation[0].float(), self.generators)[None]


def make_released(
    behaviour: BehaviourPolicy, generators: SeedGenerators
) -> SampledClone | DeterministicPolicy:
    """Make the clone as it is released: discrete actions are drawn, of actions in a box the mean is
    taken.

    The likeliest of discrete actions may leave out rare and timely ones, such as a repair.
    """
    return SampledClone(behaviour, generators) if behaviour.discrete_actions else behaviour.policy


def save(folder: Path, behaviour: BehaviourPolicy, config: BehaviourConfig, **facts: Any) -> None:
    """Write the files of a policy, and ``behaviour.json`` and ``spread.safetensors``.

    Args:
        folder: an existing folder.
        behaviour: the clone.
        config: facts of its training; what the clone itself tells is filled in.
        facts: variant, environment, names and the other arguments of `exported.save`.
    """
    exported.save(
        folder,
        [behaviour.policy],
        policy="models/behaviour",
        drawn=behaviour.discrete_actions,
        **facts,
    )
    if behaviour.spread is not None:
        parts = zip(("weight", "bias"), behaviour.spread, strict=True)
        save_file(
            {name: part.detach().float().cpu().contiguous() for name, part in parts},
            folder / SPREAD,
        )
    own = replace(config, log_variance=behaviour.log_variance, rare_actions=behaviour.rare)
    own.write(folder)
