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
from primorl.project.files import file_sha256, home, locked, read_json, replaced_file, write_json
from primorl.project.paths import DATASETS, MANIFEST, PARAMS, PARTITIONS, PIPELINE, SWEEPS
from primorl.sweeps.file import Trial, with_settings
from primorl.trajectories.storage.manifest import Manifest

_ENDED = Path("stages.json")
_DATA = Path("data")
_SPEED = ("compute", "ledger", "tracking")  # blocks of params.yaml on which no result depends
_LAST_OF_DATA = "partition"
_REPORT = "report"
_REMEDY = "run `dvc repro partition` first: all trials of a sweep share its data"


def sweep_folder(name: str) -> Path:
    """Return the folder of a sweep's trials."""
    return home() / SWEEPS / name


def trial_folder(sweep: str, trial: Trial) -> Path:
    """Return a trial's folder; it need not exist."""
    return sweep_folder(sweep) / trial.name


def lock_of(folder: Path) -> Path:
    """Return the lock file of a trial. It lies beside the folder, which may be deleted."""
    return folder.with_name(f"{folder.name}.lock")


def trial_params(trial: Trial) -> Params:
    """Read a trial's choices as its stages will read them.

    Raises:
        PipelineError: they do not fit; the message names the trial's keys.
    """
    return params.parse(_raw(trial), PARAMS)


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
    for file in _files_of_data():
        if not file.exists():
            raise PipelineError(f"{file}: not there; {_REMEDY}")


@dataclass(frozen=True)
class Stage:
    """Stage of ``dvc.yaml`` that runs as ``python -m MODULE WORDS``."""

    name: str
    module: str
    words: tuple[str, ...]


def stages() -> list[Stage]:
    """List the stages of ``dvc.yaml`` after ``partition``, without the report: a sweep has a table.

    Raises:
        PipelineError: one of them is no command ``python -m MODULE``.
    """
    found = []
    for name, content in _split_pipeline()[1].items():
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
    """A trial's folder, for the process that holds its lock."""

    def __init__(self, sweep: str, trial: Trial, threads: int, commit: str | None) -> None:
        self.path = trial_folder(sweep, trial)
        self._raw = with_settings(_raw(trial), {"compute.threads": threads})
        pipeline = PIPELINE.read_text(encoding="utf-8")
        self._made_by = _digests(self._raw) | {"code": _digest(f"{commit} {pipeline}")}
        self._seconds: dict[str, float] = {}

    def prepare(self) -> None:
        """Write params.yaml, dvc.yaml and datasets/, and link the data; call it in the project's folder.

        Outputs of an earlier attempt with the same code, settings and data stay. Anything else is deleted.
        """
        ended = read_json(self.path / _ENDED) if (self.path / _ENDED).exists() else {}
        if ended.get("made_by") == self._made_by:
            self._seconds = dict(ended["seconds"])
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True, exist_ok=True)
        with replaced_file(self.path / PARAMS) as fresh:
            fresh.write_text(yaml.safe_dump(self._raw, sort_keys=False, allow_unicode=True), encoding="utf-8")
        shutil.copy(PIPELINE, self.path / PIPELINE)
        shutil.copytree(DATASETS, self.path / DATASETS, dirs_exist_ok=True)
        for file in _files_of_data():
            (self.path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, self.path / file)
        unlink_data(self.path)
        (self.path / _DATA).symlink_to(_DATA.resolve(), target_is_directory=True)

    def check_same_data(self) -> None:
        """Check, in the trial's folder, that the partitions are still those that it began with.

        Raises:
            PipelineError: they were made anew: a model of the old people would be asked about the new ones.
        """
        if _digest_of_data() != self._made_by[str(PARTITIONS)]:
            raise PipelineError(f"{PARTITIONS}: made anew while the trial ran; run the sweep again")

    def has_ended(self, stage: Stage) -> bool:
        """Say whether an earlier attempt ran a stage to its end."""
        return stage.name in self._seconds

    def record_end(self, stage: Stage, seconds: float) -> None:
        """Record that a stage ran to its end."""
        self._seconds[stage.name] = round(seconds, 1)
        write_json(self.path / _ENDED, {"made_by": self._made_by, "seconds": self._seconds})

    @property
    def seconds(self) -> float:
        """Wall time of all stages that ran to their end."""
        return round(sum(self._seconds.values()), 1)


def unlink_data(folder: Path) -> None:
    """Remove the link to the data, so that a copy of a trial's folder holds no private rows."""
    data = folder / _DATA
    if data.is_symlink():
        data.unlink()
    elif data.is_dir():  # a copy that followed the link
        shutil.rmtree(data)


def unlink_left() -> None:
    """Remove the links to the data that killed trials of any sweep have left."""
    for data in (home() / SWEEPS).glob(f"*/*/{_DATA}"):
        with locked(lock_of(data.parent)) as free:
            if free:
                unlink_data(data.parent)


def changed_since(sweep: str, trial: Trial) -> list[str]:
    """List what changed since a trial ran: blocks of params.yaml, files of its dataset, the partitions."""
    file = trial_folder(sweep, trial) / _ENDED
    if not file.exists():
        return []
    then = read_json(file).get("made_by", {})
    try:
        now = _digests(_raw(trial))
    except PipelineError:  # params.yaml does not have its keys any more
        return [str(PARAMS)]
    return [name for name, digest in now.items() if name in then and then[name] != digest]


def _raw(trial: Trial) -> dict[str, Any]:
    raw = read_yaml(PARAMS, "a sweep changes keys of it")
    return with_settings(raw if isinstance(raw, dict) else {}, trial.settings)


def _digests(raw: dict[str, Any]) -> dict[str, str]:
    """Digest what a trial's results depend on: blocks of params.yaml, files of its dataset, the partitions."""
    found = {key: _digest(json.dumps(value, sort_keys=True)) for key, value in raw.items() if key not in _SPEED}
    for name in ("defaults", raw.get("dataset")):
        file = DATASETS / f"{name}.yaml"
        found[str(file)] = _digest(file.read_text(encoding="utf-8") if file.exists() else "")
    return found | {str(PARTITIONS): _digest_of_data()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_of_data() -> str:
    return file_sha256(MANIFEST) if MANIFEST.exists() else ""


def _split_pipeline() -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the stages of dvc.yaml: those up to ``partition``, and those after it."""
    content = read_yaml(PIPELINE, "it lists the stages")
    listed = content.get("stages") if isinstance(content, dict) else None
    listed = listed if isinstance(listed, dict) else {}
    if _LAST_OF_DATA not in listed:
        raise PipelineError(f"{PIPELINE}: stages.{_LAST_OF_DATA}: missing; a sweep runs the stages after it")
    names = list(listed)
    end = names.index(_LAST_OF_DATA) + 1
    return {name: listed[name] for name in names[:end]}, {name: listed[name] for name in names[end:]}


def _files_of_data() -> list[Path]:
    """List files outside ``data/`` that the stages of data make and the trial's stages read, such as their seconds."""
    of_data, later = _split_pipeline()
    made = {path for content in of_data.values() for path in _paths(content, "outs")}
    read = {path for content in later.values() for path in _paths(content, "deps")}
    return sorted(path for path in made & read if path.parts[0] != str(_DATA))


def _paths(content: dict[str, Any], kind: str) -> list[Path]:
    return [Path(entry if isinstance(entry, str) else next(iter(entry))) for entry in content.get(kind, [])]
