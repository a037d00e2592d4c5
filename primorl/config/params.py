"""The typed view of ``params.yaml`` and of the dataset that it names, checked once: the blocks, one
frozen class each, and how they are read.

``params.yaml`` says how a run is made, ``datasets/NAME.yaml`` what the data are and which recipe
suits them. What neither says is a default of its class, or decided by a rule. An empty
key and one that is not there are the same: None, until something decides.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ValidationError

from primorl.base import PipelineError, records
from primorl.base.files import DATASETS, ONLINE_SETTINGS, PARAMS
from primorl.config import reading
from primorl.config.datasets import Dataset, validate
from primorl.config.reading import Block
from primorl.engine.settings import EarlyStopping
from primorl.model.architecture import Variant
from primorl.policy.config import refuse_small_buffer


class PublicFile(Block):
    """Units are public if their ids stand in this file, one a line."""

    file: reading.InnerPath


JobName = Literal["model", "clone", "behaviour"]
Shares = dict[JobName, Annotated[float, records.Within(gt=0, le=1)]]
"""Parts of what a run may cost, by job, of 1/z² of one Gaussian release at the whole ε. Parts add
up, as Gaussian releases compose.
"""


class Partition(Block):
    """How units are split into private and public.

    Attributes:
        public_fraction: the expected share of units drawn public by a hash of their ids; 0: none is
            public.
        public: the units that are public because they consented; exactly one of the two is given.
    """

    public_fraction: records.Fraction | None = None
    public: PublicFile | None = None

    def __post_init__(self) -> None:
        if (self.public_fraction is None) == (self.public is None):
            found = "neither" if self.public is None else "both"
            raise ValueError(f"found {found} of public_fraction and public; give exactly one")


class Budget(Block):
    """Budget of all runs on a dataset together, at `Privacy.delta`; ``epsilon: null`` sets no
    limit.
    """

    epsilon: records.Epsilon | None = None


class Privacy(Block):
    """The mechanism of one run (PriMORL, Algorithm 2), and the budget that all runs share.

    ``target_epsilon`` is what a run may cost in all, and ``shares`` divide it among its jobs: one
    without a share is not done. ``draw`` numbers the draws of the noise: settings that were paid
    for are restored, and another number pays for another draw of them. None: a rule decides.
    """

    target_epsilon: records.Epsilon = 0.5
    shares: Shares
    delta: records.Delta = 1e-5
    budget: Budget = field(default_factory=Budget)
    sampling_probability: records.Probability | None = None
    rounds: records.Steps | None = None
    clipping_norm: records.ClippingNorm | None = None
    clipping: Literal["flat", "per_layer"] = "flat"
    draw: records.NaturalInt = 0

    def __post_init__(self) -> None:
        if "model" not in self.shares:
            raise ValueError("shares: found none of the model; the model needs one")
        if (total := math.fsum(self.shares.values())) > 1 + 1e-9:
            raise ValueError(f"shares: found {total:.6g} in all; allowed is at most 1")


class Dynamics(Block):
    """The ensemble and its training; see `LocalTraining` and `ServerTraining`. None: a rule
    decides.

    Attributes:
        variant: private, or one of its ablations.
        train_anyway: whether a training is paid for that the forecast before the charge calls
            useless.
        model: ``linear`` heads on fixed features, or a ``network``.
        degree: of the features of linear heads: products of up to so many inputs.
        start: of the weights: ``random``, or ``public``, trained on the public split.
        ensemble_size: N.
        hidden: units of each hidden layer of a network.
        log_variance_bounds: of standardised targets.
    """

    variant: Variant = "private"
    train_anyway: bool = False
    model: Literal["linear", "network"] | None = None
    degree: Annotated[int, records.Within(ge=1, le=3)] | None = None
    start: Literal["random", "public"] | None = None
    ensemble_size: records.Members | None = None
    hidden: records.AnyHiddenSizes | None = None
    log_variance_bounds: reading.Range | None = None
    learning_rate: records.LearningRate | None = None
    batch_size: records.Steps = 16
    local_epochs: records.Steps = 1
    weight_decay: records.WeightDecay = 0.0
    max_transitions_per_unit: records.PositiveInt | None = None
    beta_nll: records.Portion | None = None
    server_momentum: records.Fraction | None = None
    server_averaging: records.Fraction | None = None
    early_stopping: EarlyStopping = field(default_factory=EarlyStopping)


class Behaviour(Block):
    """The private clone of the behaviour, which is made where it has a share of ε.

    Attributes:
        hidden: units of each hidden layer. Where these are the policy's, policies begin with the
            clone's weights.
        log_variance_bounds: of actions in a box, scaled to [-1, 1].
    """

    hidden: records.HiddenSizes = (32,)
    log_variance_bounds: reading.LogVariances = (-5.0, 1.0)


class Policy(Block):
    """SAC in the pessimistic model (PriMORL, Algorithm 4); see `SacConfig`. None: a rule decides.

    Attributes:
        seeds: one policy each; None: one, of the pipeline's seed.
        uncertainty: of the members, by which rewards are lowered.
        penalty: λ.
        starts: where rollouts begin.
        reset_fraction: share of rollouts that begin at a start; the others go on where one of the
            batch before ended.
    """

    seeds: reading.Seeds | None = None
    uncertainty: (
        Literal["max_pairwise_difference", "max_aleatoric", "standardised_difference"] | None
    ) = None
    penalty: records.NonNegative | None = None
    starts: Literal["reset", "public", "released"] | None = None
    reset_fraction: records.Probability | None = None
    hidden: records.HiddenSizes | None = None
    learning_rate: records.LearningRate | None = None
    discount: records.Share | None = None
    target_rate: records.Probability | None = None
    target_entropy: records.Finite | None = None
    discrete_target_entropy: records.Share = 0.3
    reward_scale: records.Positive | None = None
    batch_size: records.Steps = 256
    epochs: records.Steps | None = None
    updates_per_epoch: records.Steps | None = None
    rollout_every: records.Steps = 250
    rollout_batch: records.Steps | None = None
    horizon: records.Steps | None = None
    buffer_size: records.BufferSize | None = None

    def __post_init__(self) -> None:
        sizes = (self.buffer_size, self.rollout_batch, self.horizon)
        if None not in sizes:
            refuse_small_buffer(*sizes)  # type: ignore[arg-type]


ReturnBounds = Annotated[Literal["public", "reward"] | reading.Range, reading.OneOf()]


class PrivateEvaluation(Block):
    """Questions to the private units, which are asked where they have a share of ε.

    Attributes:
        return_bounds: bounds of a trajectory's return; ``public``: from the public returns, where
            there are any; ``reward``: those that the rewards' bounds allow.
        draw: numbers the draws of the noise, as `Privacy.draw` does.
    """

    return_bounds: ReturnBounds = "public"
    draw: records.NaturalInt = 0


class Evaluation(Block):
    """Episodes in the true environment, and the question to the private units."""

    episodes: records.AtLeastTwo = 100
    epoch_episodes: records.AtLeastTwo = 10
    seed: records.Seed = 1000
    private: PrivateEvaluation = field(default_factory=PrivateEvaluation)


class Online(Block):
    """Learning from users who come after training; each is met once. See `primorl.stages.online`.

    Attributes:
        users: N, how many come at most, each once; None: none.
        cohort: m, users of one update.
        target_epsilon: ε of one user, at `Privacy.delta`; None: the non-private twin.
        learning_rate: of an update.
        clipping_norm: S, of one user's contribution.
        steps: of one user at most; None: the episode's limit times ``episodes``.
        episodes: of one user at most.
        draw: numbers the draws of the noise, as `Privacy.draw` does.
    """

    users: Annotated[int, records.Within(ge=1, le=10**7)] | None = None
    cohort: Annotated[int, records.Within(ge=1, le=10**6)] = 250
    target_epsilon: records.Epsilon | None = 1.0
    learning_rate: Annotated[float, records.Within(ge=1e-9, le=1e3)] = 5.0
    clipping_norm: records.ClippingNorm = 0.1
    steps: records.Steps | None = None
    episodes: records.PositiveInt = 1
    draw: records.NaturalInt = 0

    @property
    def asked(self) -> bool:
        """Whether anybody is met at all."""
        return self.users is not None


class LedgerStore(Block):
    """Place of the ledger: SQLAlchemy's URL of its database; see `Store`."""

    url: reading.StoreUrl | None = None


