"""``source: d4rl``: an HDF5 file in D4RL's layout, by path or by D4RL's name."""

import http.client
import os
import runpy
import shutil
import sys
import urllib.request
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse

from primorl.config.datasets import D4rlDataset
from primorl.project.errors import PipelineError
from primorl.project.files import home, replaced_file
from primorl.trajectories.sources.d4rl.files import D4rlReader
from primorl.trajectories.sources.source import Reader
from primorl.trajectories.sources.spaces import declared, needed

_FILE = "data.hdf5"
_SECONDS = 10.0
_CHUNK = 2**20


def source(name: str, dataset: D4rlDataset) -> "D4rl":
    """The source of one dataset.

    Raises:
        PipelineError: if the dataset names no environment.
    """
    environment = needed(name, dataset.environment, ": a file in D4RL's layout does not say its spaces")
    return D4rl(name, dataset, environment)


@dataclass(frozen=True)
class D4rl:
    """See `primorl.trajectories.sources.source.Source`."""

    name: str
    dataset: D4rlDataset
    environment: str

    def collect(self, target: Path) -> None:
        """Copy the file from this machine; fetch it first if it is not there, where the entry allows it."""
        options = self.dataset.options
        if options.name is not None:
            entry = reference(options.name)
            self._compare_score(entry)
            path = _datasets_root() / Path(urlparse(entry.url).path).name
            if not path.is_file():
                if not options.remote:
                    raise PipelineError(
                        f"options.name: {options.name!r} is not in {path.parent} ({path.name}); set options.remote to "
                        "true to fetch it, copy it there, or set D4RL_DATASET_DIR"
                    )
                _fetch(options.name, entry.url, path)
        else:
            path = home() / Path(str(options.file)).expanduser()
            if not path.is_file():
                raise PipelineError(f"options.file: {path} is not there; allowed is an HDF5 file in D4RL's layout")
        shutil.copyfile(path, target / _FILE)

    def open(self, raw: Path) -> Reader:
        """Read it; without ``timeouts`` in the file the declared horizon cuts its episodes."""
        spaces, limit = declared(self.environment)
        return D4rlReader(raw / _FILE, spaces, self.dataset.horizon or limit)

    def _compare_score(self, entry: "Reference") -> None:
        score = self.dataset.score
        if score is not None and entry.scores is not None and (score.low, score.high) != entry.scores:
            low, high = entry.scores
            print(
                f"warning: datasets/{self.name}.yaml: score: D4RL's reference scores are "
                f"{{low: {low}, high: {high}, scale: 100}}; with other ones the score is not D4RL's",
                file=sys.stderr,
            )


@dataclass(frozen=True)
class Reference:
    """What D4RL says of one of its datasets.

    Attributes:
        url: where the file is.
        scores: the returns of a random policy and of an expert; None: not known.
    """

    url: str
    scores: tuple[float, float] | None


def reference(name: str) -> Reference:
    """D4RL's entry for ``name``, from the optional package's ``infos.py``.

    That file alone is executed: ``import d4rl`` itself fails on a machine without MuJoCo 2.1.

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
        urls, low, high = (dict(infos[table]) for table in ("DATASET_URLS", "REF_MIN_SCORE", "REF_MAX_SCORE"))
    except Exception as broken:
        raise PipelineError(
            f"{path}: D4RL's tables cannot be read ({type(broken).__name__}); install d4rl again"
        ) from None
    if name not in urls:
        near = sorted(known for known in urls if known.partition("-")[0] == name.partition("-")[0])
        raise PipelineError(
            f"options.name: found {name!r}; allowed are D4RL's names, such as {', '.join(near or sorted(urls)[:5])}"
        )
    return Reference(urls[name], (float(low[name]), float(high[name])) if name in low and name in high else None)


def _datasets_root() -> Path:
    return Path(os.environ.get("D4RL_DATASET_DIR", Path.home() / ".d4rl" / "datasets"))


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
