"""Everything that determines a private training but the private data, in one frozen object."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, Weights
from primorl.dynamics.normaliser import Normaliser
from primorl.dynamics.starts import StartModel
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import query_types
from primorl.training.cohort import CohortSource
from primorl.training.normaliser_query import NORMALISER, NormaliserQuery, ObservationColumns, normaliser_of_bounds
from primorl.training.policy_network import Network
from primorl.training.settings import Execution, LocalTraining, ServerTraining
from primorl.training.start_query import STARTS, StartQuery


@dataclass(frozen=True)
class TrainingSetup:
    """A private training without its data.

    The stage, the other processes, the audit and the attacks all train from such an object. It is built from
    params.yaml, the manifest and the public split (`primorl.setup.model_work`); no private byte is read for it.

    Attributes:
        plan: sampler, clip, noise, queries and what they cost.
        architecture: sizes of the network.
        bounds: of model states, actions and rewards.
        columns: how the observation's dimensions are treated.
        normaliser: where the normaliser comes from: ``public`` split, declared ``bounds`` or a ``private`` query.
        local: a unit's local steps.
        server: what is done with released rounds.
        seed: of the initial weights.
        execution: device, memory and reading ahead.
        start: weights that the rounds begin with, made of the public split; None: the initial weights.
    """

    plan: Plan
    architecture: Network
    bounds: Bounds
    columns: ObservationColumns
    normaliser: Literal["public", "bounds", "private"]
    local: LocalTraining
    server: ServerTraining
    seed: int
    execution: Execution
    start: Weights | None = field(default=None, repr=False)

    @property
    def ensemble(self) -> Architecture:
        """`architecture`, of a training of the dynamics ensemble."""
        assert isinstance(self.architecture, Architecture), "this is the training of a policy"
        return self.architecture

    def of_process(self, process: int, processes: int) -> "TrainingSetup":
        """The setup of one of several processes that train together (`Plan.of_process`)."""
        return replace(self, plan=self.plan.of_process(process, processes))

    def source_of(self, store: CohortSource) -> CohortSource:
        """What training sees of a store's units: its rows as they are."""
        return store

    def public_of(self, public: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """What training sees of the public split's inputs ``[R, S + A]`` and targets ``[R, >= S + 1]``."""
        return public

    def queries(self) -> dict[str, NormaliserQuery | StartQuery]:
        """What computes the sum of each of the plan's queries, by name, in the plan's order."""
        kinds = query_types()
        return {query.what: kinds[query.what](self.columns, self.bounds) for query in self.plan.queries}

    def make_normaliser(self, public: tuple[Tensor, Tensor] | None, answers: Mapping[str, Tensor]) -> Normaliser:
        """The normaliser that `normaliser` names.

        Args:
            public: inputs ``[R, S + A]`` and targets ``[R, >= columns]`` of the public split.
            answers: to the plan's queries, by name.

        Raises:
            ValueError: there is no public split, and the normaliser comes from it.
        """
        flag = self.architecture.columns > self.architecture.targets
        if self.normaliser == "bounds":
            return replace(normaliser_of_bounds(self.columns, self.bounds), flag=flag)
        if self.normaliser == "private":
            (query,) = (query for query in self.plan.queries if query.what == NORMALISER)
            noise = query.standard_deviation / self.plan.units
            found = NormaliserQuery(self.columns, self.bounds).normaliser(answers[NORMALISER], noise)
            return replace(found, flag=flag)
        if public is None:
            raise ValueError("the normaliser comes from the public split, and there is none")
        inputs, targets = public
        return Normaliser.from_public(inputs, targets[:, : self.architecture.columns], flag)

    def start_model(self, answers: Mapping[str, Tensor]) -> StartModel | None:
        """The model of first states; None where they were not queried."""
        return StartQuery(self.columns, self.bounds).model(answers[STARTS]) if STARTS in answers else None

    def initial_weights(self) -> Weights:
        """Random weights, from the public seed."""
        return self.architecture.initial_weights(self.seed)

    def first_weights(self) -> Weights:
        """The weights that the rounds begin with: those made of the public split, or else the initial ones."""
        return self.initial_weights() if self.start is None else self.start

    @property
    def digest(self) -> str:
        """Of what the rounds follow, where it may be fitted: the same in all processes and after a resumption."""
        plan, local, server = self.plan, self.local, self.server
        content = (
            *(plan.sampling_probability, plan.noise_multiplier, str(plan.clip), plan.rounds, self.architecture),
            *(local.learning_rate, local.max_transitions_per_unit, server.server_momentum, server.server_averaging),
            *(self.start is None, local.beta_nll),
        )
        return hashlib.sha256(repr(content).encode()).hexdigest()