class Tracking(Block):
    """Where MLflow keeps its runs; ``experiment: null`` is one for each dataset, of its name."""

    uri: reading.StoreUrl | None = None
    experiment: reading.Text | None = None


class Compute(Block):
    """Settings that change speed and nothing else."""

    device: Literal["auto", "cpu", "cuda"] = "auto"


SHARES_OF_A_LOG: Shares = {"model": 0.83, "clone": 0.13, "behaviour": 0.04}
"""A log without an environment has no other way to tell what a policy is worth."""
SHARES_OF_A_SIMULATOR: Shares = {"model": 1.0}
BLOCKS = ("partition", "privacy", "dynamics", "behaviour", "policy", "evaluation")
"""Blocks of which a dataset's recipe may hold keys."""
_NESTED = {*BLOCKS, "privacy.budget", "dynamics.early_stopping", "evaluation.private", "online"}
RULED = frozenset(
    f"{block}.{key}"
    for block, keys in {
        "privacy": "sampling_probability rounds clipping_norm",
        "dynamics": "model ensemble_size degree hidden log_variance_bounds beta_nll learning_rate "
        "max_transitions_per_unit server_momentum server_averaging start",
        "policy": "uncertainty penalty horizon starts reset_fraction discount hidden "
        "learning_rate epochs updates_per_epoch rollout_batch buffer_size target_entropy "
        "reward_scale",
    }.items()
    for key in keys.split()
)
"""Keys that a rule decides where nobody sets them."""
RULE, DEFAULT, PUBLIC = "rule", "default", "who is public"
"""The origins of keys that no file gives."""
_ALONE = {  # decided in params.yaml alone, with the reason
    "privacy.budget.epsilon": "all runs share it",
    "privacy.delta": "all runs share it",
    "privacy.draw": "another draw is paid for",
    "evaluation.private.draw": "another draw is paid for",
    "dynamics.variant": "whether a run is private must be seen in params.yaml",
    "dynamics.train_anyway": "it must be said in so many words in params.yaml",
    "partition.public": "who consented must be seen in params.yaml",
}


