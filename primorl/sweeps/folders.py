"""A trial's folder: a small project of its own that shares the partitions of the project it lies in."""

import hashlib
import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from primorl.config import params
from primorl.config.params import Params
from primorl.config.reading import read_yaml
from primorl.project.errors import PipelineError
from primorl.project.files import home, locked, read_json, replaced_file, workspace, write_json
from primorl.project.paths import DATASETS, MANIFEST, PARAMS, PARTITIONS, PIPELINE, SWEEPS
from primorl.sweeps.file import with_settings
from primorl.sweeps.trials import Trial
from primorl.trajectories.storage.manifest import Manifest

OUTPUT = Path("output.txt")
_ENDED = Path("stages.json")
_LAST_OF_DATA = "partition"
_REPORT = "report"
_REMEDY = "run `dvc repro partition` first: all trials of a sweep share its data"


def sweep_folder(name: str) -> Path:
    """Where a sweep keeps its trials."""
    return home() / SWEEPS / name


def trial_folder(sweep: str, trial: Trial) -> Path:
    """A trial's folder; it need not exist."""
    return sweep_folder(sweep) / trial.name


def lock_of(sweep: str, trial: Trial) -> Path:
    """The file that whoever runs a trial holds the lock of. It lies beside the folder, which may be deleted."""
    return _lock_beside(trial_folder(sweep, trial))


def trial_params(trial: Trial, threads: int | None = None) -> Params:
    """A trial's choices, checked, as its stages will read them.

    Args:
        trial: the trial.
        threads: of each of its processes; None: as params.yaml has it.

    Raises:
        PipelineError: they do not fit; the message names the trial's keys.
    """
    return params.parse(_raw(trial, threads), PARAMS)


def check_data(checked: Params) -> None:
    """Check that the partitions, which no trial makes, are of the trial's dataset.

    Raises:
        PipelineError: they are not there, or of another dataset, or a file that belongs to them is missing.
    """
    if not MANIFEST.exists():
        raise PipelineError(f"{MANIFEST}: not there; {_REMEDY}")
    found = Manifest.load(MANIFEST).info.dataset
    if found != checked.dataset:
        raise PipelineError(
            f"{PARTITIONS}: found dataset {found!r}, and the sweep is of {checked.dataset!r}; set dataset: "
            f"{checked.dataset} in {PARAMS} and {_REMEDY}"
        )
    for source in _inputs():
        if source.parts[0] != "data" and not source.exists():
            raise PipelineError(f"{source}: not there; {_REMEDY}")


@dataclass(frozen=True)
class Stage:
    """One of the stages that a trial runs.

    Attributes:
        name: in ``dvc.yaml``.
        module: that ``python -m`` runs.
        words: of the command line after it.
    """

    name: str
    module: str
    words: tuple[str, ...]


def stages_of_data() -> list[str]:
    """Names of the stages of ``dvc.yaml`` up to ``partition``."""
    return list(_after_partition()[0])


def stages() -> list[Stage]:
    """The stages of ``dvc.yaml`` after ``partition``, in its order, without the report: a sweep has a table.

    Raises:
        PipelineError: one of them is no command ``python -m MODULE``.
    """
    found = []
    for name, content in _after_partition()[1].items():
        if name == _REPORT:
            continue
        words = shlex.split(str(content.get("cmd")))
        if words[:2] != ["python", "-m"] or len(words) < 3:
            raise PipelineError(
                f"{PIPELINE}: stages.{name}.cmd: found {content.get('cmd')!r}; a sweep runs `python -m MODULE`"
            )
        found.append(Stage(name, words[2], tuple(words[3:])))
    return found


class TrialFolder:
    """A trial's folder, for whoever holds its lock.

    Attributes:
        path: of the folder.
    """

    def __init__(self, sweep: str, trial: Trial, threads: int, commit: str | None) -> None:
        self.path = trial_folder(sweep, trial)
        self._raw = _raw(trial, threads)
        self._made_by = {"settings": _digest(self._raw), "data": _digest_of_data(), "commit": commit}
        self._seconds: dict[str, float] = {}

    def lay(self) -> None:
        """Write params.yaml, dvc.yaml and datasets/, and link the data; run it in the project's folder.

        What an earlier attempt made by the same code and settings stays. Anything else is deleted.
        """
        ended = read_json(self.path / _ENDED) if (self.path / _ENDED).exists() else {}
        if {key: ended.get(key) for key in self._made_by} == self._made_by:
            self._seconds = dict(ended["seconds"])
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True, exist_ok=True)
        with replaced_file(self.path / PARAMS) as fresh:
            fresh.write_text(yaml.safe_dump(self._raw, sort_keys=False, allow_unicode=True), encoding="utf-8")
        shutil.copy(PIPELINE, self.path / PIPELINE)
        shutil.copytree(DATASETS, self.path / DATASETS, dirs_exist_ok=True)
        for source in _inputs():
            _bring(source, self.path)

    def check_same_data(self) -> None:
        """Check, in the trial's folder, that the partitions are still those that it began with.

        Raises:
            PipelineError: they were made anew meanwhile: a model of the old people would be asked about the new ones.
        """
        if _digest_of_data() != self._made_by["data"]:
            raise PipelineError(f"{PARTITIONS}: made anew while the trial ran; run the sweep again")

    def has_ended(self, stage: Stage) -> bool:
        """Whether an earlier attempt ran a stage to its end."""
        return stage.name in self._seconds

    def ended(self, stage: Stage, seconds: float) -> None:
        """Remember that a stage ran to its end."""
        self._seconds[stage.name] = round(seconds, 1)
        write_json(self.path / _ENDED, {**self._made_by, "seconds": self._seconds})

    def unlink(self) -> None:
        """Take the links to the data away, so that who copies the folder cannot copy private rows."""
        _unlink(self.path)

    @property
    def seconds(self) -> float:
        """Wall time of all stages that ran to their end."""
        return round(sum(self._seconds.values()), 1)


