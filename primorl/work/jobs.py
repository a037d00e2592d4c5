"""The plan of a run, ``data/plan.json``: every number of its paid jobs.

The stage ``plan`` decides them once (`primorl.work.resolve`); later stages read them. A job is
charged as the event of the very numbers that run, so an edited file is charged for what it says,
and work that was paid for is found by the job's identity. Loading this module needs no torch.
"""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import primorl
from primorl.base import PipelineError, records
from primorl.base.files import PAID_PLANS, PARAMS, PARTITIONS, PLAN, finite, home
from primorl.base.records import record
from primorl.config.datasets import Bounds
from primorl.config.params import Params, Policy, ReturnBounds, plain
from primorl.config.reading import Range
from primorl.data.storage.schema import Manifest
from primorl.engine import heads
from primorl.engine.settings import LocalTraining, ServerTraining
from primorl.model.architecture import Architecture, CanLearn, CloneNetwork, Network, Variant
from primorl.model.features import Columns, Polynomials
from primorl.model.termination import LEARNED
from primorl.privacy.accounting import DpEvent
from primorl.privacy.accounting.epsilon import Training, compose, event_from_json, event_to_json
from primorl.privacy.accounting.figures import solve_noise_multiplier
from primorl.privacy.ledger.history import Request
from primorl.privacy.mechanism.clipping import EnsembleClip, L2Clip
from primorl.privacy.mechanism.mechanism import GaussianQuery, Mechanism

if TYPE_CHECKING:
    from primorl.work.data import Partitions

RELEASES = 2
"""Releases of the question, of equal noise, of which the second sees the first."""
_QUESTION_NORM = 1 + 2.0**-13  # contributions have norm 1 at most: the clip leaves them as they are
TRAIN_MODEL, CLONE_BEHAVIOUR = "train_model", "clone_behaviour"
EVALUATE_PRIVATE = "evaluate_private"
_REMEDY = "run `dvc repro plan` to make it again"


def columns_of(manifest: Manifest) -> Columns:
    """Return the columns of a model's inputs on the data of the manifest."""
    spaces = manifest.info.spaces
    sizes = spaces.observation_size, spaces.action_size
    return Columns(*sizes, spaces.one_hot, spaces.discrete_actions)


@record
class MechanismNumbers:
    """The numbers of a training's mechanism; what a unit can contribute follows from the job's
    sizes.

    Attributes:
        sampling_probability: q.
        noise_multiplier: z; 0: none is added, and there is no guarantee.
        clipping_norm: C; None: nothing is clipped.
        clipping: of the ensemble as a whole, or of its layers.
        rounds: T.
        delta: at which ε is stated.
        queries: noise multipliers of the queries beside the rounds, by name.
    """

    sampling_probability: records.Probability
    noise_multiplier: records.NonNegative
    clipping_norm: records.ClippingNorm | None
    clipping: Literal["flat", "per_layer"]
    rounds: records.Steps
    delta: records.Delta
    queries: dict[str, records.NonNegative]

    @property
    def training(self) -> Training:
        """The mechanism as the accountant sees it."""
        q, queries = self.sampling_probability, tuple(self.queries.values())
        return Training(q, self.noise_multiplier, self.rounds, queries)

    def build(self, manifest: Manifest, shape: Network) -> Mechanism:
        """Build the mechanism on the units of the manifest, of updates of a network."""
        norm = math.inf if self.clipping_norm is None else self.clipping_norm
        of_clone = isinstance(shape, CloneNetwork)
        sensitivities = heads.sensitivities(columns_of(manifest), clone=of_clone)
        return Mechanism(
            units=manifest.private_units,
            unit=manifest.info.unit,
            sampling_probability=self.sampling_probability,
            clip=EnsembleClip(norm, self.clipping, shape.members, len(shape.layers)),
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            delta=self.delta,
            queries=tuple(
                GaussianQuery(name, sensitivities[name], z) for name, z in self.queries.items()
            ),
        )