class Params(Block):
    """Every choice of a run.

    Attributes:
        dataset: its name.
        chosen: the content of the dataset's file.
        seed: of initial weights, policies and evaluation; never of noise or cohorts.
        origins: what decided each key of the blocks that is no default, by dotted key.
    """

    dataset: reading.Name
    seed: records.Seed = 0
    chosen: Dataset
    partition: Partition
    privacy: Privacy
    dynamics: Dynamics
    behaviour: Behaviour
    policy: Policy
    evaluation: Evaluation
    online: Online
    ledger: LedgerStore
    tracking: Tracking
    compute: Compute
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse rollouts that begin nowhere.

        Found out after training, another model would have to be paid for.
        """
        starts, nowhere = self.policy.starts, None
        if starts == "reset" and self.chosen.environment is None:
            nowhere = f"{DATASETS}/{self.dataset}.yaml says environment: null"
        elif starts == "public" and self.partition.public_fraction == 0:
            nowhere = "partition.public_fraction is 0"
        elif starts == "released" and not self.asks_starts:
            nowhere = "the public split tells first states"
        if nowhere is not None:
            raise ValueError(
                f"policy.starts: found {starts!r}, while {nowhere}; allowed: reset with an "
                "environment, public with a public split, released without a drawn one"
            )

    @property
    def policy_seeds(self) -> tuple[int, ...]:
        """The seed of every policy that is trained, first that of the policy that is used and
        released.
        """
        return (self.seed,) if self.policy.seeds is None else self.policy.seeds

    @property
    def normaliser(self) -> Literal["public", "private"]:
        """Who tells the scales: a public split that a hash drew, for nothing; else the private
        people, as those who consented may differ from the others. Linear heads need them exactly.
        """
        drawn = self.partition.public_fraction not in (None, 0)
        return "public" if drawn and self.dynamics.model != "linear" else "private"

    @property
    def asks_starts(self) -> bool:
        """Whether the private people are asked for first states, which nothing else tells."""
        alone = self.chosen.environment is None or self.policy.starts == "released"
        nobody = self.partition.public_fraction == 0 and self.asks_today
        return self.normaliser == "private" and (alone or nobody)

    @property
    def undecided(self) -> frozenset[str]:
        """Keys that a rule is still to decide."""
        return frozenset(key for key in RULED if attrgetter(key)(self) is None)

    def choices(self) -> dict[str, Any]:
        """Return values to compare runs by, by dotted key, without addresses, speed and what a rule
        is still to decide.
        """
        content, undecided = plain(self), self.undecided
        blocks = {key: content[key] for key in ("dataset", "seed", *BLOCKS, "online")}
        facts = {"environment": self.chosen.environment, "unit": self.chosen.unit}
        return facts | {key: value for key, value in flat(blocks) if key not in undecided}

    def list_given(self) -> dict[str, Any]:
        """Return the choices that a person wrote, into params.yaml or a recipe, by dotted key."""
        nobody = (RULE, DEFAULT, PUBLIC)
        by_hand = {key for key, of in self.origins.items() if of not in nobody} | {"seed"}
        return {key: value for key, value in self.choices().items() if key in by_hand}

    def with_decided(self, values: Mapping[str, Any]) -> "Params":
        """Return the same choices with what a rule decided, by dotted key; set keys stay."""
        taken = {key: value for key, value in values.items() if attrgetter(key)(self) is None}
        blocks: dict[str, Any] = {}
        for key, value in taken.items():
            _put(blocks, key, value)
        changed = {name: replace(getattr(self, name), **own) for name, own in blocks.items()}
        origins = {**self.origins, **dict.fromkeys(taken, RULE)}
        return replace(self, **changed, origins=origins)

    @property
    def clones(self) -> bool:
        """Whether a clone of the behaviour has a share of ε."""
        return "clone" in self.privacy.shares

    @property
    def asks_today(self) -> bool:
        """Whether the question for today's returns has a share of ε."""
        return "behaviour" in self.privacy.shares


