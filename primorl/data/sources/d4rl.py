"""``source: d4rl``: an HDF5 file in D4RL's layout, by path or by D4RL's name.

The layout: flat arrays over all steps of all episodes, one after the other.
"""

import http.client
import os
import runpy
import shutil
import sys
import urllib.request
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from primorl.base.errors import PipelineError
from primorl.base.files import home, replaced_file
from primorl.config.datasets import D4rlDataset
from primorl.data.sources import Reader
from primorl.data.sources.spaces import (
    ONE_NUMBER,
    Array,
    check_array,
    claims_too_much,
    declared,
    needed,
    whole_numbers,
)
from primorl.data.storage.schema import Spaces, transition_table

_FILE = "data.hdf5"
_SECONDS = 10.0
_CHUNK = 2**20
_ROWS_PER_BATCH = 2**16
_AGAIN = "run `dvc repro collect` again"

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


class D4rl:
    """See `primorl.data.sources.Source`.

    Raises:
        PipelineError: if the dataset names no environment.
    """

    def __init__(self, name: str, dataset: D4rlDataset):
        self._name, self._dataset = name, dataset
        self._environment = needed(name, dataset.environment)

    def collect(self, target: Path) -> None:
        """Copy the file from this machine; fetch it first if it is not there, where the entry allows it."""
        options = self._dataset.options
        if options.name is not None:
            url, reference = table_entry(options.name)
            score = self._dataset.score
            if score is not None and reference is not None and (score.low, score.high) != reference:
                print(
                    f"warning: datasets/{self._name}.yaml: score: D4RL's reference scores are {{low: {reference[0]}, "
                    f"high: {reference[1]}, scale: 100}}; with other ones the score is not D4RL's",
                    file=sys.stderr,
                )
            folder = Path(os.environ.get("D4RL_DATASET_DIR", Path.home() / ".d4rl" / "datasets"))
            path = folder / Path(urlparse(url).path).name
            if not path.is_file():
                if not options.remote:
                    raise PipelineError(
                        f"options.name: {options.name!r} is not in {folder} ({path.name}); set options.remote to true "
                        "to fetch it, copy it there, or set D4RL_DATASET_DIR"
                    )
                _fetch(options.name, url, path)
        else:
            path = home() / Path(str(options.file)).expanduser()
            if not path.is_file():
                raise PipelineError(
                    f"options.file: {path} is not there; allowed is an HDF5 file in D4RL's layout"
                )
        shutil.copyfile(path, target / _FILE)

    def open(self, raw: Path) -> Reader:
        """Read it; without ``timeouts`` in the file the declared horizon cuts its episodes."""
        spaces, limit = declared(self._environment)
        return D4rlReader(raw / _FILE, spaces, self._dataset.horizon or limit)


def table_entry(name: str) -> tuple[str, tuple[float, float] | None]:
    """Look ``name`` up in the tables of the optional package d4rl.

    Its ``infos.py`` alone is executed: ``import d4rl`` itself fails on a machine without MuJoCo 2.1.

    Returns:
        The address of the file, and the returns of a random policy and of an expert (None: not known).

    Raises:
        PipelineError: if the package is missing, or does not know the name.
    """
    spec = find_spec("d4rl")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    if not folders or not Path(folders[0], "infos.py").is_file():
        raise PipelineError(
            f"options.name: to find {name!r} needs the package d4rl; `pip install --no-deps 'd4rl>=1.1'` is enough "
            "(its tables alone are read), or name the file itself in options.file"
        )
    path = Path(folders[0], "infos.py")
    try:
        infos = runpy.run_path(str(path))
        urls, low, high = (
            dict(infos[table]) for table in ("DATASET_URLS", "REF_MIN_SCORE", "REF_MAX_SCORE")
        )
    except Exception as broken:
        raise PipelineError(
            f"{path}: D4RL's tables cannot be read ({type(broken).__name__}); reinstall d4rl"
        ) from None
    if name not in urls:
        near = sorted(known for known in urls if known.partition("-")[0] == name.partition("-")[0])
        raise PipelineError(
            f"options.name: found {name!r}; allowed are D4RL's names, such as {', '.join(near or sorted(urls)[:5])}"
        )
    return urls[name], (
        float(low[name]),
        float(high[name]),
    ) if name in low and name in high else None