@record
class TrainingJob(ABC):
    """A private training: everything that determines its result but the data, chance and code.

    Attributes:
        variant: private, or one of its ablations.
        seed: of the initial weights.
        draw: numbers the draws of the noise that were paid for.
        bounds: public bounds of observations and rewards.
        hidden: units of each hidden layer.
        log_variance_bounds: of standardised targets.
        start: where the rounds begin: at random weights, or at those that the public split makes.
        normaliser: where the scales come from: the public split, private queries, or the released
            model.
        local: a unit's local steps.
        server: use of released rounds.
        mechanism: its numbers.
    """

    name: ClassVar[str]

    variant: Variant
    seed: records.Seed
    draw: records.NaturalInt
    bounds: Bounds
    hidden: records.AnyHiddenSizes
    log_variance_bounds: Range
    start: Literal["random", "public"]
    normaliser: Literal["public", "private", "model"]
    local: LocalTraining
    server: ServerTraining
    mechanism: MechanismNumbers

    @property
    def delta(self) -> float:
        """At which ε is stated."""
        return self.mechanism.delta

    @abstractmethod
    def network(self, manifest: Manifest) -> Network:
        """Size what is trained for the data of the manifest."""

    def build_mechanism(self, manifest: Manifest) -> Mechanism:
        """Build the mechanism on the units of the manifest."""
        return self.mechanism.build(manifest, self.network(manifest))


@record
class ModelJob(TrainingJob):
    """The training of the ensemble.

    Attributes:
        model: linear heads on fixed features, or a network.
        degree: of the features of linear heads; None: a network.
        members: N, of the released ensemble. Of linear heads one set is trained; the members are
            made of it.
    """

    name = TRAIN_MODEL

    model: Literal["linear", "network"]
    degree: Annotated[int, records.Within(ge=1, le=3)] | None
    members: records.Members

    def network(self, manifest: Manifest) -> Architecture:
        """See `TrainingJob.network`."""
        columns, features = columns_of(manifest), None
        if self.degree is not None:
            inputs = columns.observations + columns.actions
            features = Polynomials(inputs, columns.all_one_hot, self.degree)
        low, high = self.log_variance_bounds
        return Architecture(
            observation_size=columns.observations,
            action_size=columns.actions,
            members=1 if features is not None else self.members,
            hidden=self.hidden,
            log_variance_low=low,
            log_variance_high=high,
            learned_termination=manifest.info.termination == LEARNED,
            features=features,
            spread=features is None,
        )


@record
class CloneJob(TrainingJob):
    """The private clone of the behaviour.

    Attributes:
        scaled_by: identity of the model that gives the scales; None: the public split does.
    """

    name = CLONE_BEHAVIOUR

    scaled_by: records.Hexadecimal | None

    def network(self, manifest: Manifest) -> CloneNetwork:
        """See `TrainingJob.network`."""
        columns = columns_of(manifest)
        low, high = self.log_variance_bounds
        return CloneNetwork(
            observation_size=columns.observations,
            action_size=columns.actions,
            discrete_actions=columns.discrete,
            hidden=self.hidden,
            log_variance_low=low,
            log_variance_high=high,
        )


@record
class QuestionJob:
    """The question to the private units for today's returns: Gaussian releases over all of them.

    Attributes:
        noise_multiplier: z.
        delta: at which ε is stated.
        discount: γ, which is 1: returns are not discounted.
        return_bounds: of a trajectory's return; see `PrivateEvaluation`.
        draw: numbers the draws of the noise that were paid for.
    """

    name: ClassVar[str] = f"{EVALUATE_PRIVATE}: behaviour"

    noise_multiplier: Annotated[float, records.Within(gt=0)]
    delta: records.Delta
    discount: Annotated[float, records.Within(ge=1, le=1)]
    return_bounds: ReturnBounds
    draw: records.NaturalInt

    def build_mechanism(self, manifest: Manifest) -> Mechanism:
        """Build the mechanism of its releases, each over all units of the manifest."""
        return Mechanism(
            units=manifest.private_units,
            unit=manifest.info.unit,
            sampling_probability=1.0,
            clip=L2Clip(_QUESTION_NORM),
            noise_multiplier=self.noise_multiplier,
            rounds=RELEASES,
            delta=self.delta,
        )


_TARGET = "params.yaml: privacy.target_epsilon"


