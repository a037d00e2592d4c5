"""Description of a partitioned dataset: declared facts, and statistics of the public split
alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from primorl.base.errors import PipelineError
from primorl.config.datasets import AnyDataset, DeclaredBounds, TabularDataset
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest, Spaces

Floats = npt.NDArray[np.float64]

_QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class PublicSplit:
    """The public rows, for statistics: R transitions of E trajectories.

    Attributes:
        observation: [R, S].
        action: [R, A], one-hot where actions are discrete.
        lengths: steps of each trajectory, [E].
        reward: [R].
        returns: undiscounted, [E].
        terminated: whether each trajectory ended in a terminal state, [E].
    """

    observation: Floats
    action: Floats
    lengths: npt.NDArray[np.int64]
    reward: Floats
    returns: Floats
    terminated: npt.NDArray[np.bool_]

    @classmethod
    def read(cls, folder: Path) -> "PublicSplit | None":
        """Read ``data/partitions/public``; None where it has no rows."""
        store = UnitStore.open(folder)
        if store.size == 0:
            return None
        inputs, targets = (numbers.astype(float) for numbers in store.arrays())
        S, starts = store.observation_size, store.trajectory_starts
        lengths = np.diff(starts, append=store.size)
        reward, terminated = targets[:, S], targets[starts + lengths - 1, S + 1] > 0
        returns = np.add.reduceat(reward, starts)
        return cls(inputs[:, :S], inputs[:, S:], lengths, reward, returns, terminated)

    def to_json(self) -> dict[str, Any]:
        """Counts, quantiles and ranges as plain JSON."""
        last = np.zeros(len(self.reward), dtype=bool)
        last[np.cumsum(self.lengths) - 1] = True
        only_at_ends = bool(
            (self.reward[~last] == 0).all() and (self.reward[last] != 0).any() and not last.all()
        )
        return {
            "trajectories": len(self.lengths),
            "transitions": len(self.observation),
            "terminated_share": float(self.terminated.mean()),
            "length": _quantiles(self.lengths.astype(float)),
            "return": _quantiles(self.returns) | {"mean": float(self.returns.mean())},
            "observation": _ranges(self.observation),
            "action": _ranges(self.action),
            "reward": _ranges(self.reward[:, None]) | {"only_at_ends": only_at_ends},
        }


def describe(partitions: Path) -> tuple[dict[str, Any], PublicSplit | None]:
    """Describe the dataset in ``partitions`` without opening anything of the private side.

    Returns:
        Plain JSON, and the public split; None where nothing is public.

    Raises:
        PipelineError: if nothing was partitioned yet, or a file is broken.
    """
    file = partitions / "manifest.json"
    if not file.exists():
        raise PipelineError(f"{file}: not there; run `dvc repro partition`")
    manifest = Manifest.load(file)
    public = PublicSplit.read(partitions / "public")
    info = manifest.info
    schema = {field.name: str(field.type) for field in info.schema}
    about = manifest.to_json() | {
        "schema": schema,
        "observation_names": list(info.spaces.observation_names),
        "action_names": list(info.spaces.action_names),
        "public": None if public is None else public.to_json(),
    }
    return about, public


def _quantiles(values: Floats) -> dict[str, float]:
    return {f"{share:.0%}": float(np.quantile(values, share)) for share in _QUANTILES}


def _ranges(values: Floats) -> dict[str, list[float]]:
    columns = {name: getattr(values, name)(0) for name in ("min", "mean", "max", "std")}
    return {name: [float(f"{number:.6g}") for number in column] for name, column in columns.items()}


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

    def outside(self, values: npt.NDArray[np.floating]) -> float:
        """Return the share of ``values`` [rows] outside the bounds, which are rounded to float32 as
        values are.
        """
        low, high = np.float32(self.low), np.float32(self.high)
        return float(((values < low) | (values > high)).mean())


def list_bounds(dataset: AnyDataset | None, spaces: Spaces) -> list[Bounded]:
    """List every dimension of an observation, then the reward, with the bounds that the model keeps
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
    """Tell whether the last row of a trajectory that does not terminate is dropped, with a reward
    that it may have.
    """
    if not isinstance(dataset, TabularDataset) or dataset.options.end in ("observed", "outcome"):
        return False
    return dataset.options.columns.next_observation is None
