"""DPTD: private temporal-difference evaluation with neural networks, by primal-dual descent on one timescale."""

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor
from torch.nn.functional import elu, pad

from primorl.base.records import (
    ClippingNorm,
    HiddenSizes,
    Members,
    Positive,
    Probability,
    Share,
    Steps,
    Within,
)
from primorl.evaluate.private.estimator import (
    Estimator,
    EvaluationState,
    FirstStateValue,
    Values,
    estimate,
)
from primorl.evaluate.private.problem import (
    Episodes,
    Problem,
    counted,
    first_rows,
    mean_over_trajectories,
    row_by_row,
)
from primorl.evaluate.private.results import MEAN_RETURN, Answer
from primorl.evaluate.statistics import NORMAL_QUANTILE
from primorl.privacy.mechanism.plan import Plan

Averaging = Annotated[float, Within(gt=0, le=6.9)]  # α ν_0 must not exceed 1

_BOX = 1.0  # Θ = Ω = [-1, 1]^d
_Layer = tuple[Tensor, Tensor]  # the numbers below a layer, and their tangents


class TdBatch(NamedTuple):
    """Transitions of U units, padded to M each, as the loss needs them. Sensitive.

    The loss of a transition is ℓ = δ u - u²/2 with δ = reward + next_factor·g(next_inputs) - factor·g(inputs) and
    u = factor·⟨∇g(inputs), ω⟩, g being the network (`ValueNetwork`). With V = g, factor 1 and next_factor γ, these are
    the paper's.

    Attributes:
        inputs: ``[P, U, M, D]``, float64; P is the number of networks, or 1 where all see the same transitions.
        next_inputs: ``[P, U, M, D]``.
        reward: ``[P, U, M]``.
        factor: ``[P, U, M]``.
        next_factor: ``[P, U, M]``; 0 where nothing follows.
        weight: of each transition in its unit's loss, ``[P, U, M]``; 0 in padding.
    """

    inputs: Tensor
    next_inputs: Tensor
    reward: Tensor
    factor: Tensor
    next_factor: Tensor
    weight: Tensor