def _fetch(name: str, url: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer, replaced_file(path) as fresh:
            with fresh.open("wb") as file:
                shutil.copyfileobj(answer, file, _CHUNK)
            expected = answer.headers["Content-Length"]
            if expected is not None and fresh.stat().st_size != int(expected):
                raise http.client.IncompleteRead(b"")
    except (OSError, http.client.HTTPException, ValueError) as unreachable:
        raise PipelineError(
            f"options.name: {name!r} is not in {path.parent} and could not be fetched ({type(unreachable).__name__}); "
            f"check the network and run again, or copy {path.name} there"
        ) from None


class D4rlReader:
    """See `primorl.data.sources.Reader`; an episode is a unit, named by its number.

    A row is one step. An episode ends at ``terminals`` or ``timeouts`` (at both: it terminated); without ``timeouts``
    also when it has lasted for the declared horizon; the rows after the last end are an episode cut short. What comes
    after a step is its row of ``next_observations`` or, without that array, the next row of its episode. There the
    last row of an episode has none: where it terminated, its next observation, on which nothing depends, is its own;
    else its outcome was not recorded, and the transition before is the last one and is truncated. An episode of one
    such row has no transition and is left out.
    """

    behaviour_probabilities = False

    def __init__(self, path: Path, spaces: Spaces, horizon: int | None):
        self.path, self.spaces, self.horizon = path, spaces, horizon

    def tables(self) -> Generator[pa.Table]:
        """See `Reader.tables`; memory grows with the longest episode and the flags."""
        try:
            with h5py.File(self.path, "r") as file:
                yield from self._batches(file)
        except (OSError, RuntimeError):
            raise PipelineError(
                f"{self.path}: truncated, corrupt or missing HDF5; {_AGAIN}"
            ) from None

    def _batches(self, file: h5py.File) -> Generator[pa.Table]:
        arrays = self._arrays(file)
        terminated = self._flags("terminals", arrays.pop("terminals"))
        timed_out = (
            self._flags("timeouts", arrays.pop("timeouts")) if "timeouts" in arrays else None
        )
        ends = self._ends(terminated, timed_out)
        starts = np.concatenate([[0], ends[:-1]])
        first = 0
        while first < len(ends):
            after = max(
                first + 1, int(np.searchsorted(ends, starts[first] + _ROWS_PER_BATCH, side="right"))
            )
            place = slice(int(starts[first]), int(ends[after - 1]))
            batch = {name: array[place] for name, array in arrays.items()}
            table = self._table(first, ends[first:after] - place.start, batch, terminated[place])
            if table.num_rows > 0:
                yield table
            first = after

    def _arrays(self, file: h5py.File) -> dict[str, h5py.Dataset]:
        """Find the arrays and check their types and shapes, before a row is read."""
        S, A = self.spaces.observation_size, self.spaces.action_size
        needed_arrays: dict[str, tuple[str, list[tuple[int, ...]]]] = {
            "observations": ("f", [(S,)]),
            "actions": ("iu", ONE_NUMBER)
            if self.spaces.discrete_actions
            else ("f", [(A,), *([()] if A == 1 else [])]),
            "rewards": ("fiu", ONE_NUMBER),
            "terminals": ("biuf", ONE_NUMBER),
            "timeouts": ("biuf", ONE_NUMBER),
            "next_observations": ("f", [(S,)]),
        }
        arrays: dict[str, h5py.Dataset] = {}
        for name, (kinds, shapes) in needed_arrays.items():
            array = file.get(name)
            where = f"{self.path}: {name}"
            if array is None and name in ("timeouts", "next_observations"):
                continue
            if not isinstance(array, h5py.Dataset):
                found = "nothing" if array is None else "no array"
                there = ", ".join(sorted(file)) or "none"
                raise PipelineError(
                    f"{where}: found {found}; needed is an array; there are {there}"
                )
            check_array(where, array, kinds, shapes)
            if claims_too_much(array.id):
                raise PipelineError(
                    f"{where}: found {array.shape[0]} rows claimed, more than the file holds; {_AGAIN}"
                )
            rows = len(arrays.get("observations", array))
            if len(array) != rows:
                raise PipelineError(
                    f"{where}: found {len(array)} rows; allowed: {rows}, as many as observations"
                )
            arrays[name] = array
        if len(arrays["observations"]) == 0:
            raise PipelineError(f"{self.path}: found no steps; allowed is at least one")
        return arrays

    def _flags(self, name: str, array: h5py.Dataset) -> Flags:
        values = array[()].reshape(-1)
        bad = np.flatnonzero((values != 0) & (values != 1))
        if len(bad) > 0:
            raise PipelineError(
                f"{self.path}: {name}: row {int(bad[0])} is neither 0 nor 1; correct it"
            )
        flags: Flags = values.astype(bool)
        return flags

    def _ends(self, terminated: Flags, timed_out: Flags | None) -> Places:
        """Find the row after the last one of each episode."""
        rows = len(terminated)
        ended = terminated if timed_out is None else terminated | timed_out
        ends = np.flatnonzero(ended).astype(np.int64) + 1
        if timed_out is None and self.horizon is not None:
            H, limits, starts = self.horizon, np.append(ends, rows), np.append(0, ends)
            cuts = [
                np.arange(start + H, limit, H) for start, limit in zip(starts, limits, strict=True)
            ]
            ends = np.union1d(ends, np.concatenate(cuts))
        if len(ends) == 0:
            raise PipelineError(
                f"{self.path}: found no end of an episode; allowed: terminals, timeouts or `horizon`"
            )
        return ends if ends[-1] == rows else np.append(ends, rows)

    def _table(
        self, first: int, ends: Places, batch: dict[str, Array], terminated: Flags
    ) -> pa.Table:
        """Make the transitions of whole episodes, numbered from ``first``, that end before the rows ``ends``."""
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
            action = whole_numbers(action, self.spaces.action_size)
        else:
            action = action.reshape(len(action), -1)
        names = [f"{number:09d}" for number in range(first, first + len(ends))]
        columns = (observation, action, batch["rewards"].reshape(-1), after, terminated, truncated)
        return transition_table(
            self.spaces, names, names, lengths, *(column[keep] for column in columns)
        )
