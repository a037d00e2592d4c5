"""D4RL's layout: flat arrays over all steps of all episodes, one after the other in one HDF5 file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from primorl.project.errors import PipelineError
from primorl.trajectories.sources.hdf5 import claims_too_much
from primorl.trajectories.storage.schema import Spaces, transition_table

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]

_ROWS_PER_BATCH = 2**16
_FLAGS_PER_READ = 2**20
_KINDS = {"f": "floating point", "iu": "whole numbers", "fiu": "real numbers", "biuf": "booleans, or 0 and 1"}
_AGAIN = "run `dvc repro collect` again"


class D4rlReader:
    """See `primorl.trajectories.sources.source.Reader`; an episode is a unit, named by its number.

    A row is one step. An episode ends at ``terminals`` or ``timeouts`` (at both: it terminated); without ``timeouts``
    also when it has lasted for the declared horizon; the rows after the last end are an episode cut short. What comes
    after a step is its row of ``next_observations`` or, without that array, the next row of its episode. There the
    last row of an episode has none: where it terminated, its next observation, on which nothing depends, is its own;
    else its outcome was not recorded, and the transition before is the last one and is truncated. An episode of one
    such row has no transition and is left out.

    Args:
        path: the file.
        spaces: what the environment declares.
        horizon: the declared step limit.
    """

    behaviour_probabilities = False

    def __init__(self, path: Path, spaces: Spaces, horizon: int | None):
        self.path = path
        self.spaces = spaces
        self.horizon = horizon

    def tables(self) -> Iterator[pa.Table]:
        """Batches of whole episodes in the order of the file; memory grows with the longest episode only.

        Raises:
            PipelineError: names the file and the array or row, what was found, what is allowed.
        """
        with self._read(), h5py.File(self.path, "r") as file:
            arrays = self._arrays(file)
            rows = len(arrays["observations"])
            terminated = self._flags("terminals", arrays["terminals"])
            timed_out = self._flags("timeouts", arrays["timeouts"]) if "timeouts" in arrays else None
            ends = self._ends(terminated, timed_out, rows)
            starts = np.concatenate([[0], ends[:-1]])
            episode = 0
            while episode < len(ends):
                after = max(episode + 1, int(np.searchsorted(ends, starts[episode] + _ROWS_PER_BATCH, side="right")))
                place = slice(int(starts[episode]), int(ends[after - 1]))
                batch = {name: array[place] for name, array in arrays.items() if name not in ("terminals", "timeouts")}
                table = self._table(episode, ends[episode:after] - place.start, batch, terminated[place])
                if table.num_rows > 0:
                    yield table
                episode = after

    @contextmanager
    def _read(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError):
            raise PipelineError(f"{self.path}: truncated, corrupt or missing HDF5; {_AGAIN}") from None

    def _arrays(self, file: h5py.File) -> dict[str, h5py.Dataset]:
        S, A = self.spaces.observation_size, self.spaces.action_size
        discrete = self.spaces.discrete_actions
        needed: dict[str, tuple[str, list[tuple[int, ...]]]] = {
            "observations": ("f", [(S,)]),
            "actions": ("iu", [(), (1,)]) if discrete else ("f", [(A,), ()] if A == 1 else [(A,)]),
            "rewards": ("fiu", [(), (1,)]),
            "terminals": ("biuf", [(), (1,)]),
            "timeouts": ("biuf", [(), (1,)]),
            "next_observations": ("f", [(S,)]),
        }
        arrays = {}
        for name, (kinds, shapes) in needed.items():
            array = file.get(name)
            if array is None and name in ("timeouts", "next_observations"):
                continue
            if not isinstance(array, h5py.Dataset) or array.ndim == 0:
                found = "nothing" if array is None else "no array"
                there = ", ".join(sorted(file)) or "none"
                raise PipelineError(f"{self.path}: {name}: found {found}; needed is an array; there are {there}")
            if array.dtype.kind not in kinds:
                raise PipelineError(f"{self.path}: {name}: found type {array.dtype}; allowed: {_KINDS[kinds]}")
            if array.shape[1:] not in shapes:
                raise PipelineError(
                    f"{self.path}: {name}: found shape {array.shape[1:]} a step, declared is {shapes[0]}; "
                    "correct `environment` in params.yaml, or the file"
                )
            if claims_too_much(array.id):
                raise PipelineError(
                    f"{self.path}: {name}: found {array.shape[0]} rows claimed, more than the file holds; {_AGAIN}, or "
                    "write the file anew"
                )
            arrays[name] = array
        rows = len(arrays["observations"])
        for name, array in arrays.items():
            if len(array) != rows:
                raise PipelineError(
                    f"{self.path}: {name}: found {len(array)} rows; allowed: {rows}, as many as observations"
                )
        if rows == 0:
            raise PipelineError(f"{self.path}: found no steps; allowed is at least one")
        return arrays

    def _flags(self, name: str, array: h5py.Dataset) -> Flags:
        flags = np.empty(len(array), dtype=bool)
        for start in range(0, len(array), _FLAGS_PER_READ):
            values = array[start : start + _FLAGS_PER_READ].reshape(-1)
            bad = np.flatnonzero((values != 0) & (values != 1))
            if len(bad) > 0:
                raise PipelineError(f"{self.path}: {name}: row {start + int(bad[0])} is neither 0 nor 1; correct it")
            flags[start : start + len(values)] = values
        return flags

    def _ends(self, terminated: Flags, timed_out: Flags | None, rows: int) -> Places:
        """The row after the last one of each episode."""
        ended = terminated if timed_out is None else terminated | timed_out
        ends = np.flatnonzero(ended).astype(np.int64) + 1
        if timed_out is None and self.horizon is not None:
            limits = np.append(ends, rows)
            starts = np.append(0, ends)
            H = self.horizon
            cuts = [np.arange(start + H, limit, H) for start, limit in zip(starts, limits, strict=True)]
            ends = np.union1d(ends, np.concatenate(cuts))
        if len(ends) == 0:
            raise PipelineError(
                f"{self.path}: found no end of an episode; allowed: terminals, timeouts, or a declared `horizon`"
            )
        return ends if ends[-1] == rows else np.append(ends, rows)

    def _table(self, first: int, ends: Places, batch: dict[str, Array], terminated: Flags) -> pa.Table:
        """The transitions of whole episodes, numbered from ``first``, that end before the rows ``ends``."""
        observation, action = batch["observations"], batch["actions"]
        lengths, lasts = np.diff(ends, prepend=0), ends - 1
        truncated = np.zeros(len(observation), dtype=bool)
        truncated[lasts] = ~terminated[lasts]
        keep = np.ones(len(observation), dtype=bool)
        if "next_observations" in batch:
            after = batch["next_observations"]
        else:
            after = np.roll(observation, -1, axis=0)
            after[lasts] = observation[lasts]
            cut = truncated[lasts]
            truncated[lasts[cut & (lengths > 1)] - 1] = True
            keep[lasts[cut]] = False
            lengths = lengths - cut
        if self.spaces.discrete_actions:
            action = np.clip(action.reshape(-1), -1, self.spaces.action_size)  # outside stays outside, and fits int32
        else:
            action = action.reshape(len(action), -1)
        names = [f"{number:09d}" for number in range(first, first + len(ends))]
        columns = (observation, action, batch["rewards"].reshape(-1), after, terminated, truncated)
        return transition_table(self.spaces, names, names, lengths, *(column[keep] for column in columns))
