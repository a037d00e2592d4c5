"""Checks before a charge: of a run's settings against each other and the data, and of the declared
facts against the public split.

Reads no private byte.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from primorl.base.errors import PipelineError
from primorl.config.datasets import AnyDataset, Bounds, DeclaredBounds, TabularDataset
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest, Spaces
from primorl.engine.settings import LEAST_UNITS
from primorl.model.termination import LEARNED, NONE, RULES


def check_choices(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse choices that fit neither each other nor the data.

    Raises:
        PipelineError: names the first such choice.
    """
    _check_declared(params, manifest, public)
    q, units = params.privacy.sampling_probability, manifest.private_units
    if q is not None and q * units < 1:
        raise PipelineError(
            f"params.yaml: privacy.sampling_probability: found {q:g}, at which less than one of "
            f"{units} units joins a round; allowed is at least 1/{units}"
        )
    patience = params.dynamics.early_stopping.patience
    if patience is not None and not manifest.public_units:
        raise _needs_public(
            "params.yaml: dynamics.early_stopping.patience", patience, "null: all rounds are run"
        )
    if patience is not None and params.dynamics.model == "linear":
        raise PipelineError(
            f"params.yaml: dynamics.early_stopping.patience: found {patience}, with linear heads, "
            "which nobody public judges; allowed: null, all rounds are run"
        )
    if manifest.info.environment is None:
        _check_starts(params, manifest)
        manifest.declared_horizon()
    _check_termination(params, manifest, public)
    if params.dynamics.start == "public":
        _check_public_start(params, public)
    observation_bounds(params.chosen.bounds, manifest, public)


