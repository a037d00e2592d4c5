"""``source: d4rl``: an HDF5 file in D4RL's layout, flat arrays over all steps, by D4RL's name or by
path.
"""

import csv
import http.client
import itertools
import math
import os
import shutil
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from primorl.base import BadRows, PipelineError, say
from primorl.base.files import home, replaced_file
from primorl.base.records import printable
from primorl.config.datasets import D4rlDataset
from primorl.data.sources import Reader, episode_tables
from primorl.data.sources.spaces import inspect_environment, require_environment
from primorl.data.storage.schema import Array, Spaces, Transitions

_COPY = "with all files there, copy the arrays into one"  # HDF5 gives zeros where one is missing
_GYMNASIUM = {"terminals": "terminations", "timeouts": "truncations"}
_FLAGS = (*_GYMNASIUM, *_GYMNASIUM.values())
NAMES = Path(__file__).with_suffix(".csv")
"""D4RL's names, addresses and reference scores."""
_FILE = "data.hdf5"
_NEEDED = ("observations", "actions", "rewards", "terminals")
_OPTIONAL = ("timeouts", "next_observations")
_ENVIRONMENTS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker2d": "Walker2d-v5"}


class D4rl:
    """See `primorl.data.sources.Source`.

    Raises:
        PipelineError: if the dataset names no environment.
    """

    def __init__(self, name: str, dataset: D4rlDataset):
        self._dataset = dataset
        self._environment = require_environment(name, dataset.environment)

    def collect(self, target: Path) -> None:
        """Copy the file from this machine; fetch it first if it is not there, where the entry
        allows it.
        """
        options = self._dataset.options
        path = home() / Path(str(options.file)).expanduser()
        if options.name is not None:
            path = self._find_named(options.name)
        if not path.is_file():
            raise PipelineError(f"options.file: {path} is not there; allowed is D4RL's HDF5 file")
        shutil.copyfile(path, target / _FILE)

    def open(self, raw: Path) -> Reader:
        """Read it; without ``timeouts`` in the file the declared horizon cuts its episodes."""
        spaces, limit, _ = inspect_environment(self._environment)
        return D4rlReader(raw / _FILE, spaces, self._dataset.horizon or limit)

    def _find_named(self, name: str) -> Path:
        address = _row_of(name)["address"]
        folder = Path(os.environ.get("D4RL_DATASET_DIR", Path.home() / ".d4rl" / "datasets"))
        path = folder / address.rpartition("/")[2]
        if path.is_file():
            return path
        remedy = f"put {address} there by hand, or into the folder D4RL_DATASET_DIR"
        if not self._dataset.options.remote:
            remedy += ", or set options.remote: true"
            raise PipelineError(f"options.name: {path} is not there; {remedy}")
        try:
            with replaced_file(path) as fresh:
                urllib.request.urlretrieve(address, fresh)
        except (OSError, ValueError, http.client.HTTPException) as unreachable:
            failed = f"could not be fetched ({type(unreachable).__name__})"
            raise PipelineError(f"options.name: {path} {failed}; {remedy}") from None
        return path


def describe(name: str) -> dict[str, Any]:
    """Return what D4RL declares of a dataset, as keys of an entry; the environment where Gymnasium
    has the same.

    Raises:
        PipelineError: D4RL has no such name.
    """
    row = _row_of(name)
    environment = _ENVIRONMENTS.get(name.split("-")[0])
    score = {"low": float(row["low"]), "high": float(row["high"]), "scale": 100.0}
    options = {"name": name, "remote": True}
    return {"environment": environment, "horizon": None, "options": options, "score": score}


def _row_of(name: str) -> dict[str, str]:
    with NAMES.open(encoding="utf-8", newline="") as file:
        known = {row["name"]: row for row in csv.DictReader(file)}
    if name not in known:
        near = [each for each in known if each.split("-")[0] == name.split("-")[0]]
        allowed = ", ".join(near or list(known)[:5])
        raise PipelineError(f"options.name: found {name!r}; allowed are D4RL's, as {allowed}")
    return known[name]


