"""Whether the partitions are those of the data as they are now: a sweep trains on them as they lie there."""

import json
from typing import Any

from primorl.config.params import Params
from primorl.project.dvc import run_dvc
from primorl.project.errors import PipelineError
from primorl.project.files import home
from primorl.project.paths import MANIFEST, PARAMS, PARTITIONS
from primorl.sweeps.folders import stages_of_data
from primorl.trajectories.storage.manifest import Manifest

_CODE = ("primorl/", "pipeline/")
_GONE = ("deleted", "not in cache")


def check_fresh(params: Params) -> None:
    """Refuse partitions whose inputs changed after they were made: data, a withdrawal, a consent, or their settings.

    Other code is no reason, as nobody's data changed. A project that DVC does not keep has nothing to compare with.

    Args:
        params: as params.yaml has them.

    Raises:
        PipelineError: names what changed; or DVC cannot say.
    """
    if not (home() / ".dvc").is_dir():
        return
    found = Manifest.load(MANIFEST).info.dataset
    if params.dataset != found:  # DVC compares with the inputs of the dataset that params.yaml names
        raise PipelineError(
            f"{PARAMS}: dataset: found {params.dataset!r}, and {PARTITIONS} is of {found!r}; set dataset: {found}, so "
            "that changes of its data are noticed"
        )
    done = run_dvc(home(), "status", "--json", *stages_of_data())
    if done.returncode != 0:
        said = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise PipelineError(f"dvc status: {said}; a sweep needs to know whether {PARTITIONS} is up to date")
    if changed := _changed(json.loads(done.stdout)):
        raise PipelineError(
            f"{PARTITIONS}: made before these changed: {', '.join(changed)}; run `dvc repro partition` first"
        )


def _changed(status: dict[str, Any]) -> list[str]:
    """Paths and keys of ``dvc status --json``, each once, with what DVC says of them."""
    entries = [entry for stage in status.values() for entry in stage if isinstance(entry, dict)]
    made = {path for entry in entries for path in entry.get("changed outs", {})}
    found: dict[str, str] = {}
    for entry in entries:
        for kind, paths in entry.items():
            for path, how in paths.items():
                if isinstance(how, dict):  # keys of a file of settings
                    found |= {f"{path}: {key}": said for key, said in how.items()}
                elif path.startswith(_CODE) or (path in made and how in _GONE):
                    continue  # what lies between the data and the partitions may be deleted to save room
                elif kind == "changed deps" or path.startswith("data/"):
                    found[path] = how
    return [f"{name} ({how})" for name, how in sorted(found.items())]
