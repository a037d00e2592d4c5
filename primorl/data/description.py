"""Description of a partitioned dataset: declared facts, and statistics of the public split alone."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from primorl.base.errors import PipelineError
from primorl.data.storage.parquet import PartReader
from primorl.data.storage.schema import Manifest, action_vectors, trajectory_starts, vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

_QUANTILES = (0.05, 0.5, 0.95)
_MOST_BINS = 50
_MOST_TICKS = 8  # of lengths
_MOST_POINTS = 4000  # in the figure of coverage


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
        reader = PartReader(folder, made_by="partition")
        parts: list[tuple[Any, ...]] = []
        for table in reader.tables():
            starts = trajectory_starts(table)
            lasts = np.append(starts[1:], table.num_rows) - 1
            rewards = table["reward"].to_numpy().astype(float)
            observation = vectors(table["observation"]).astype(float)
            action = action_vectors(table, reader.info.spaces).astype(float)
            returns, terminated = (
                np.add.reduceat(rewards, starts),
                table["terminated"].to_numpy()[lasts],
            )
            parts.append((observation, action, lasts - starts + 1, rewards, returns, terminated))
        return (
            cls(*(np.concatenate(column) for column in zip(*parts, strict=True))) if parts else None
        )

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
        Plain JSON, and the public split for `draw`; None where nothing is public.

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
    names = {
        name: list(getattr(info.spaces, name)) for name in ("observation_names", "action_names")
    }
    about = manifest.to_json() | {
        "schema": schema,
        **names,
        "public": None if public is None else public.to_json(),
    }
    return about, public


def draw(path: Path, about: dict[str, Any], public: PublicSplit) -> None:
    """Draw returns, lengths and coverage of the public split as a PNG.

    Coverage: its transitions on the two principal axes of the standardised observations, coloured by the step's place
    in its trajectory. Where there is one number alone, it is drawn over the step.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MultipleLocator

    figure = Figure(figsize=(12, 3.8), dpi=120, layout="constrained")
    returns, lengths, coverage = figure.subplots(1, 3)
    returns.hist(public.returns, bins=min(50, max(5, len(public.returns) // 3)), color="C0")
    returns.set_xlabel("return of an episode")
    returns.set_ylabel("public trajectories")
    lengths.hist(public.lengths, bins=length_bins(public.lengths), color="C1")
    lengths.set_xlabel("steps of an episode")
    # an automatic locator has ticks at halves where all lengths are nearly the same
    lengths.xaxis.set_major_locator(
        MultipleLocator(math.ceil((np.ptp(public.lengths) + 1) / _MOST_TICKS))
    )
    _draw_coverage(coverage, about, public)
    for axes in (returns, lengths, coverage):
        axes.spines[["top", "right"]].set_visible(False)
    units = about["public_units"] + about["private_units"]
    figure.suptitle(
        f"{about['dataset']}: its public split ({about['public_units']} of {units} units)",
        fontsize=11,
    )
    figure.savefig(path, format="png", metadata={"Software": None})


def _draw_coverage(coverage: "Axes", about: dict[str, Any], public: PublicSplit) -> None:
    rows = len(public.observation)
    chosen = np.linspace(0, rows - 1, min(_MOST_POINTS, rows)).astype(int)
    categories = {
        column
        for begin, size in about["spaces"]["one_hot"]
        for column in range(begin, begin + size)
    }
    every = range(public.observation.shape[1])
    numbers = [column for column in every if column not in categories] or list(
        every
    )  # categories are stripes
    shown = public.observation[:, numbers]
    if len(numbers) == 1:
        steps = np.concatenate([np.arange(1, n + 1) for n in public.lengths])
        names = about["observation_names"]
        coverage.plot(
            steps[chosen],
            shown[chosen, 0],
            ".",
            color="C0",
            markersize=4,
            alpha=0.3,
            markeredgewidth=0,
        )
        coverage.set_xlabel("step of the episode")
        coverage.set_ylabel(names[numbers[0]] if names else "observation")
        return
    first, second, share = _principal(shown[chosen])
    place = np.concatenate([np.arange(n) / max(1, n - 1) for n in public.lengths])
    points = coverage.scatter(first, second, c=place[chosen], s=4, cmap="viridis", linewidths=0)
    coverage.set_xlabel(f"first principal axis of observations ({share[0]:.0%})")
    coverage.set_ylabel(f"second ({share[1]:.0%})")
    coverage.figure.colorbar(points, ax=coverage, label="place in the episode")


def length_bins(lengths: npt.NDArray[np.int64]) -> Floats:
    """Edges of at most 50 bins for ``lengths`` [E], each of which holds equally many whole numbers.

    Bins of another width would hold now more and now fewer lengths, and show spikes that are not in the data.
    """
    low, high = int(lengths.min()), int(lengths.max())
    width = math.ceil((high - low + 1) / _MOST_BINS)
    return np.arange(low, high + 1 + width, width).astype(float) - 0.5


def _principal(observation: Floats) -> tuple[Floats, Floats, Floats]:
    spread = observation.std(axis=0)
    standard = (observation - observation.mean(axis=0)) / np.where(spread > 0, spread, 1)
    left, values, _ = np.linalg.svd(standard, full_matrices=False)
    share = values**2 / max(float((values**2).sum()), 1e-12)
    if len(values) == 1:  # a single row
        return left[:, 0] * values[0], np.zeros(len(left)), np.append(share, 0.0)
    return left[:, 0] * values[0], left[:, 1] * values[1], share


def _quantiles(values: Floats) -> dict[str, float]:
    return {
        f"{q:.0%}": float(v)
        for q, v in zip(_QUANTILES, np.quantile(values, _QUANTILES), strict=True)
    }


def _ranges(values: Floats) -> dict[str, list[float]]:
    columns = {
        "min": values.min(0),
        "mean": values.mean(0),
        "max": values.max(0),
        "std": values.std(0),
    }
    return {name: [float(f"{number:.6g}") for number in column] for name, column in columns.items()}
