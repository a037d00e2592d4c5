"""Everything that determines a private training but the private data, in one frozen object."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from primorl.engine.heads import (
    FINER_SCALES,
    FIRST_STATES,
    LENGTHS,
    RESIDUALS,
    SCALES,
    noise_beside_people,
    noise_in_weights,
)
from primorl.engine.linear import released_heads, without_noise
from primorl.engine.local_update import CohortSource, Kernel
from primorl.engine.queries import (
    AnsweredScales,
    FirstStatesQuery,
    LengthsQuery,
    ObservationColumns,
    ResidualQuery,
    ScalesQuery,
    hidden_by_noise,
    normaliser_of_scales,
)
from primorl.engine.settings import Execution, LocalTraining, ServerTraining
from primorl.model.architecture import Architecture, CloneNetwork, Network
from primorl.model.ensemble import Bounds, Normaliser, Weights
from primorl.model.starts import StartModel
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan


@dataclass(frozen=True)
class TrainingSetup:
    """A private training without its data, built from params.yaml, the manifest and the public
    split.

    Attributes:
        plan: sampler, clip, noise, queries and their cost.
        architecture: sizes of the network.
        bounds: of model states, actions and rewards.
        columns: how the observation's dimensions are treated.
        normaliser: where the normaliser comes from: the ``public`` split, ``private`` queries of
            scales, or one that was released before, as a clone takes the model's.
        local: a unit's local steps.
        server: use of released rounds.
        seed: of the initial weights.
        execution: device, memory and reading ahead.
        start: weights that the rounds begin with, made of the public split; None: the initial
            weights.
        horizon: the most steps of a trajectory, a declared fact; None: there is none.
    """

    plan: Plan
    architecture: Network
    bounds: Bounds
    columns: ObservationColumns
    normaliser: Literal["public", "private"] | Normaliser
    local: LocalTraining
    server: ServerTraining
    seed: int
    execution: Execution
    start: Weights | None = field(default=None, repr=False)
    horizon: int | None = None

    @property
    def _horizon(self) -> int:
        assert self.horizon is not None, "lengths are asked for where a horizon is declared"
        return self.horizon

    @property
    def ensemble(self) -> Architecture:
        """`architecture`, of a training of the dynamics ensemble."""
        assert isinstance(self.architecture, Architecture), "this is the training of a policy"
        return self.architecture

    def kernel(self) -> Kernel:
        """Make a kernel with a workspace of its own."""
        assert isinstance(self.plan.clip, EnsembleClip), "networks are trained with an EnsembleClip"
        return Kernel(self.architecture, self.local, self.plan.clip, self.execution.device)

    def source_of(self, store: CohortSource) -> CohortSource:
        """Return the store's units as training sees them: as they are."""
        return store

    def public_of(self, public: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the public split's inputs ``[R, S + A]`` and targets ``[R, >= S + 1]`` as training
        sees them.
        """
        return public

    def queries(self, answers: Mapping[str, Tensor]) -> dict[str, ScalesQuery]:
        """Make the query of each name that is asked before the rounds, in the plan's order.

        Args:
            answers: that are known already: the second query of scales looks closer where the first
                one says.
        """
        asked = {query.what for query in self.plan.queries}
        first = ScalesQuery.declared(self.columns, self.bounds)
        finer = replace(first, finer=True)
        if SCALES in answers:
            finer = first.narrowed(answers[SCALES], self.noise_of(SCALES))
        both = {SCALES: first, FINER_SCALES: finer}
        return {name: query for name, query in both.items() if name in asked}

    def _answered_scales(self, answers: Mapping[str, Tensor]) -> list[AnsweredScales]:
        """Return the two queries of scales with their answers."""
        queries = self.queries(answers).items()
        return [
            AnsweredScales(query, answers[name], self.noise_of(name)) for name, query in queries
        ]

    def late_queries(self) -> dict[str, ResidualQuery | FirstStatesQuery | LengthsQuery]:
        """Make the query of each name that is asked after the rounds, in the plan's order."""
        found: dict[str, ResidualQuery | FirstStatesQuery | LengthsQuery] = {}
        for query in self.plan.queries:
            if query.what == RESIDUALS:
                found[query.what] = ResidualQuery(self.architecture.targets)
            elif query.what == FIRST_STATES:
                found[query.what] = FirstStatesQuery(self.columns)
            elif query.what == LENGTHS:
                found[query.what] = LengthsQuery(self._horizon)
        return found

    def make_normaliser(
        self, public: tuple[Tensor, Tensor] | None, answers: Mapping[str, Tensor]
    ) -> Normaliser:
        """Make the normaliser that ``normaliser`` names.

        Args:
            public: inputs ``[R, S + A]`` and targets ``[R, >= columns]`` of the public split.
            answers: to the plan's queries, by name.

        Raises:
            ValueError: there is no public split, and the normaliser comes from it.
        """
        found, features = self._standardised(public, answers), self.architecture.features
        found = replace(found, flag=self.architecture.columns > self.architecture.targets)
        if features is None:
            return found
        if self.normaliser == "private":
            return found.with_features(features, found.input_mean)
        frequencies = torch.ones(features.inputs) if public is None else public[0].mean(0)
        return found.with_features(features, frequencies)

    def _standardised(
        self, public: tuple[Tensor, Tensor] | None, answers: Mapping[str, Tensor]
    ) -> Normaliser:
        if isinstance(self.normaliser, Normaliser):
            return self.normaliser
        if self.normaliser == "private":
            return normaliser_of_scales(*self._answered_scales(answers))
        if public is None:
            raise ValueError("the normaliser comes from the public split, and there is none")
        inputs, targets = public
        flag = self.architecture.columns > self.architecture.targets
        return Normaliser.from_public(inputs, targets[:, : self.architecture.columns], flag)

    def hidden_by_noise(self, answers: Mapping[str, Tensor], names: Sequence[str]) -> list[str]:
        """List those of S + A + 1 names, the reward last, with a charged variance below its
        standard error.
        """
        if FINER_SCALES not in answers:
            return []
        hidden = hidden_by_noise(*self._answered_scales(answers))
        columns, S = self.columns, self.columns.observation_size
        known = [names[place] for place in columns.continuous.tolist()]
        known += [] if columns.discrete_actions else names[S:-1]
        pairs = zip([*known, names[-1]], hidden.tolist(), strict=True)
        return [name for name, lost in pairs if lost]

    def noise_of(self, name: str) -> float:
        """Standard deviation of the noise on every number of a query's answer."""
        (query,) = (query for query in self.plan.queries if query.what == name)
        return query.standard_deviation / self.plan.units

    def start_model(
        self, answers: Mapping[str, Tensor], normaliser: Normaliser
    ) -> StartModel | None:
        """The model of first states; None where they were not queried."""
        if FIRST_STATES not in answers:
            return None
        query = FirstStatesQuery(self.columns)
        found = query.model(answers[FIRST_STATES], normaliser, self.bounds)
        if LENGTHS not in answers:
            return found
        lengths = LengthsQuery(self._horizon)
        return replace(found, survival=lengths.survival(answers[LENGTHS], self.noise_of(LENGTHS)))

    def spread(self, answers: Mapping[str, Tensor]) -> Tensor:
        """Standard deviations of the residuals of linear heads, in scales of the target; 1 where
        not asked for.

        They are at least those that the noise in the weights causes.
        """
        targets = self.architecture.targets
        if RESIDUALS not in answers:
            return torch.ones(targets)
        least = self.noise_in_weights * (self.architecture.inputs + 1) ** 0.5
        return (
            ResidualQuery(targets)
            .spread(answers[RESIDUALS], self.noise_of(RESIDUALS))
            .clamp(min=least)
        )

    @property
    def noise_in_weights(self) -> float:
        """See `heads.noise_in_weights`."""
        return noise_in_weights(self.plan, self.server, self.local.learning_rate)

    def without_noise(self, weights: Weights) -> Weights:
        """Return weights of networks as they are; of linear heads see
        `primorl.engine.linear.without_noise`.
        """
        if self.architecture.features is None:
            return weights
        error = noise_beside_people(
            self.plan, self.server, self.local.learning_rate, self.architecture
        )
        return tuple(part.to(weights[0].device) for part in without_noise(weights, error))

    def released(
        self, weights: Weights, answers: Mapping[str, Tensor], members: int
    ) -> tuple[Architecture, Weights]:
        """Make the ensemble that is released of trained weights; of linear heads see
        `released_heads`.
        """
        if self.architecture.features is None:
            return self.ensemble, weights
        spread = self.spread(answers)
        return released_heads(
            weights, spread, members, self.noise_in_weights, self.ensemble, self.seed
        )

    def initial_weights(self) -> Weights:
        """Random weights, from the public seed."""
        return self.architecture.initial_weights(self.seed)

    def first_weights(self) -> Weights:
        """The weights that the rounds begin with: those made of the public split, or else the
        initial ones.
        """
        return self.initial_weights() if self.start is None else self.start

    @property
    def digest(self) -> str:
        """Hash the settings of the rounds that may be fitted: the same in all processes and after a
        resumption.
        """
        plan, local, server, maps = self.plan, self.local, self.server, self.normaliser
        if isinstance(maps, Normaliser):
            scales: object = torch.cat((maps.input_mean, maps.input_scale)).tolist()
        else:
            scales = maps
        content = (
            (plan.sampling_probability, plan.noise_multiplier, str(plan.clip), plan.rounds),
            [(each.what, each.sensitivity, each.noise_multiplier) for each in plan.queries],
            (self.architecture, self.horizon, self.start is None, scales),
            (local.learning_rate, local.max_transitions_per_unit, local.beta_nll),
            (server.server_momentum, server.server_averaging),
        )
        return hashlib.sha256(repr(content).encode()).hexdigest()


class CloningSource:
    """The units of a store as observations and actions; ``split`` takes inputs apart, ``[.., S]``
    and ``[.., A]``.
    """

    def __init__(
        self, source: CohortSource, split: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> None:
        self._source, self._split = source, split
        self.units, self.lengths = source.units, source.lengths

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """See `CohortSource.transitions`."""
        return self._split(self._source.transitions(units, steps)[0])


@dataclass(frozen=True)
class CloningSetup(TrainingSetup):
    """Private behaviour cloning of a `CloneNetwork`.

    Observations are standardised, actions scaled to [-1, 1].

    Of linear heads, ``taught`` has the hidden layers of the network that is taught to act as they
    do.
    """

    architecture: CloneNetwork
    taught: tuple[int, ...] = ()

    def without_noise(self, weights: Weights) -> Weights:
        """See `TrainingSetup.without_noise`; logits, with a curvature other than 1, stay as they
        are.
        """
        return weights if self.architecture.discrete_actions else super().without_noise(weights)

    def source_of(self, store: CohortSource) -> CohortSource:
        """Return the store's units as observations and actions."""
        return CloningSource(store, self._observations_and_actions)

    def public_of(self, public: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return observations ``[R, S]`` and actions ``[R, A]`` of the public split."""
        return self._observations_and_actions(public[0])

    def make_normaliser(
        self, public: tuple[Tensor, Tensor] | None, answers: Mapping[str, Tensor]
    ) -> Normaliser:
        """Make the normaliser of observations that ``normaliser`` names; actions are left as they
        are.

        Raises:
            ValueError: there is no public split, and the normaliser comes from it.
        """
        size, actions, features = (
            self.columns.observation_size,
            self.architecture.targets,
            self.architecture.features,
        )
        if isinstance(self.normaliser, Normaliser):
            found = self.normaliser
        elif public is not None:
            found = Normaliser.from_public(*public)
        else:
            raise ValueError("the normaliser comes from the public split, and there is none")
        mean, scale = found.input_mean[:size], found.input_scale[:size]
        of_clone = Normaliser(mean, scale, torch.zeros(actions), torch.ones(actions))
        return of_clone if features is None else of_clone.with_features(features, mean)

    def _observations_and_actions(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Split inputs; actions in a box are scaled to [-1, 1], one-hot actions stay as
        they are.
        """
        size, bounds = self.columns.observation_size, self.bounds
        observation, action = inputs[..., :size], inputs[..., size:]
        if bounds.discrete_actions:
            return observation, action
        low, high = (side.to(inputs.device) for side in (bounds.action_low, bounds.action_high))
        return observation, ((action - low) / (high - low) * 2 - 1).clamp(-1.0, 1.0)