def load(path: Path = PARAMS) -> Params:
    """Read and check ``params.yaml`` and the dataset's file.

    ``primorl check`` and ``make run`` do so before DVC reads them: DVC removes a stage's outputs
    before it finds out that ``params.yaml`` does not fit.

    Raises:
        PipelineError: a file is missing, is not YAML, or does not fit; the message names the keys.
    """
    why = "no project is here: go into its folder, or make one, `primorl init DIR`"
    return parse(reading.read_yaml(path, why), path)


def parse(raw: Any, path: Path = PARAMS) -> Params:
    """Check the content of ``params.yaml``; the dataset's file is read beside it.

    Raises:
        PipelineError: one line that names every wrong key, the value found and the values allowed.
    """
    if not isinstance(raw, dict):
        raise PipelineError(f"{path}: a block of keys is needed")
    for reserved in ("chosen", "origins", "online"):
        if reserved in raw:
            raise PipelineError(f"{path}: {reserved}: {reading.UNKNOWN_KEY}")
    if "dataset" not in raw:
        raise PipelineError(f"{path}: dataset: missing")
    name, entries = raw["dataset"], (path.parent / DATASETS).glob("*.yaml")
    if name not in (there := sorted(each.stem for each in entries)):
        found = "nothing" if name is None else reading.quote(name)
        allowed = f"the files in {DATASETS}/: {', '.join(there) or 'none is there'} (NAME.yaml)"
        raise PipelineError(f"{path}: dataset: found {found}; allowed are {allowed}")
    own = path.parent / DATASETS / f"{name}.yaml"
    entry = reading.read_yaml(own, "")
    if not isinstance(entry, dict):
        raise PipelineError(f"{own}: a block of keys is needed")
    users = path.parent / ONLINE_SETTINGS
    said, origins = merge(raw, entry, f"{DATASETS}/{own.name}")
    said["online"] = reading.read_yaml(users, "") if users.exists() else {}
    return check(said | {"chosen": entry, "origins": origins}, path, own)


