"""The question of an evaluation: public facts, declared bounds, the released model and the policy.

Nothing here is private.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.loaded import SCALES

Act = Callable[[Tensor], Tensor]
"""Actions of a policy: ``[B, S]`` in the environment's units to ``[B, A]``, one-hot where actions are discrete."""

BLOCK = 1024
"""Rows that `in_blocks` asks for at once."""

_NEGLIGIBLE = 1e-3  # weight of a reward
_FARTHEST = 5.0  # scales from the mean; standardised observations are held within


@dataclass(frozen=True)
class Problem:
    """The question that all estimators answer: the value of a policy for the people in the data.

    The value is the mean over units of the mean over the unit's trajectories of Σ_t γ^t r_t, t < ``horizon``: every
    unit counts once, however many trajectories it has. Rewards are held within their declared bounds.

    Everything here is public, declared or released, so using it costs nothing. Observations are held within the
    declared bounds before anything is computed from them, which bounds all intermediate numbers: results of one unit
    then depend on the other units of its batch by rounding errors of float64 at most, which the margin of `L2Clip`
    covers (docs/evaluation.md).

    Attributes:
        units: K, private units.
        unit: what one unit is.
        delta: δ at which costs are stated.
        horizon: most steps of a trajectory; None: not declared (then ``discount`` is below 1).
        discount: γ in (0, 1].
        observation_low: declared or public bounds, ``[S]``, finite.
        observation_high: ``[S]``.
        observation_mean: of the released model's normaliser, ``[S]``.
        observation_scale: ``[S]``.
        action_low: ``[A]``; 0 where actions are discrete.
        action_high: ``[A]``; 1 where actions are discrete.
        discrete_actions: whether actions are one-hot.
        reward_low: least reward.
        reward_high: greatest reward.
        return_low: least return of a trajectory, as declared; at least what the rewards' bounds allow.
        return_high: greatest return of a trajectory.
        policy: the policy in question.
        ensemble: the released model.
        starts: first states that are public or released, ``[n, S]``, in the environment's units.
        seed: of features and initial weights; public.
        clone: probabilities of discrete actions, ``[B, S]`` to ``[B, A]``, of the private clone of the behaviour; None:
            there is none, or actions are in a box.
        survival: S(t), the chance that a trajectory which did not terminate has more than t steps, float64
            ``[horizon]``, from public trajectories (`primorl.evaluation.survival`); None: all go on to the horizon.
    """

    units: int
    unit: str
    delta: float
    horizon: int | None
    discount: float
    observation_low: Tensor
    observation_high: Tensor
    observation_mean: Tensor
    observation_scale: Tensor
    action_low: Tensor
    action_high: Tensor
    discrete_actions: bool
    reward_low: float
    reward_high: float
    return_low: float
    return_high: float
    policy: Act
    ensemble: GaussianEnsemble
    starts: Tensor
    seed: int = 0
    clone: Act | None = None
    survival: Tensor | None = None

    @property
    def observation_size(self) -> int:
        """Size S of an observation."""
        return len(self.observation_low)

    @property
    def action_size(self) -> int:
        """Size A of an action."""
        return len(self.action_low)

    @property
    def return_centre(self) -> float:
        """Middle of the bounds of a return."""
        return (self.return_high + self.return_low) / 2

    @property
    def return_half(self) -> float:
        """Half of the distance of the bounds of a return."""
        return (self.return_high - self.return_low) / 2

    @property
    def effective_horizon(self) -> float:
        """Sum γ^t over the horizon: the most rewards that a return is made of."""
        steps = math.inf if self.horizon is None else self.horizon
        if self.discount == 1.0:
            return float(steps)
        return (1 - self.discount**steps) / (1 - self.discount)

    @property
    def rollout_steps(self) -> int:
        """Return the horizon; if none is declared, the steps until a reward counts for less than a thousandth."""
        return self.horizon or math.ceil(math.log(_NEGLIGIBLE) / math.log(self.discount))

    @property
    def lived_steps(self) -> int:
        """Count the first steps of a rollout that matter for the value."""
        return self.rollout_steps if self.survival is None else int((self.survival > 0).sum())

    def with_return_bounds(self, declared: Sequence[float] | None) -> "Problem":
        """Bound a trajectory's return by ``declared``; None: by what the rewards allow.

        A trajectory may end early, so 0 is among what the rewards allow.
        """
        if declared is not None:
            return replace(self, return_low=float(declared[0]), return_high=float(declared[1]))
        low, high = self.reward_low * self.effective_horizon, self.reward_high * self.effective_horizon
        return replace(self, return_low=min(low, 0.0), return_high=max(high, 0.0))

    def bounded_observation(self, observation: Tensor) -> Tensor:
        """Hold observations ``[.., S]`` within their bounds, in float64; NaN counts as 0."""
        return _held(observation, self.observation_low, self.observation_high)

    def bounded_action(self, action: Tensor) -> Tensor:
        """Hold actions ``[.., A]`` within their bounds, in float64; NaN counts as 0."""
        return _held(action, self.action_low, self.action_high)

    def standardised(self, observation: Tensor) -> Tensor:
        """Standardise ``[.., S]`` in the environment's units to float64 within ±5: bounded and finite."""
        mean, scale = (part.double().to(observation.device) for part in (self.observation_mean, self.observation_scale))
        return ((self.bounded_observation(observation) - mean) / scale).clamp(-_FARTHEST, _FARTHEST)

    def centred(self, action: Tensor) -> Tensor:
        """Map actions ``[.., A]`` of a box to float64 within ±1; one-hot actions stay as they are."""
        held = self.bounded_action(action)
        low, high = (part.double().to(action.device) for part in (self.action_low, self.action_high))
        return held if self.discrete_actions else 2 * (held - low) / (high - low) - 1

    def time_left(self, step: Tensor) -> Tensor:
        """Compute the share of the horizon left at a step, float64 in [0, 1]; ones if no horizon is declared."""
        if self.horizon is None:
            return torch.ones_like(step, dtype=torch.float64)
        return (1 - step.double() / self.horizon).clamp(0, 1)

    def rewards_left(self, step: Tensor) -> Tensor:
        """Value a reward of 1 at every step from this one on, float64: Σ_k γ^k S(t + k) / S(t)."""
        if self.survival is not None:
            left = _left(self.survival, self.discount).to(step.device)
            return torch.cat((left, left.new_zeros(1)))[step.clamp(0, len(left))]
        if self.horizon is None:
            return torch.full_like(step, self.effective_horizon, dtype=torch.float64)
        left = (self.horizon - step).clamp(min=0).double()
        return left if self.discount == 1.0 else (1 - self.discount**left) / (1 - self.discount)

    def reward(self, reward: Tensor) -> Tensor:
        """Hold rewards within their declared bounds."""
        return reward.double().nan_to_num(nan=self.reward_low).clamp(self.reward_low, self.reward_high)

    def continues(self, step: Tensor, terminated: Tensor) -> Tensor:
        """Weigh the value of the next state, float64.

        0 in a terminal state and at the end of the horizon, otherwise S(t + 1) / S(t). The last row of a recording that
        was cut counts as any other one: others went on from such a state, and S says how many.
        """
        goes_on = ~terminated if self.horizon is None else ~terminated & (step + 1 < self.horizon)
        return goes_on * self.chance_of_next(step)

    def chance_of_next(self, step: Tensor) -> Tensor:
        """Compute S(t + 1) / S(t), float64: the chance of another step for a trajectory that does not terminate."""
        if self.survival is None:
            return torch.ones_like(step, dtype=torch.float64)
        chances = torch.cat((_chances(self.survival), self.survival.new_zeros(1))).to(step.device)
        return chances[step.clamp(0, len(self.survival))]

    def actions(self, observation: Tensor) -> Tensor:
        """Ask the policy for actions, float64 ``[.., A]``, in states ``[.., S]`` in the environment's units."""
        return self.asked(self.policy, observation)

    def uniform_actions(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw actions ``[count, A]`` uniformly within their bounds, float32; one-hot where actions are discrete."""
        if self.discrete_actions:
            chosen = torch.randint(self.action_size, (count,), generator=generator)
            return torch.nn.functional.one_hot(chosen, self.action_size).float()
        drawn = torch.rand(count, self.action_size, generator=generator)
        return (self.action_low + (self.action_high - self.action_low) * drawn).float()

    def asked(self, act: Act, observation: Tensor) -> Tensor:
        """Apply ``act`` to states ``[.., S]`` in the environment's units: float64 ``[.., A]``.

        Rows are asked on the CPU in blocks of one size; the answer is returned on the observations' device.
        """
        flat = observation.reshape(-1, self.observation_size).float().cpu()
        answer = in_blocks(act, flat).to(observation.device, torch.float64)
        return answer.view(*observation.shape[:-1], self.action_size)


def in_blocks(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply ``function`` to rows, ``[B, n]`` to ``[B, m]``, in blocks of one constant size.

    The rounding of a product depends on its number of rows. Where a decision hangs on it, as that of a discrete action
    does, one unit's rows would decide about another's. The last block is filled up with zeros.
    """
    count = len(rows)
    filled = torch.nn.functional.pad(rows, (0, 0, 0, -count % BLOCK))
    return torch.cat([function(block) for block in torch.split(filled, BLOCK)])[:count]


def ensemble_in_float64(ensemble: GaussianEnsemble, device: torch.device) -> GaussianEnsemble:
    """Copy the model in float64 to ``device``.

    In float32 the rounding of a product depends on the size of the batch, so a unit's contribution would depend on the
    others in its batch by more than the margins of the mechanisms cover.
    """

    def double(part: Tensor) -> Tensor:
        return part.to(device, torch.float64)

    old, bounds = ensemble.normaliser, ensemble.bounds
    return replace(
        ensemble,
        weights=tuple(double(part) for part in ensemble.weights),
        normaliser=Normaliser(
            double(old.input_mean), double(old.input_scale), double(old.target_mean), double(old.target_scale), old.flag
        ),
        bounds=replace(
            bounds,
            observation_low=double(bounds.observation_low),
            observation_high=double(bounds.observation_high),
            action_low=double(bounds.action_low),
            action_high=double(bounds.action_high),
        ),
    )


def policy_in_float64(policy: DeterministicPolicy) -> DeterministicPolicy:
    """Copy the policy in float64."""
    return replace(
        policy,
        layers=tuple(layer.double() for layer in policy.layers),
        **{name: getattr(policy, name).double() for name in SCALES},
    )


def _chances(survival: Tensor) -> Tensor:
    """S(t + 1) / S(t), ``[horizon]``; 0 where nobody is left, and at the horizon."""
    following = torch.cat((survival[1:], survival.new_zeros(1)))
    return (following / survival.clamp(min=1e-300)).where(survival > 0, 0.0)


def _left(survival: Tensor, discount: float) -> Tensor:
    """Σ_k γ^k S(t + k) / S(t), ``[horizon]``; 0 where nobody is left."""
    discounts = discount ** torch.arange(len(survival), dtype=torch.float64)
    worth = (survival * discounts).flip(0).cumsum(0).flip(0)
    return (worth / (survival * discounts).clamp(min=1e-300)).where(survival > 0, 0.0)


def _held(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    low, high = (bound.double().to(values.device) for bound in (low, high))
    return values.double().nan_to_num(nan=0.0).clamp(low, high)
