"""Everything that determines a private training but the private data, in one frozen object."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from primorl.engine import heads, queries
from primorl.engine.clone_queries import PersistenceQuery, ProductsQuery
from primorl.engine.local_update import CohortSource, Kernel
from primorl.engine.settings import Execution, LocalTraining, ServerTraining
from primorl.model.architecture import Architecture, CloneNetwork, Explained, Network
from primorl.model.ensemble import Bounds, Normaliser, Weights
from primorl.model.features import Columns
from primorl.model.numerics import unflatten
from primorl.model.starts import StartModel
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import Mechanism

Answers = Mapping[str, Tensor]
"""Answers to a mechanism's queries, by name; released."""
_MEMBER_SEED = 7_000_000
_THRESHOLD, _MEDIAN_OF_NORMAL, _MANY = 1.5, 0.6745, 40
_RARE = 2.0
"""Standard deviations of a share's noise, below which an action counts as one that nobody took."""
_LEAST_SHARE, _FARTHEST = 0.01, 0.95
"""Of a discrete action and of a mean action scaled to [-1, 1], where a clone begins."""


@dataclass(frozen=True)
class TrainingSetup:
    """A private training without its data, built from data/plan.json, the manifest and the public
    split.

    Attributes:
        mechanism: sampling, clip, noise, queries and their cost.
        architecture: sizes of the network.
        bounds: of model states, actions and rewards.
        columns: of the inputs.
        normaliser: where the normaliser comes from: the ``public`` split, ``private`` queries of
            scales, or one that was released before, as a clone takes the model's.
        local: a unit's local steps.
        server: use of released rounds.
        seed: of the initial weights.
        execution: device and memory.
        start: weights that the rounds begin with, made of the public split; None: the initial
            weights.
        horizon: the most steps of a trajectory, a declared fact; None: there is none.
    """

    mechanism: Mechanism
    architecture: Network
    bounds: Bounds
    columns: Columns
    normaliser: Literal["public", "private"] | Normaliser
    local: LocalTraining
    server: ServerTraining
    seed: int
    execution: Execution
    start: Weights | None = field(default=None, repr=False)
    horizon: int | None = None

    def kernel(self) -> Kernel:
        """Make a kernel with a workspace of its own."""
        assert isinstance(self.mechanism.clip, EnsembleClip), (
            "networks are trained with an EnsembleClip"
        )
        return Kernel(self.architecture, self.local, self.mechanism.clip, self.execution.device)

    def view(self, store: CohortSource) -> CohortSource:
        """Return the store's units as training sees them: as they are."""
        return store

    def view_public(self, public: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the public split's inputs ``[R, S + A]`` and targets ``[R, >= S + 1]`` as training
        sees them.
        """
        return public

    def early_queries(self, answers: Answers) -> dict[str, queries.ScalesQuery]:
        """Make the query of each name that is asked before the rounds, in the mechanism's order.

        The second query of scales looks closer where the answer to the first one says, once that is
        among ``answers``.
        """
        first = queries.ScalesQuery.from_ranges(self.columns, self.bounds)
        finer = replace(first, finer=True)
        if heads.SCALES in answers:
            finer = queries.ScalesAnswer(
                first, answers[heads.SCALES], self.noise_of(heads.SCALES)
            ).narrow()
        both = {heads.SCALES: first, heads.FINER_SCALES: finer}
        asked = {query.what for query in self.mechanism.queries}
        return {name: query for name, query in both.items() if name in asked}

    def late_queries(self) -> dict[str, queries.LateQuery]:
        """Make the query of each name that is asked after the rounds, in the mechanism's order: it
        needs the weights, or the released scales.
        """
        made = {query.what: query for query in self._possible_queries()}
        asked = [query.what for query in self.mechanism.queries]
        return {name: made[name] for name in asked if name in made}

    def _possible_queries(self) -> list[queries.LateQuery]:
        """Make the queries that can be asked after the rounds."""
        kinds = (
            queries.ResidualQuery,
            queries.ExplainedQuery,
            queries.RewardOffsetQuery,
            queries.FirstStatesQuery,
        )
        made: list[queries.LateQuery] = [kind(self.columns) for kind in kinds]
        return made if self.horizon is None else [*made, queries.LengthsQuery(self.horizon)]

    def find_lost(self, answers: Answers) -> list[str]:
        """List the late queries whose answers were lost with a process that died."""
        return sorted(self.late_queries().keys() - answers.keys())

    def make_normaliser(self, public: tuple[Tensor, Tensor] | None, answers: Answers) -> Normaliser:
        """Make the normaliser that ``normaliser`` names.

        Args:
            public: inputs ``[R, S + A]`` and targets ``[R, >= columns]`` of the public split.
            answers: to the mechanism's queries, by name.
        """
        flag = self.architecture.columns > self.architecture.targets
        if isinstance(self.normaliser, Normaliser):
            made = self.normaliser
        elif self.normaliser == "private":
            made = queries.make_normaliser(*self._scales_answers(answers))
        else:
            assert public is not None, "there is no public split"
            inputs, targets = public
            made = Normaliser.from_public(inputs, targets[:, : self.architecture.columns], flag)
        made, features = replace(made, flag=flag), self.architecture.features
        if features is None:
            return made
        if self.normaliser == "private":
            return made.with_features(features, made.input_mean)
        frequencies = torch.ones(features.inputs) if public is None else public[0].mean(0)
        return made.with_features(features, frequencies)

    def _scales_answers(self, answers: Answers) -> list[queries.ScalesAnswer]:
        """Return the two queries of scales with their answers."""
        asked = self.early_queries(answers).items()
        return [
            queries.ScalesAnswer(query, answers[name], self.noise_of(name)) for name, query in asked
        ]

    def noise_of(self, name: str) -> float:
        """Standard deviation of the noise on every number of a query's answer."""
        return heads.noise_of_queries(self.mechanism)[name]

    def find_hidden_names(self, answers: Answers, names: Sequence[str]) -> list[str]:
        """List those of S + A + 1 names, the reward last, with a charged variance below its
        standard error.
        """
        if heads.FINER_SCALES not in answers:
            return []
        columns = self.columns
        known = [names[place] for place in columns.continuous]
        known += [] if columns.discrete else names[columns.observations : -1]
        hidden = queries.combine_scales(self._scales_answers(answers)).hidden.tolist()
        pairs = zip([*known, names[-1]], hidden, strict=True)
        return [name for name, lost in pairs if lost]

    def estimate_shares(self, answers: Answers) -> queries.NoisyAnswer | None:
        """Estimate how often people took each discrete action, by the charged queries of scales;
        None: they were not asked, or actions are in a box.
        """
        if heads.FINER_SCALES not in answers or not self.columns.discrete:
            return None
        found = queries.combine_scales(self._scales_answers(answers)).shares
        value, error = (part[-self.columns.actions :] for part in found)
        return queries.NoisyAnswer(value, error)

    def find_rare_actions(self, answers: Answers) -> tuple[int, ...]:
        """List discrete actions whose charged shares the noise could have made; none where it
        could make an even share. Two are left at least.
        """
        shares = self.estimate_shares(answers)
        if shares is None or float(_RARE * shares.error.max()) > 1 / len(shares.value):
            return ()
        second = shares.value.sort(descending=True).values[1]
        least = (_RARE * shares.error).clamp(max=float(second))
        return tuple((shares.value < least).nonzero().flatten().tolist())

    def start_model(self, answers: Answers, normaliser: Normaliser) -> StartModel | None:
        """Make the model of first states and lengths; None where they were not queried."""
        if heads.FIRST_STATES not in answers:
            return None
        query = queries.FirstStatesQuery(self.columns)
        model = query.model(answers[heads.FIRST_STATES], normaliser, self.bounds)
        if heads.LENGTHS not in answers or self.horizon is None:
            return model
        noise = self.noise_of(heads.LENGTHS)
        survival = queries.LengthsQuery(self.horizon).survival(answers[heads.LENGTHS], noise)
        return replace(model, survival=survival)

    def spread(self, answers: Answers) -> Tensor:
        """Standard deviations of the residuals of linear heads, in scales of the target; 1 where
        not asked for.

        They are at least those that the noise in the weights causes.
        """
        query = queries.ResidualQuery(self.columns)
        if heads.RESIDUALS not in answers:
            return torch.ones(query.targets)
        least = self.noise_in_weights * (self.architecture.inputs + 1) ** 0.5
        return query.spread(answers[heads.RESIDUALS], self.noise_of(heads.RESIDUALS)).clamp(
            min=least
        )

    def _offset_reward(self, weights: Weights, answers: Answers) -> Weights:
        """Add to the heads' rewards what the people's exceed them by, where it was asked for."""
        if heads.REWARD_OFFSET not in answers:
            return weights
        query = queries.RewardOffsetQuery(self.columns)
        answer, noise = answers[heads.REWARD_OFFSET], self.noise_of(heads.REWARD_OFFSET)
        *others, bias = weights
        bias = bias.clone()
        bias[..., query.targets - 1] += query.offset(answer, noise)
        return (*others, bias)

    def explain(self, answers: Answers) -> tuple[Explained | None, ...] | None:
        """Estimate what the model explains of each target; None where it was not asked for."""
        if heads.EXPLAINED not in answers:
            return None
        query = queries.ExplainedQuery(self.columns)
        return query.explain(answers[heads.EXPLAINED], self.noise_of(heads.EXPLAINED))

    @property
    def noise_in_weights(self) -> float:
        """See `heads.noise_in_weights`."""
        return heads.noise_in_weights(self.mechanism, self.server, self.local.learning_rate)

    def shrink(self, weights: Weights) -> Weights:
        """Return weights of networks as they are; of linear heads see `shrink_weights`."""
        if self.architecture.features is None:
            return weights
        rate = self.local.learning_rate
        error = heads.noise_beside_people(self.mechanism, self.server, rate, self.architecture)
        return tuple(part.to(weights[0].device) for part in shrink_weights(weights, error))

    def release(
        self, weights: Weights, answers: Answers, members: int
    ) -> tuple[Architecture, Weights]:
        """Make the released ensemble of trained weights; of linear heads see
        `make_members`.
        """
        assert isinstance(self.architecture, Architecture), "a policy is no ensemble"
        if self.architecture.features is None:
            return self.architecture, weights
        shape = replace(self.architecture, members=members, spread=True)
        spread, weights = self.spread(answers), self._offset_reward(weights, answers)
        return shape, make_members(weights, spread, self.noise_in_weights, shape, self.seed)

    def shape(self, weights: Tensor) -> Weights:
        """Cut a vector of weights ``[d]`` into those of the network's layers."""
        members, layers = self.architecture.members, self.architecture.layers
        shapes = [(members, *size) for i, o in layers for size in ((i, o), (1, o))]
        return unflatten(weights, shapes)

    def first_weights(self) -> Weights:
        """Return the weights that the rounds begin with: those made of the public split, or else
        random ones, from the public seed.
        """
        if self.start is not None:
            return self.start
        return self.architecture.initial_weights(self.seed)

    @property
    def digest(self) -> str:
        """Hash the settings of the rounds: the same in all processes and after a resumption,
        however classes are named or laid out.
        """
        mechanism, maps = self.mechanism, self.normaliser
        asked = [(each.what, each.sensitivity, each.noise_multiplier) for each in mechanism.queries]
        scales: object = maps
        if isinstance(maps, Normaliser):
            scales = torch.cat((maps.input_mean, maps.input_scale)).tolist()
        content = {
            "plan": (
                mechanism.sampling_probability,
                mechanism.noise_multiplier,
                mechanism.rounds,
            ),
            "clip": mechanism.clip.describe(),
            "queries": asked,
            "architecture": asdict(self.architecture),
            "horizon": self.horizon,
            "scales": scales,
            "started": self.start is not None,
            "local": asdict(self.local),
            "server": asdict(self.server),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
    """

    architecture: CloneNetwork

    def first_weights(self) -> Weights:
        """Return the weights that the rounds begin with. Where scales were released, they act as
        people usually do: post-processing.
        """
        weights = super().first_weights()
        if not isinstance(self.normaliser, Normaliser):
            return weights
        shape, bounds = self.architecture, self.bounds
        _, action = self._split(self.normaliser.input_mean)
        if bounds.discrete_actions:
            usual = action.clamp(min=_LEAST_SHARE).log()
        else:
            half = (bounds.action_high - bounds.action_low) / 2
            deviation = self.normaliser.input_scale[self.columns.observations :] / half
            low, high = shape.log_variance_low, shape.log_variance_high
            centre = action.clamp(-_FARTHEST, _FARTHEST)
            usual = torch.cat((centre.atanh(), raw_log_variance(deviation, low, high)))
        return (*weights[:-1], weights[-1] + usual)

    def _possible_queries(self) -> list[queries.LateQuery]:
        """See `TrainingSetup.late_queries`."""
        bounds = self.architecture.log_variance_low, self.architecture.log_variance_high
        return [kind(self.columns, bounds) for kind in (PersistenceQuery, ProductsQuery)]

    def estimate_products(self, answers: Answers, maps: Normaliser) -> tuple[float, float] | None:
        """Estimate what squares and products of columns explain of what the clone leaves, with its
        standard error; None: nobody was asked, or the answer was lost.

        Args:
            answers: of the clone's people.
            maps: the clone's, of observations.
        """
        if heads.PRODUCTS not in answers:
            return None
        query, noise = self.late_queries()[heads.PRODUCTS], self.noise_of(heads.PRODUCTS)
        assert isinstance(query, ProductsQuery)
        return query.share(answers[heads.PRODUCTS], noise, self.mechanism.units, maps)

    def view(self, store: CohortSource) -> CohortSource:
        """Return the store's units as observations and actions."""
        return CloningSource(store, self._split)

    def view_public(self, public: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return observations ``[R, S]`` and actions ``[R, A]`` of the public split."""
        return self._split(public[0])

    def make_normaliser(self, public: tuple[Tensor, Tensor] | None, answers: Answers) -> Normaliser:
        """Make the normaliser of observations that ``normaliser`` names; actions are left as they
        are.
        """
        made = self.normaliser
        if not isinstance(made, Normaliser):
            assert public is not None, "there is no public split"
            made = Normaliser.from_public(*public)
        size, actions = self.columns.observations, self.columns.actions
        mean, scale = made.input_mean[:size], made.input_scale[:size]
        return Normaliser(mean, scale, torch.zeros(actions), torch.ones(actions))

    def _split(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Split inputs; actions in a box are scaled to [-1, 1], one-hot actions stay as
        they are.
        """
        size, bounds = self.columns.observations, self.bounds
        observation, action = inputs[..., :size], inputs[..., size:]
        if bounds.discrete_actions:
            return observation, action
        low, high = (side.to(inputs.device) for side in (bounds.action_low, bounds.action_high))
        return observation, ((action - low) / (high - low) * 2 - 1).clamp(-1.0, 1.0)


# ---- linear heads


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