@dataclass(frozen=True)
class ValueNetwork:
    """N MLPs of one shape side by side: ``inputs`` numbers to one, ELU between layers.

    The parameters of one network are a vector of d numbers: the layers' matrices ``[out, in + 1]``, one after another.
    The last column of each is the bias.

    Attributes:
        inputs: D.
        hidden: units of each hidden layer.
    """

    inputs: int
    hidden: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of the layers: D, the hidden ones, 1."""
        return (self.inputs, *self.hidden, 1)

    def initial(self, networks: int, generator: torch.Generator) -> Tensor:
        """Draw parameters ``[N, d]``, float64: uniform within ±1/√(inputs of the layer)."""
        parts = []
        for below, above in itertools.pairwise(self.sizes):
            uniform = torch.rand(
                networks, (below + 1) * above, dtype=torch.float64, generator=generator
            )
            parts.append((2 * uniform - 1) / below**0.5)
        return torch.cat(parts, 1)

    def values(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Compute g: parameters ``[N, d]`` and inputs ``[P, .., D]`` to ``[N, ..]``, P being N or 1."""
        value, _ = self._slope(theta, torch.zeros_like(theta), inputs, [])
        return value.view(len(theta), *inputs.shape[1:-1])

    def losses(self, theta: Tensor, omega: Tensor, batch: TdBatch) -> Tensor:
        """Compute ℓ of every transition, ``[N, U, M]``."""
        value, slope = self._slope(theta, omega, batch.inputs, [])
        shape = (len(theta), *batch.inputs.shape[1:3])
        error = batch.reward - batch.factor * value.view(shape)
        error = error + batch.next_factor * self.values(theta, batch.next_inputs)
        advantage = batch.factor * slope.view(shape)
        return error * advantage - advantage.square() / 2

    def gradients(self, theta: Tensor, omega: Tensor, batch: TdBatch) -> Tensor:
        """Compute ∇_θ and ∇_ω of every unit's weighted loss Σ_m weight·ℓ.

        Args:
            theta: θ of the N networks, ``[N, d]``, of the batch's type.
            omega: ω, ``[N, d]``.
            batch: the transitions.

        Returns:
            ``[U, N, 2, d]``: for each unit and network, θ's gradient, then ω's. Sensitive.
        """
        shape, here, following = (
            (len(theta), *batch.inputs.shape[1:3]),
            list[_Layer](),
            list[_Layer](),
        )
        value, slope = (
            found.view(shape) for found in self._slope(theta, omega, batch.inputs, here)
        )
        next_value, _ = self._slope(theta, omega, batch.next_inputs, following)
        error = batch.reward + batch.next_factor * next_value.view(shape) - batch.factor * value
        advantage = batch.factor * slope
        of_slope = batch.weight * batch.factor * (error - advantage)
        found = self._backward(
            theta, omega, here, -batch.weight * batch.factor * advantage, of_slope
        )
        of_next = batch.weight * batch.next_factor * advantage
        found += self._backward(theta, omega, following, of_next, torch.zeros_like(of_next))
        return found.transpose(0, 1)

    def _slope(
        self, theta: Tensor, omega: Tensor, inputs: Tensor, kept: list[_Layer]
    ) -> tuple[Tensor, Tensor]:
        """Compute g and the slope ⟨∇g, ω⟩, ``[N, B]``: a forward pass that carries the tangent along ω.

        ``kept`` receives the numbers below each layer, and their tangents, ``[N, B, in + 1]``.
        """
        below = inputs.flatten(1, -2).expand(len(theta), -1, -1)
        tangent = torch.zeros_like(below)
        for layer, direction in zip(self._layers(theta), self._layers(omega), strict=True):
            below, tangent = pad(below, (0, 1), value=1.0), pad(tangent, (0, 1))
            kept.append((below, tangent))
            output, along = below @ layer.mT, below @ direction.mT + tangent @ layer.mT
            below, tangent = elu(output), along * output.clamp(max=0).exp()  # ELU' is 1 above 0
        return output[..., 0], along[..., 0]

    def _backward(
        self, theta: Tensor, omega: Tensor, kept: list[_Layer], of_value: Tensor, of_slope: Tensor
    ) -> Tensor:
        """Go back through `_slope`, from a loss's derivatives ``[N, U, M]`` to sums over M, ``[N, U, 2, d]``."""
        of_output, of_along = of_value.flatten(1)[..., None], of_slope.flatten(1)[..., None]
        parts: list[Tensor] = []
        layers = zip(self._layers(theta), self._layers(omega), kept, strict=True)
        for layer, direction, (below, tangent) in reversed(list(layers)):
            output, along, values, tangents = (
                part.reshape(*of_value.shape, part.shape[-1])
                for part in (of_output, of_along, below, tangent)
            )
            of_layer = output.mT @ values
            if len(kept) - len(parts) > 1:  # the inputs have no tangents
                of_layer += along.mT @ tangents
            parts.insert(0, torch.stack((of_layer, along.mT @ values), 2).flatten(3))
            if len(parts) == len(kept):
                break
            of_below, of_tangent = of_output @ layer + of_along @ direction, of_along @ layer
            growth = (
                below.clamp(max=0) + 1
            )  # ELU' at the layer below; its derivative is the same below 0
            of_output = (of_below * growth + of_tangent * tangent * (below < 0))[..., :-1]
            of_along = (of_tangent * growth)[..., :-1]
        return torch.cat(parts, -1)

    def _layers(self, parameters: Tensor) -> list[Tensor]:
        """Split parameters ``[N, d]`` into the layers' matrices ``[N, out, in + 1]``."""
        shapes = [(above, below + 1) for below, above in itertools.pairwise(self.sizes)]
        parts = torch.split(parameters, [above * below for above, below in shapes], -1)
        return [part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Dptd(Estimator):
    """DPTD (Zhao et al. 2023), Algorithm 1, with enforced clipping.

    It finds the saddle point min_θ max_ω E[ℓ] of ℓ = δ ⟨Ψ(s), ω⟩ - ½ ⟨Ψ(s), ω⟩², Ψ = ∇_θ V_θ. Its value is the
    mean squared projected Bellman error. Round t releases the gradients g^θ and g^ω, averaged over a cohort. With
    ν_t = 1 / (4 √(t + 3)):

        p_t = (1 - α ν_{t-1}) p_{t-1} + α ν_{t-1} g^θ_t,    d_t = (1 - β ν_{t-1}) d_{t-1} + β ν_{t-1} g^ω_t,
        θ_{t+1} = θ_t + ν_t (P(θ_t - κ p_t) - θ_t),         ω_{t+1} = ω_t + ν_t (P(ω_t + η d_t) - ω_t),

    p_0 and d_0 being the first release, and P the projection onto [-1, 1]^d. The output is the mean of the later half
    of the iterates; the paper draws one of them.

    Formal guarantee: the plan's. A unit contributes one vector, the gradients of both sides and of all members averaged
    over its own transitions, clipped jointly to C. The paper assumes that gradients are bounded by G, charges both
    sides apart, and adds noise of constant size to p_t; here the noise is part of g_t and shrinks with α ν_t.

    The rounds that are needed grow about with the square of the effective horizon: a TD error sees 1/h(0) of a constant
    error of the value, which therefore falls at the rate κ ν_t |∇g|² / h(0)².

    The value is V_θ(s) = ρ h g_θ(x): g is an MLP of the standardised observation (for a policy: and of the action) and
    of the share of the horizon that is left, ρ is the largest size of a reward, and h the discounted number of steps
    that are left. Values and rewards are divided by ρ h(0), a public constant, so that values are of order one. With a
    declared horizon, transitions beyond it have no weight.

    Attributes:
        of: ``behaviour``: the data's own policy, V(s); ``policy``: the problem's, Q(s, a) with a' = π(s').
        hidden: units of the hidden layers; ELU between layers.
        members: networks side by side, from different initial weights and with their own noise.
        rounds: T.
        sampling_probability: q.
        clipping_norm: C, of all members together.
        alpha: α.
        beta: β.
        kappa: κ, step size of θ.
        eta: η, step size of ω.
        query_share: share of the cost that the last query takes: the value at the private units' first states.
    """

    name: ClassVar[str] = "dptd"

    of: Literal["behaviour", "policy"]
    hidden: HiddenSizes
    members: Members
    rounds: Steps
    sampling_probability: Probability
    clipping_norm: ClippingNorm
    alpha: Averaging
    beta: Averaging
    kappa: Positive
    eta: Positive
    query_share: Share

    def plan(self, problem: Problem, gaussian_mean: float) -> Plan:
        """See `Estimator.plan`."""
        rounds = self.sampling_probability, self.rounds
        return FirstStateValue(problem).plan(
            self.clipping_norm, gaussian_mean, self.query_share, *rounds
        )

    def network(self, problem: Problem) -> ValueNetwork:
        """Shape the members' networks."""
        time = problem.horizon is not None
        actions = problem.action_size if self.of == "policy" else 0
        return ValueNetwork(problem.observation_size + actions + time, self.hidden)

    def row_bytes(self, problem: Problem) -> int:
        """See `Estimator.row_bytes`; some dozens of numbers of each hidden unit."""
        return 3 * 8 * self.members * (12 * sum(self.hidden) + 2 * self.network(problem).inputs)

    def begin(self, problem: Problem) -> dict[str, Tensor]:
        """Draw θ; ω begins at 0."""
        generator = torch.Generator().manual_seed(problem.seed)
        theta = self.network(problem).initial(self.members, generator).clamp(-_BOX, _BOX)
        return {name: torch.zeros_like(theta) for name in ("omega", "p", "d", "output")} | {
            "theta": theta
        }

    def contributions(self, problem: Problem, values: Values, episodes: Episodes) -> Tensor:
        """Compute the gradients of θ and ω of all members, ``[U, N·2d]``: one vector, to be clipped as one."""
        theta, omega = (values[name].to(episodes.reward.device) for name in ("theta", "omega"))
        return (
            self.network(problem).gradients(theta, omega, self.batch(problem, episodes)).flatten(1)
        )

    def batch(self, problem: Problem, episodes: Episodes) -> TdBatch:
        """Prepare these transitions for the loss. Sensitive."""
        step, own, whole = episodes.step, counted(problem, episodes), problem.effective_horizon
        left, left_next = problem.rewards_left(step) / whole, problem.rewards_left(step + 1) / whole
        action = following_action = None
        if self.of == "policy":
            action, following_action = episodes.action, problem.actions(episodes.following)
        continues = problem.continues(step, episodes.terminated)
        parts = (
            _inputs(problem, episodes.observation, action, step),
            _inputs(problem, episodes.following, following_action, step + 1),
            problem.reward(episodes.reward) / (_reward_size(problem) * whole),
            left,
            problem.discount * left_next * continues,
            own / own.sum(1, keepdim=True).clamp(min=1),
        )
        return TdBatch(*(part[None] for part in parts))

    def stepped(
        self, problem: Problem, values: Values, released: Tensor, done: int
    ) -> dict[str, Tensor]:
        """Take steps 1 to 3 of Algorithm 1 after round ``done``."""
        theta, omega, output = values["theta"], values["omega"], values["output"]
        of_theta, of_omega = released.double().view(self.members, 2, -1).unbind(1)
        before, rate = _rate(done - 1), _rate(done)
        p = values["p"].lerp(of_theta, self.alpha * before if done > 0 else 1.0)
        d = values["d"].lerp(of_omega, self.beta * before if done > 0 else 1.0)
        averaged = done - self.rounds // 2 + 1  # iterates of the later half so far
        return dict(values) | {
            "p": p,
            "d": d,
            "output": output.lerp(theta, 1 / averaged) if averaged > 0 else output,
            "theta": theta.lerp(projected(theta - self.kappa * p), rate),
            "omega": omega.lerp(projected(omega + self.eta * d), rate),
        }

    def query_total(
        self, problem: Problem, query: str, values: Values, episodes: Episodes
    ) -> Tensor:
        """Sum the units' values at their first states, and the squares."""
        first = first_rows(episodes)

        def mean_value(state: Tensor) -> Tensor:
            return self._first_values(problem, values, state).mean(0)[:, None]

        numbers = row_by_row(mean_value, first.observation)[..., 0]
        return FirstStateValue(problem).total(mean_over_trajectories(first, numbers))

    def estimates(self, problem: Problem, plan: Plan, state: EvaluationState) -> tuple[Answer, ...]:
        """Average the value over members and first states."""
        public = self._first_values(problem, state.values, problem.starts)
        half_spread = float(
            stdtrit(self.members - 1, 0.975) * public.mean(1).std() / math.sqrt(self.members)
        )
        value, deviation = FirstStateValue(problem).mean(plan, state.answers)
        half = math.hypot(half_spread, NORMAL_QUANTILE * deviation)
        what = MEAN_RETURN if problem.discount == 1 else "mean discounted return"
        covers = (
            "first states of the private units and the noise of their query; initial weights and noise of training, by "
            f"the spread of {self.members} members"
        )
        bias = (
            "Training may stop short of the saddle point, and the network may not represent the value; cohorts and "
            "data are the same for all members, so their spread does not show these errors."
        )
        return (
            estimate(self.name, self.of, what, value, (value - half, value + half), covers, bias),
        )

    def _first_values(self, problem: Problem, values: Values, observation: Tensor) -> Tensor:
        """Compute each member's value of ``[.., S]`` at the first step, in units of the return, within its bounds."""
        step = torch.zeros(observation.shape[:-1], dtype=torch.int64, device=observation.device)
        action = problem.actions(observation) if self.of == "policy" else None
        inputs = _inputs(problem, observation, action, step)[None]
        value = self.network(problem).values(values["output"].to(inputs.device), inputs)
        scale = _reward_size(problem) * problem.effective_horizon
        return (scale * value).clamp(problem.return_low, problem.return_high)


def projected(parameters: Tensor) -> Tensor:
    """Project onto Θ and Ω, the box [-1, 1]^d."""
    return parameters.clamp(-_BOX, _BOX)


def _rate(done: int) -> float:
    """Compute ν_t."""
    return 1 / (4 * math.sqrt(done + 3))


def _inputs(problem: Problem, observation: Tensor, action: Tensor | None, step: Tensor) -> Tensor:
    parts = [problem.standardised(observation)]
    if action is not None:
        parts.append(problem.centred(action))
    if problem.horizon is not None:
        parts.append(problem.time_left(step)[..., None])
    return torch.cat(parts, -1)


def _reward_size(problem: Problem) -> float:
    """Compute ρ, the largest size of a reward; 1 where all rewards are 0."""
    return max(abs(problem.reward_low), abs(problem.reward_high)) or 1.0
