"""Checks of the declared facts against the public split, before a charge. Reads no private byte."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from primorl.base.errors import PipelineError
from primorl.config.datasets import AnyDataset, Bounds, DeclaredBounds, TabularDataset
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest, Spaces
from primorl.model.termination import LEARNED, NONE

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