def unlink_left() -> None:
    """Take away the links that killed trials of any sweep have left: who copies their folders must not copy rows."""
    for folder in {link.parent.parent for link in (home() / SWEEPS).glob("*/*/data/*")}:
        with locked(_lock_beside(folder)) as free:
            if free:
                _unlink(folder)


def _lock_beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _unlink(folder: Path) -> None:
    for link in (folder / "data").glob("*"):
        if link.is_dir() and not link.is_symlink():  # copied with what the link led to
            shutil.rmtree(link)
        else:
            link.unlink()


def changed_since(sweep: str, trial: Trial) -> list[str]:
    """What is otherwise now than when a trial was run: keys of params.yaml, files of its dataset, the partitions.

    Keys that concern speed alone are left out, and so is what a folder of an older version does not tell.
    """
    folder = trial_folder(sweep, trial)
    if not (folder / PARAMS).exists():
        return []
    try:
        raw = _raw(trial, None)
    except PipelineError:  # params.yaml does not have its keys any more
        return [str(PARAMS)]
    then, now = _flat(_without_speed(read_yaml(folder / PARAMS, ""))), _flat(_without_speed(raw))
    keys = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
    files = [str(file) for file in _of_dataset(raw) if _text(folder / file) != _text(file)]
    ended = read_json(folder / _ENDED) if (folder / _ENDED).exists() else {}
    other = MANIFEST.exists() and ended.get("data", _digest_of_data()) != _digest_of_data()
    return [*keys, *files, *([str(PARTITIONS)] if other else [])]


def _raw(trial: Trial, threads: int | None) -> dict[str, Any]:
    raw = read_yaml(PARAMS, "a sweep changes keys of it")
    settings = dict(trial.settings) | ({} if threads is None else {"compute.threads": threads})
    return with_settings(raw if isinstance(raw, dict) else {}, settings)


def _digest(raw: dict[str, Any]) -> str:
    """Of everything that a trial's files say, but its data and what concerns speed alone."""
    said = [json.dumps(_without_speed(raw), sort_keys=True), PIPELINE.read_text(encoding="utf-8")]
    return hashlib.sha256("\0".join([*said, *map(_text, _of_dataset(raw))]).encode()).hexdigest()


def _digest_of_data() -> str:
    return hashlib.sha256(MANIFEST.read_bytes()).hexdigest()


def _of_dataset(raw: dict[str, Any]) -> list[Path]:
    """The files that a trial reads in ``datasets/``."""
    return [DATASETS / f"{name}.yaml" for name in ("defaults", raw.get("dataset"))]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _without_speed(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in ("compute", "ledger", "tracking")}


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix.removesuffix("."): content}
    return {key: value for name, inner in content.items() for key, value in _flat(inner, f"{prefix}{name}.").items()}


def _after_partition() -> tuple[dict[str, Any], dict[str, Any]]:
    """The stages up to ``partition``, and those after it, with what dvc.yaml says of them."""
    content = read_yaml(PIPELINE, "it lists the stages")
    listed = content.get("stages") if isinstance(content, dict) else None
    listed = listed if isinstance(listed, dict) else {}
    names = list(listed)
    if _LAST_OF_DATA not in names:
        raise PipelineError(f"{PIPELINE}: stages.{_LAST_OF_DATA}: missing; a sweep runs the stages after it")
    first = names[: names.index(_LAST_OF_DATA) + 1]
    later = names[len(first) :]
    return {name: listed[name] for name in first}, {name: listed[name] for name in later}


def _inputs() -> list[Path]:
    """What the stages read and none of them makes, code left out: data, and seconds of the stages of data."""
    of_data, later = _after_partition()
    made = {path for content in of_data.values() for path in _paths(content, "outs")}
    read = {path for content in later.values() for path in _paths(content, "deps")}
    data = {Path(*path.parts[:2]) for path in read if path.parts[0] == "data"}
    return sorted(data | {path for path in read & made if path.parts[0] != "data"})


def _paths(content: dict[str, Any], kind: str) -> list[Path]:
    return [Path(entry if isinstance(entry, str) else next(iter(entry))) for entry in content.get(kind, [])]


def _bring(source: Path, folder: Path) -> None:
    """Link data, which are never copied, and copy anything else; what is optional may be missing."""
    here, there = workspace() / source, folder / source
    there.parent.mkdir(parents=True, exist_ok=True)
    if source.parts[0] != "data":
        shutil.copy(here, there)
    elif here.exists():
        there.unlink(missing_ok=True)  # of another machine, perhaps
        there.symlink_to(here.resolve(), target_is_directory=True)
