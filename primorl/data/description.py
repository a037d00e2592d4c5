"""The declared bounds of a dataset's columns."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from primorl.config.datasets import AnyDataset, DeclaredBounds, TabularDataset
from primorl.data.storage.schema import Spaces


@dataclass(frozen=True)
class Bounded:
    """A column and its declared bounds; infinite where none are declared, or where the public split
    gives them.
    """

    name: str
    key: str
    low: float
    high: float

    def outside(self, values: npt.NDArray[np.floating]) -> float:
        """Return the share of ``values`` [rows] outside the bounds, which are rounded to float32 as
        values are.
        """
        low, high = np.float32(self.low), np.float32(self.high)
        return float(((values < low) | (values > high)).mean())


def list_bounds(dataset: AnyDataset, spaces: Spaces) -> list[Bounded]:
    """List every dimension of an observation, then the reward, with the bounds that the model keeps
    to.
    """
    observation, reward = dataset.bounds.observation, dataset.bounds.reward
    low, high = spaces.observation_low, spaces.observation_high
    if isinstance(observation, DeclaredBounds):
        low, high = observation.low, observation.high
    elif observation == "public":
        low, high = (-np.inf,) * len(low), (np.inf,) * len(high)
    columns = zip(spaces.observation_names, low, high, strict=True)
    name = dataset.options.columns.reward if isinstance(dataset, TabularDataset) else "reward"
    ends = (-np.inf, np.inf) if isinstance(reward, str) else reward
    return [
        *(Bounded(name, "bounds.observation", *own) for name, *own in columns),
        Bounded(name, "bounds.reward", *ends),
    ]


def cuts_last_rows(dataset: AnyDataset) -> bool:
    """Tell whether the last row of a trajectory that does not terminate is dropped, with a reward
    that it may have.
    """
    if not isinstance(dataset, TabularDataset) or dataset.options.end in ("observed", "outcome"):
        return False
    return dataset.options.columns.next_observation is None
