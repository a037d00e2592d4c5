"""Private fitted Q evaluation: clipped noisy semi-gradients with a target network."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from primorl.evaluation.private import networks
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import About, Estimate, EvaluationState, noise_multiplier
from primorl.evaluation.private.first_states import FirstStateValue
from primorl.evaluation.private.model_q import ModelQ
from primorl.evaluation.private.problem import Problem
from primorl.evaluation.private.rows import first_rows, mean_over_trajectories, row_shares, thinned
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.project.values import (
    ClippingNorm,
    Fraction,
    HiddenSizes,
    LearningRate,
    Members,
    PositiveInt,
    Probability,
    Share,
    Steps,
)


@dataclass(frozen=True)
class Fqe:
    """Fitted Q evaluation (Le, Voloshin and Yue 2019) of what the released model gets wrong, by DP-SGD over units.

    The action-value is Q_i = Q̄ + L f_i(s, a, t): Q̄ is the mean of the model members' action-values (`ModelQ`), L what
    rewards that are left add up to, f_i a network that begins as 0. With Q⁻ the target network, a unit contributes
    the joint gradient over the N networks of

        ½ Σ w (f_i(s, a, t) - (r + γ Q⁻_i(s', π(s'), t + 1) - Q̄(s, a, t)) / L)²,  w = γ^t / Σ γ^t over the unit's rows,

    rewards being measured in halves of their range. It is clipped as one vector. The server takes momentum
    steps, copies the networks to the target every ``target_every`` rounds, and averages the iterates of the second
    half. The first-state values of the average are asked for by one query at the end.

    Attributes:
        rounds: T.
        sampling_probability: q.
        clipping_norm: C.
        hidden: units of each hidden layer.
        members: N.
        learning_rate: of the server.
        server_momentum: share of the last step in the next one.
        target_every: rounds between two copies.
        model_features: random features of the members' values (`ModelQ`).
        rollouts: of each member (`ModelQ`).
        rows: of a unit, at most, evenly spaced.
        query_share: share of the squared Gaussian mean that the query takes.
    """

    name: ClassVar[str] = "fqe"
    about: ClassVar[tuple[About, ...]] = ("model", "policy")
    rounds: Steps
    sampling_probability: Probability
    clipping_norm: ClippingNorm
    hidden: HiddenSizes
    members: Members
    learning_rate: LearningRate
    server_momentum: Fraction
    target_every: Steps
    model_features: PositiveInt
    rollouts: Steps
    rows: PositiveInt
    query_share: Share

    def plan(self, problem: Problem, gaussian_mean: float) -> Plan:
        """The rounds, and one query."""
        query = FirstStateValue.of(problem).query(noise_multiplier(gaussian_mean * math.sqrt(self.query_share)))
        of_rounds = gaussian_mean * math.sqrt(1 - self.query_share)
        return Plan(
            units=problem.units,
            unit=problem.unit,
            sampler=PoissonSampler(self.sampling_probability),
            clip=L2Clip(self.clipping_norm),
            noise_multiplier=noise_multiplier(of_rounds, self.sampling_probability, self.rounds),
            rounds=self.rounds,
            delta=problem.delta,
            queries=(query,),
        )

    def row_bytes(self, problem: Problem) -> int:
        """Activations of the networks, random features of the model's values, and a share of the gradients."""
        members = problem.ensemble.architecture.members
        gradients = self.members * networks.parameters(self._inputs(problem), self.hidden) // self.rows
        return 8 * (members * 2 * (self.model_features + 200) + 4 * self.members * sum(self.hidden) + 4 * gradients)

    def begin(self, problem: Problem) -> dict[str, Tensor]:
        """The members' values, and networks whose output is 0."""
        weights = networks.initial(self._inputs(problem), self.hidden, self.members, problem.seed)
        start = {"weights": weights, "target": weights, "average": weights, "step": torch.zeros_like(weights)}
        return self._model(problem).fit() | start

    def contributions(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """The joint semi-gradient of every unit, float64 ``[U, N · parameters]``; sensitive."""
        some = thinned(episodes, self.rows)
        following, model = problem.actions(some.following), self._model(problem)
        here = self._row_inputs(problem, some.observation, some.action, some.step)
        then = self._row_inputs(problem, some.following, following, some.step + 1)
        weights, target = (self._layers(problem, values[name].to(here.device)) for name in ("weights", "target"))
        found, kept = networks.forward(weights, here)
        later = self._unit(problem, some.step + 1).flatten() * networks.forward(target, then)[0]
        later = later + model.action_values(values, some.following, following, some.step + 1).mean(0).flatten()
        goes_on = problem.discount * problem.continues(some.step, some.terminated).flatten()
        error = problem.reward(some.reward).flatten() + goes_on * later
        error = error - model.action_values(values, some.observation, some.action, some.step).mean(0).flatten()
        unit = self._unit(problem, some.step).flatten()
        slope = (found - error / unit) * row_shares(problem, some).flatten()
        return networks.unit_gradients(weights, kept, slope, len(some.own))

    def stepped(self, problem: Problem, values: Mapping[str, Tensor], released: Tensor, done: int) -> dict[str, Tensor]:
        """A momentum step, the target network, and the average of the second half."""
        step = self.server_momentum * values["step"] - self.learning_rate * released.double()
        weights = values["weights"] + step
        number = done + 1 - self.rounds // 2
        average = weights if number <= 1 else values["average"] + (weights - values["average"]) / number
        target = weights if (done + 1) % self.target_every == 0 else values["target"]
        return dict(values) | {"weights": weights, "step": step, "average": average, "target": target}

    def query_total(self, problem: Problem, query: str, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """Sum of the units' first-state values and of their squares."""
        first = first_rows(episodes)
        numbers = self._values(problem, values, first.observation).mean(0)
        return FirstStateValue.of(problem).total(mean_over_trajectories(first, numbers))

    def estimates(self, problem: Problem, plan: Plan, state: EvaluationState) -> tuple[Estimate, ...]:
        """The mean value of the first states; the networks' spread at public first states widens the interval."""
        (query,) = plan.queries
        by_member = self._values(problem, state.values, problem.starts[None]).mean((1, 2))
        found = FirstStateValue.of(problem).mean(
            state.answers[query.what], query, plan.units, extra_variance=float(by_member.var())
        )
        found = found.allowing_for_bias(self._model(problem).at_starts(state.values))
        estimate = Estimate(
            estimator=self.name,
            of="policy",
            what="mean return",
            value=found.value,
            ci95=found.ci95,
            covers="sampling and privacy noise, the networks' spread, a bias as large as the correction of the model",
            bias="toward the model's value where rounds, clipping or noise leave the networks near where they began",
        )
        return (estimate,)

    def _values(self, problem: Problem, values: Mapping[str, Tensor], observation: Tensor) -> Tensor:
        """Q_i(s₀, π(s₀)) of the averaged networks, ``[N, U, T]`` for ``[U, T, S]``."""
        action = problem.actions(observation)
        steps = torch.zeros(observation.shape[:-1], dtype=torch.int64, device=observation.device)
        inputs = self._row_inputs(problem, observation, action, steps)
        said = networks.forward(self._layers(problem, values["average"].to(inputs.device)), inputs)[0]
        model = self._model(problem).action_values(values, observation.double(), action, steps).mean(0)
        return model + self._unit(problem, steps) * said.view(-1, *steps.shape)

    def _unit(self, problem: Problem, step: Tensor) -> Tensor:
        """What an output of 1 stands for: half the range of rewards at every step that is left, one at least."""
        return (problem.reward_high - problem.reward_low) / 2 * problem.rewards_left(step).clamp(min=1.0)

    def _row_inputs(self, problem: Problem, observation: Tensor, action: Tensor, step: Tensor) -> Tensor:
        left = problem.time_left(step).to(observation.device)[..., None]
        return torch.cat((problem.standardised(observation), problem.centred(action), left), -1).flatten(0, -2)

    def _inputs(self, problem: Problem) -> int:
        return problem.observation_size + problem.action_size + 1

    def _layers(self, problem: Problem, flat: Tensor) -> networks.Layers:
        return networks.layers(flat, self._inputs(problem), self.hidden, self.members)

    def _model(self, problem: Problem) -> ModelQ:
        return ModelQ(problem, self.model_features, self.rollouts)