def _check_declared(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse parts of different datasets, public statistics where no unit is public, and infinite
    bounds of actions.
    """
    if public.info != manifest.info:
        raise PipelineError(
            "data/partitions: its parts are of different datasets; run `dvc repro partition`"
        )
    declared, normaliser = params.chosen.bounds, params.privacy.statistics.normaliser
    dataset = f"datasets/{params.dataset}.yaml"
    sides = (*manifest.info.spaces.action_low, *manifest.info.spaces.action_high)
    if normaliser != "public" and not all(map(math.isfinite, sides)):
        raise PipelineError(
            f"params.yaml: privacy.statistics.normaliser: found {normaliser}, which needs finite "
            f"bounds of actions, and those of dataset {params.dataset} are infinite; declare "
            "them, or use public"
        )
    for key, found, allowed in (
        ("params.yaml: privacy.statistics.normaliser", normaliser, "private (charged)"),
        (f"{dataset}: bounds.observation", declared.observation, "space, {low, high}"),
        (f"{dataset}: bounds.reward", declared.reward, "[low, high]"),
    ):
        if found == "public" and not manifest.public_units:
            raise _needs_public(key, found, allowed)


def _needs_public(key: str, found: object, allowed: str) -> PipelineError:
    """Build the refusal of a choice that needs public units where there are none."""
    return PipelineError(
        f"{key}: found {found}, which needs public units, and data/partitions has none (where "
        "partition in params.yaml was changed since, run `dvc repro partition`); allowed: "
        f"{allowed}"
    )


def _check_public_start(params: Params, public: UnitStore) -> None:
    """Refuse weights from a public split that is too small, or where the normaliser is not known
    beforehand.
    """
    key = "params.yaml: dynamics.start: found public"
    if public.units < LEAST_UNITS:
        raise PipelineError(f"{key}, and {public.units} units are; needed are {LEAST_UNITS}")
    if params.privacy.statistics.normaliser == "private":
        raise PipelineError(
            f"{key}, with privacy.statistics.normaliser: private, whose answer comes later; "
            "allowed: random"
        )


def _check_starts(params: Params, manifest: Manifest) -> None:
    """Refuse a model without an environment in which no policy could start: without public or
    released states.
    """
    if manifest.public_units or params.privacy.statistics.starts:
        return
    raise PipelineError(
        "params.yaml: privacy.statistics.starts: found false, and policies have nowhere to "
        f"start: nobody is public and datasets/{params.dataset}.yaml says environment: null; "
        "allowed is true (charged), or public units"
    )


def _check_termination(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse a termination rule that is unknown, or of another task, or contradicted by the public
    split.
    """
    chosen, size = manifest.info.termination, public.observation_size
    key = f"datasets/{params.dataset}.yaml: termination"
    fitting = sorted(name for name, rule in RULES.items() if rule.observation_size == size)
    if chosen not in (NONE, LEARNED, *fitting):
        allowed = ", ".join((NONE, LEARNED, *fitting))
        raise PipelineError(
            f"{key}: found {chosen!r}; allowed for observations of size {size} are {allowed}"
        )
    if chosen == NONE and public.terminates:
        raise PipelineError(
            f"{key}: found none, but episodes of data/partitions/public terminate; allowed is "
            f"{LEARNED} or a rule"
        )


def check_clone(params: Params, manifest: Manifest) -> None:
    """Refuse a clone of actions that cannot be scaled to [-1, 1]."""
    if not params.clones:
        return
    spaces = manifest.info.spaces
    sides = zip(spaces.action_low, spaces.action_high, strict=True)
    if not all(math.isfinite(high - low) and low < high for low, high in sides):
        raise PipelineError(
            "params.yaml: privacy.shares: found one of a clone, which needs finite "
            f"bounds of actions, which dataset {params.dataset} does not have; declare them, or "
            "leave it out"
        )


def check_questions(params: Params, manifest: Manifest) -> None:
    """Refuse questions about a model without first states, or about returns without bounds: before
    the model is paid for, not after.
    """
    names = params.questions
    nowhere = not manifest.public_units and not params.privacy.statistics.starts
    if names and nowhere:
        raise PipelineError(
            f"params.yaml: privacy.shares: found {', '.join(names)}, while no unit "
            "is public and privacy.statistics.starts is false, so rollouts have no first states; "
            "allowed: starts: true (charged), public units, or no share of them"
        )
    if names and manifest.info.horizon is None and params.evaluation.private.discount == 1.0:
        raise PipelineError(
            f"datasets/{params.dataset}.yaml: horizon: not declared, while "
            "evaluation.private.discount is 1, so nothing bounds a return; declare a horizon, or "
            "set a discount below 1"
        )


# ---- declared facts

Floats = npt.NDArray[np.floating]

STOP, WARNING = 0.2, 0.01
"""Shares of public values outside a column's bounds from which a training is refused, and from
which it is warned.
"""


def observation_bounds(
    bounds: Bounds, manifest: Manifest, public: UnitStore
) -> tuple[Floats, Floats]:
    """Bound model states, [S] each: as declared, or by the environment or the public split; never
    by private data.

    Raises:
        PipelineError: the bounds are infinite, or of another number of dimensions.
    """
    declared = bounds.observation
    spaces = manifest.info.spaces
    size = public.observation_size
    key = f"datasets/{manifest.info.dataset}.yaml: bounds.observation"
    if declared == "public":
        inputs, targets = public.arrays()
        seen = np.concatenate((inputs[:, :size], inputs[:, :size] + targets[:, :size]))
        low, high = seen.min(0), seen.max(0)
    else:
        own = (spaces.observation_low, spaces.observation_high)
        low, high = (
            np.asarray(side, np.float32)
            for side in (own if declared == "space" else (declared.low, declared.high))
        )
    if len(low) != size:
        raise PipelineError(f"{key}: found {len(low)} dimensions, the data has {size}")
    if not np.isfinite((low, high)).all():
        raise PipelineError(
            f"{key}: found an unbounded observation space, allowed are finite bounds; set it to "
            "public, or declare "
            "{low: [..], high: [..]}"
        )
    return low, high


@dataclass(frozen=True)
class Bounded:
    """A column and its declared bounds; infinite where none are declared, or where the public split
    gives them.
    """

    name: str
    key: str
    low: float
    high: float
    of_public: bool = False

    def outside(self, values: Floats) -> float:
        """The share of ``values`` [rows] outside the bounds, which are rounded to float32 as the
        values are.
        """
        low, high = np.float32(self.low), np.float32(self.high)
        return float(((values < low) | (values > high)).mean())


def bounded(dataset: AnyDataset | None, spaces: Spaces) -> list[Bounded]:
    """Every dimension of an observation, then the reward, with the bounds that the model will keep
    to.
    """
    observation = "space" if dataset is None else dataset.bounds.observation
    low, high = spaces.observation_low, spaces.observation_high
    if isinstance(observation, DeclaredBounds) and len(observation.low) == len(low):
        low, high = observation.low, observation.high
    public = observation == "public"
    if public:
        low, high = (-np.inf,) * len(low), (np.inf,) * len(high)
    names = zip(spaces.observation_names, low, high, strict=True)
    columns = [
        Bounded(name, "bounds.observation", least, most, public) for name, least, most in names
    ]
    reward = "public" if dataset is None else dataset.bounds.reward
    name = dataset.options.columns.reward if isinstance(dataset, TabularDataset) else "reward"
    ends = (-np.inf, np.inf) if isinstance(reward, str) else reward
    return [
        *columns,
        Bounded(name, "bounds.reward", *ends, dataset is not None and reward == "public"),
    ]


def cuts_last_rows(dataset: AnyDataset | None) -> bool:
    """Whether the last row of a trajectory that does not terminate is dropped, and its reward with
    it.
    """
    if not isinstance(dataset, TabularDataset) or dataset.options.end == "outcome":
        return False
    return dataset.options.columns.next_observation is None


@dataclass(frozen=True)
class Objections:
    """Lines about a run, each with the finding in the public split and the remedy.

    Attributes:
        stops: why it is not to be paid for.
        warnings: to be looked at.
    """

    stops: tuple[str, ...]
    warnings: tuple[str, ...]


def objections(params: Params, manifest: Manifest, public: UnitStore) -> Objections:
    """List objections to a run that the public split shows or, where it is empty, the entry."""
    if public.units == 0:
        dataset = params.chosen
        cut = (
            isinstance(dataset, TabularDataset)
            and cuts_last_rows(dataset)
            and not dataset.options.columns.terminated
        )
        warned = []
        if cut:
            warned.append(
                f"datasets/{params.dataset}.yaml: options.end: the last row of every trajectory "
                "is dropped, and its reward with it, and nobody is public to tell whether any is "
                "left; if an outcome score is there, set options.end: outcome and termination: "
                "learned; or name next_observation columns"
            )
        if manifest.info.termination == LEARNED:
            warned.append(
                f"datasets/{params.dataset}.yaml: termination: learned: nobody is public to tell "
                "whether the model's ends are right, so rollouts do not end by them, and an "
                "outcome score in last rows may not be learned; consent of some people "
                "(partition.public) helps, or rewards in every row"
            )
        return Objections((), tuple(warned))
    inputs, targets = public.arrays()
    size = public.observation_size
    values = np.concatenate((inputs[:, :size], targets[:, size : size + 1]), axis=1)
    stops, warnings = list(_no_reward(params, manifest, public, values[:, -1])), list[str]()
    for column, seen in zip(bounded(params.chosen, manifest.info.spaces), values.T, strict=True):
        share = column.outside(seen)
        if share >= WARNING:
            (stops if share > STOP else warnings).append(
                f"datasets/{params.dataset}.yaml: {column.key}: {100 * share:.3g}% of the public "
                f"values of {column.name!r} lie outside its bounds [{column.low:g}, "
                f"{column.high:g}] (public minimum {seen.min():.4g}, maximum {seen.max():.4g}); "
                f"correct them to what is possible, or set {column.key} to public"
            )
    return Objections(tuple(stops), tuple(warnings))


def _no_reward(
    params: Params, manifest: Manifest, public: UnitStore, reward: Floats
) -> Iterator[str]:
    """Nothing can be learned where every step earns the same, unless episodes can end sooner or
    later.
    """
    if reward.min() < reward.max():
        return
    ends = manifest.info.termination
    may_end = public.terminates if ends == LEARNED else ends != NONE
    if reward[0] != 0 and may_end:
        return
    cut = cuts_last_rows(params.chosen) and not public.terminates
    why = (
        "the last row of a trajectory that does not terminate is dropped, and its reward with it; "
        "if an outcome score is there, set options.end: outcome and termination: learned; or name "
        "next_observation columns"
        if cut
        else "correct options.columns.reward, or the log"
    )
    key = "options.end" if cut else "reward"
    file = f"datasets/{params.dataset}.yaml"
    yield f"{file}: {key}: every public reward is {reward[0]:g}, so nothing can be learned: {why}"