def check(said: dict[str, Any], path: Path, own: Path) -> Params:
    """Make `Params` of merged values, the dataset's under ``chosen``.

    Raises:
        PipelineError: as `parse`; it names the file that holds the key.
    """
    files = {"chosen": own, "online": path.parent / ONLINE_SETTINGS}
    wrong: dict[Path, list[str]] = {}
    try:
        return validate(Params, said)
    except ValidationError as refused:
        for key, why in reading.explanations(refused, said):
            block, _, inner = key.partition(".")
            file = files.get(block, path)
            if said["origins"].get(key) == f"{DATASETS}/{own.name}":
                file, key = own, f"recipe.{key}"
            elif block in files:
                key = inner
            wrong.setdefault(file, []).append(f"{key}: {why}" if key else why)
    raise PipelineError("; ".join(f"{file}: {'; '.join(texts)}" for file, texts in wrong.items()))


def plain(block: Any) -> dict[str, Any]:
    """A block (or all of `Params`) as plain values that JSON can hold; `check` takes those of
    `Params` back.
    """
    content: dict[str, Any] = json.loads(json.dumps(asdict(block)))
    content.pop("origins", None)
    return content


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of blocks, dotted, with their values."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key in _NESTED and isinstance(value, dict):
            yield from flat(value, f"{key}.")
        else:
            yield key, value


def merge(
    raw: Mapping[str, Any], entry: Mapping[str, Any], file: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge the blocks of params.yaml over a dataset's recipe, and decide what others depend on.

    Args:
        raw: content of params.yaml.
        entry: content of the dataset's file.
        file: name of that file.

    Returns:
        The content, and where values came from, by dotted key; of empty keys nothing is known.

    Raises:
        PipelineError: the recipe is no block, or has a key that params.yaml alone may set.
    """
    for key in raw:
        if "." in str(key):
            raise PipelineError(f"{PARAMS}: {key}: {reading.UNKNOWN_KEY}")
    recipe = entry.get("recipe") or {}
    if not isinstance(recipe, dict):
        raise PipelineError(f"{file}: recipe: a block of keys is needed")
    given, suggested = (dict(flat(each)) for each in (raw, recipe))
    for key in suggested:
        if key in _ALONE or key.partition(".")[0] not in BLOCKS:
            why = reading.UNKNOWN_KEY
            if key in _ALONE:
                why = f"{_ALONE[key]}; it is set in params.yaml alone"
            raise PipelineError(f"{file}: recipe.{key}: {why}")
    set_here = {key: value for key, value in given.items() if value is not None}
    origins = dict.fromkeys(suggested, file) | dict.fromkeys(set_here, PARAMS.name)
    origins = {key: of for key, of in origins.items() if key.partition(".")[0] in BLOCKS}
    if set_here.keys() & {"partition.public_fraction", "partition.public"}:
        suggested.pop("partition.public_fraction", None)
    said = given | suggested | set_here
    if not said.get("partition.public") and said.get("partition.public_fraction") is None:
        said["partition.public_fraction"] = 0  # nobody is public by default
    if said.get("privacy.shares") is None:
        simulated = entry.get("environment") is not None
        said["privacy.shares"] = dict(SHARES_OF_A_SIMULATOR if simulated else SHARES_OF_A_LOG)
    # A network begins with what a drawn public split tells; else a rule decides about the class.
    drawn = said.get("partition.public_fraction") not in (None, 0)
    shaped = [said.get(key) for key in ("dynamics.hidden", "dynamics.start")] != [None, None]
    if said.get("dynamics.model") is None and (drawn or shaped):
        said["dynamics.model"], origins["dynamics.model"] = "network", PUBLIC
    content: dict[str, Any] = {name: {} for name in (*BLOCKS, "ledger", "tracking", "compute")}
    for key, value in said.items():
        _put(content, key, value)
    return content, origins


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key; a value in the place of a block stays, to be refused."""
    *path, last = key.split(".")
    for part in path:
        if content.get(part) is None:
            content[part] = {}
        content = content[part]
        if not isinstance(content, dict):
            return
    content[last] = value