def solve_noise(
    epsilon: float,
    delta: float,
    q: float,
    rounds: int,
    queries: tuple[float, ...] = (),
    key: str = _TARGET,
) -> float:
    """Solve for the noise multiplier at which a mechanism costs this ε, a part of that of a key.

    Raises:
        PipelineError: none is enough.
    """
    try:
        return solve_noise_multiplier(epsilon, delta, q, rounds, queries)
    except ValueError as impossible:
        raise PipelineError(
            f"{key}: a job's part of it is {epsilon:.6g}: {impossible}; raise it"
        ) from None


def noise_of_share(epsilon: float, delta: float, share: float) -> float:
    """Compute the noise multiplier of a query of all units that takes a share of this ε.

    The share is of 1/z² of one Gaussian release at the whole ε, which adds up over queries and
    rounds of all units.

    Raises:
        PipelineError: no noise is enough.
    """
    return float(f"{solve_noise(epsilon, delta, 1.0, 1) / math.sqrt(share):.4g}")


def digest(content: Mapping[str, Any]) -> str:
    """Digest plain values, as identities of paid work are made; the order of keys does not
    matter.
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_DECIDE = ("dataset", "seed", "partition", "privacy", "dynamics", "behaviour")
_FACTS = ("environment", "horizon", "bounds", "options")  # of the dataset's file
_FREE_BOUNDS = ("angles", "outcomes")  # no paid number depends on them


def digest_of_settings(params: Params) -> str:
    """Digest the settings that the jobs of a run are decided from: no more than the stage ``plan``
    depends on in ``dvc.yaml``.
    """
    content = plain(params)
    asked = {name: content[name] for name in _DECIDE}
    del asked["privacy"]["budget"]
    # returns are not discounted; the key keeps the digest of what was paid for
    asked["question"] = {"discount": 1.0, **content["evaluation"]["private"]}
    asked["asks"] = {"normaliser": params.normaliser, "starts": params.asks_starts}
    asked["facts"] = {name: content["chosen"][name] for name in _FACTS}
    for key in _FREE_BOUNDS:
        asked["facts"]["bounds"].pop(key, None)
    return digest(asked)


def paid_plan(params: Params, partitions: "Partitions") -> Path:
    """Return the place of the plan that is paid for with these settings and data."""
    asked = {"settings": digest_of_settings(params), "data": partitions.identity}
    return home() / PAID_PLANS / f"{digest(asked)}.json"


AnyJob = ModelJob | CloneJob | QuestionJob


@record
class Price:
    """What a job costs, for readers; stages compute it again from the job.

    Attributes:
        name: of the charge in the ledger.
        epsilon: of the job; None: no guarantee.
        delta: at which ε holds.
        event: of the accountant.
        identity: digest of the job and the data.
    """

    name: str
    epsilon: float | None
    delta: records.Delta
    event: dict[str, Any]
    identity: records.Hexadecimal

    @classmethod
    def of(cls, job: AnyJob, partitions: "Partitions") -> "Price":
        """Price a job on the units of the partitions."""
        asked = request_for(job, partitions)
        return cls(
            name=asked.stage,
            epsilon=finite(compose([asked.event], asked.delta).epsilon_pld),
            delta=asked.delta,
            event=event_to_json(asked.event),
            identity=asked.identity,
        )


def identity_of(job: AnyJob, data: Mapping[str, Any]) -> str:
    """Digest everything that determines a job's result but chance and code.

    Equal digests are one piece of paid work. Code is left out: an edited comment must not charge
    the same people again. δ is left out too: it reads the same release's ε elsewhere on its curve.
    So are angles, which only the released model's rollouts are held to, and names of outcomes.

    Args:
        job: its numbers.
        data: see `Partitions.identity`.
    """
    content = records.to_json(job)
    if isinstance(job, QuestionJob):
        del content["delta"]
    else:
        del content["mechanism"]["delta"]
        for key in _FREE_BOUNDS:
            content["bounds"].pop(key, None)
    return digest({"name": job.name, "job": content, "data": dict(data)})


def request_for(job: AnyJob, partitions: "Partitions") -> Request:
    """Request the charge of a job on the units of the partitions."""
    return Request(
        version=partitions.version,
        dataset=partitions.manifest.info.dataset,
        stage=job.name,
        identity=identity_of(job, partitions.identity),
        event=job.build_mechanism(partitions.manifest).event,
        delta=job.delta,
    )


@record
class Figures:
    """What all jobs of a plan cost, for readers of a file that nobody has edited since.

    Attributes:
        epsilon: of all jobs together, as the ledger counts; None: no guarantee.
        right_guesses: see `primorl.privacy.accounting.figures.right_guesses`.
        model: of the model, see `Training.epsilons`.
        least_spread: of the model's queries, see `primorl.engine.heads.least_spread`.
        key: see `RunPlan.key`.
    """

    epsilon: float | None
    right_guesses: float
    model: dict[str, float | None]
    least_spread: float | None = None
    key: str = ""


@record
class Setting:
    """A decided setting.

    Attributes:
        value: of the key.
        origin: a file, or what decided in its place.
    """

    value: Any
    origin: str


@record
class RunPlan(records.FileRecord):
    """The content of ``data/plan.json``.

    Attributes:
        dataset: name of the data.
        asked: digest of the settings that it was decided from; see `digest_of_settings`.
        can_learn: whether the model can learn, as far as is known before; None: it is not private.
        reason: why, in one line.
        warnings: of the declared facts; they bar a trial of a policy.
        model: the training of the ensemble.
        clone: None: none is made.
        question: None: nobody is asked.
        policy: the block ``policy``; what the stage decides from the released model is None.
        jobs: what each of them costs.
        settings: that the jobs were made of, by dotted key of params.yaml.
        figures: of all jobs; None: in a plan that is not for readers, or of an older version.
    """

    FORMAT: ClassVar[int] = 3
    REMEDY: ClassVar[str] = _REMEDY

    dataset: str
    asked: records.Hexadecimal
    can_learn: CanLearn | None
    reason: str
    warnings: tuple[str, ...]
    model: ModelJob
    clone: CloneJob | None
    question: QuestionJob | None
    policy: Policy
    jobs: tuple[Price, ...]
    settings: dict[str, Setting]
    figures: Figures | None = None

    @property
    def paid_jobs(self) -> tuple[AnyJob, ...]:
        """The jobs in the order in which they are paid."""
        beside = (job for job in (self.clone, self.question) if job is not None)
        return (self.model, *beside)

    @property
    def events(self) -> list[DpEvent]:
        """The events of all jobs as the plan states them, in the same order."""
        return [event_from_json(each.event) for each in self.jobs]

    def is_refused(self, *, train_anyway: bool) -> bool:
        """Whether the stage ``plan`` refuses to go on to a training that cannot learn."""
        return self.can_learn == "no" and not train_anyway

    def price(self, partitions: "Partitions") -> "RunPlan":
        """Return the plan with prices that are computed from its jobs' own numbers."""
        return replace(self, jobs=tuple(Price.of(job, partitions) for job in self.paid_jobs))

    @property
    def intact(self) -> bool:
        """Whether the plan has figures, was not edited since, and is of these versions."""
        return self.figures is not None and self.figures.key == self.key()

    def key(self) -> str:
        """Digest the plan as it is, and the versions that its figures were computed by."""
        content = self.to_json()
        figures = {**content["figures"], "key": ""}
        by = [primorl.__version__, version("dp-accounting")]
        return digest({**content, "figures": figures, "by": by})

    @classmethod
    def read_for(cls, params: Params, partitions: "Partitions", path: Path = PLAN) -> "RunPlan":
        """Read the plan of the run that these settings ask for on these partitions.

        Raises:
            PipelineError: the file is missing or broken, was decided from other settings, or is of
                other partitions or numbers than it says.
        """
        found = cls.read(path)
        if found.asked != digest_of_settings(params):
            raise PipelineError(
                f"{path}: asked: decided from other settings than those of {PARAMS}; {_REMEDY}"
            )
        known = partitions.identity
        stated = [each.identity for each in found.jobs]
        if stated != [identity_of(job, known) for job in found.paid_jobs]:
            raise PipelineError(
                f"{path}: jobs: not those of its numbers on {PARTITIONS}; {_REMEDY}"
            )
        try:
            for job in () if found.intact else found.paid_jobs:
                request_for(job, partitions)
        except (KeyError, ValueError) as impossible:
            why = records.printable(str(impossible))
            raise PipelineError(f"{path}: no mechanism: {why}; {_REMEDY}") from None
        return found