def check_parts(path: Path) -> None:
    """Refuse an HDF5 file whose rows lie in other files or were never written, which HDF5 reads as
    zeros. A broken file is left to its reader.

    Raises:
        PipelineError: names the file and the part.
    """
    with suppress(OSError, RuntimeError, KeyError), h5py.File(path, "r") as file:
        found = file.visititems_links(partial(_find_foreign, file))
        if found is not None:
            raise BadRows(f"{path}: {printable(found)}")


def _find_foreign(file: h5py.File, name: str, link: Any) -> str | None:
    """Say why this file alone does not give the rows of one link; None: it does."""
    if isinstance(link, h5py.ExternalLink):
        return f"{name}: found a link to another file; {_COPY}"
    if not isinstance(link, h5py.HardLink) or not isinstance(part := file[name], h5py.Dataset):
        return None
    layout = part.id.get_create_plist()
    if layout.get_layout() == h5py.h5d.VIRTUAL or layout.get_external_count():
        return f"{name}: found rows that lie in another file; {_COPY}"
    chunks = zip(part.shape or (), part.chunks or (), strict=False)
    needed = math.prod(-(-size // chunk) for size, chunk in chunks)
    there = part.id.get_num_chunks() if part.chunks else part.id.get_storage_size()
    *above, last = name.split("/")
    zeros_meant = last in _FLAGS or "infos" in above
    if part.size and there < needed and not zeros_meant:
        return f"{name}: found rows that were never written, and are zeros; write the file again"
    return None


class D4rlReader:
    """See `primorl.data.sources.Reader`; an episode is a unit, named by its number.

    An episode ends at ``terminals`` or ``timeouts`` (at both: it terminated); without ``timeouts``
    also when it has lasted for the declared horizon; the rows after the last end are an episode cut
    short. What came after a row comes from ``next_observations``; where that is not the next row of
    the episode, an end is missing. Without that array it is the next row. After the last one it is
    its own where the episode terminated, as nothing depends on it; else the last row is left out,
    because its outcome was not recorded.
    """

    def __init__(self, path: Path, spaces: Spaces, horizon: int | None):
        self.path, self.spaces, self.horizon = path, spaces, horizon

    def tables(self) -> Generator[pa.Table]:
        """See `Reader.tables`; memory holds the file's arrays."""
        check_parts(self.path)
        try:
            with h5py.File(self.path, "r") as file:
                named = {name: name for name in (*_NEEDED, *_OPTIONAL)}
                named |= {name: other for name, other in _GYMNASIUM.items() if name not in file}
                there = [name for name in named if name in _NEEDED or named[name] in file]
                if not all(isinstance(file.get(named[name]), h5py.Dataset) for name in there):
                    raise KeyError
                arrays = {name: np.asarray(file[named[name]][()]) for name in there}
        except KeyError:
            raise BadRows(
                f"{self.path}: found not all of {', '.join(_NEEDED)}; allowed are D4RL's flat "
                "arrays; convert d3rlpy's or others to a table, and read Minari's by "
                "source: minari"
            ) from None
        except (OSError, RuntimeError, TypeError, AttributeError, MemoryError) as broken:
            found = f"no HDF5 file, cut, corrupt, or of a filter not here ({type(broken).__name__})"
            raise BadRows(f"{self.path}: {found}; run `dvc repro collect` again") from None
        yield from episode_tables(self.spaces, self._episodes(self._check(arrays)))

    def _check(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Check kinds and sizes; return arrays of two dimensions for vectors and of one for
        numbers.
        """
        S, A = self.spaces.observation_size, self.spaces.action_size
        allowed: dict[str, tuple[int, ...]] = {"observations": (S,), "next_observations": (S,)}
        allowed["actions"] = () if self.spaces.discrete_actions else (A,)
        rows = len(np.atleast_1d(arrays["observations"]))
        for name, array in arrays.items():
            shape, whole = allowed.get(name, ()), allowed.get(name) == ()
            fits = array.dtype.kind in "biuf" and array.size == rows * math.prod(shape)
            if not fits or (whole and (array % 1 != 0).any()):
                found = f"found {array.dtype} {array.shape}; allowed is {(rows, *shape)}"
                raise BadRows(f"{self.path}: {name}: {found} of {'whole ' * whole}numbers")
            if name in ("terminals", "timeouts") and not np.isin(array, (0, 1)).all():
                raise BadRows(f"{self.path}: {name}: found another number than 0 and 1")
            arrays[name] = array.reshape(rows, *shape)
        return arrays

    def _episodes(self, arrays: dict[str, Array]) -> Iterator[Transitions]:
        seen, terminated = arrays["observations"], arrays["terminals"].astype(bool)
        ends = self._ends(terminated, arrays.get("timeouts"))
        lasts = np.array(ends) - 1
        after = np.roll(seen, -1, axis=0)
        after[lasts] = seen[lasts]
        # As given: a file that marks not every end has the next episode in the row after it.
        after = arrays.get("next_observations", after)
        if "next_observations" in arrays:
            marked = bool(np.any(arrays.get("timeouts", False)))  # all false, it marks nothing
            self._check_following(seen, after, lasts, marked=marked)
        cut = ~terminated[lasts] & ("next_observations" not in arrays)
        if alone := int((cut & (np.diff([0, *ends]) == 1)).sum()):
            found = f"left out {alone} episodes of one row that is cut, without a transition"
            say(f"ingest: {self.path}: {found}")
        for number, (start, end) in enumerate(itertools.pairwise([0, *ends])):
            over = terminated[end - 1]
            known = end - int(cut[number])
            if (steps := known - start) == 0:
                continue
            own, last = slice(start, known), np.arange(steps) == steps - 1
            done, earned = arrays["actions"][own], arrays["rewards"][own]
            ends_here = last & over, last & ~over
            name = f"{number:09d}"
            yield Transitions.of_episode(name, seen[own], done, earned, after[own], *ends_here)

    def _check_following(self, seen: Array, after: Array, lasts: Array, *, marked: bool) -> None:
        """Refuse next observations that are not the next row's, for an episode ends there; warn
        where the file marked its cuts.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            # As float32 rounds; NaN and infinity are refused later.
            given, following = after[:-1].astype(np.float32), seen[1:].astype(np.float32)
            far = np.abs(given - following) > 1e-6 + 1e-4 * np.abs(following)
        places = np.setdiff1d(np.flatnonzero(far.any(axis=1)), lasts)
        if len(places) == 0:
            return
        first = places[0]
        found = f"next_observations[{first}] differs from observations[{first + 1}]"
        if not marked:
            remedy = "write timeouts (true where an episode was cut)"
            raise BadRows(f"{self.path}: {found}: an episode ends in that row; {remedy}")
        where = f"in {len(places)} rows within episodes, as {found}"
        say(f"ingest: warning: {self.path}: {where}; does timeouts lack an episode's end?")

    def _ends(self, terminated: Array, timeouts: Array | None) -> list[int]:
        """Find the row after the last one of each episode."""
        rows = len(terminated)
        ends = np.flatnonzero(terminated if timeouts is None else terminated | (timeouts != 0)) + 1
        if timeouts is None and self.horizon is not None:
            bounds = zip(np.append(0, ends), np.append(ends, rows), strict=True)
            cuts = [np.arange(start + self.horizon, end, self.horizon) for start, end in bounds]
            ends = np.union1d(ends, np.concatenate(cuts))
        if len(ends) == 0:
            allowed = "terminals, timeouts or `horizon`"
            raise BadRows(f"{self.path}: found no end of an episode; allowed: {allowed}")
        found: list[int] = np.union1d(ends, rows).tolist()
        return found
