"""Whether the partitions are those of the data as they are now: a sweep trains on them as they lie there."""

import json
from pathlib import Path
from typing import Any

from primorl.project.dvc import run_dvc
from primorl.project.errors import PipelineError
from primorl.project.files import home

_OF_DATA = ("collect", "ingest", "partition")
_CODE = ("primorl/", "pipeline/")
_REMEDY = "run `dvc repro partition` first, or put them back; nothing was run"


def check_fresh() -> None:
    """Refuse partitions whose inputs changed after they were made: data, a withdrawal, a consent, or their settings.

    Other code is no reason: it is what the ledger's identities are for. A project that DVC does not keep has nothing to
    compare with.

    Raises:
        PipelineError: names what changed; or DVC cannot say.
    """
    if not (home() / ".dvc").is_dir():
        return
    done = run_dvc(home(), "status", "--json", *_OF_DATA)
    if done.returncode != 0:
        said = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise PipelineError(f"dvc status: {said}; a sweep needs to know whether data/partitions are up to date")
    if found := _changed(json.loads(done.stdout)):
        raise PipelineError(f"data/partitions: something changed after they were made: {', '.join(found)}; {_REMEDY}")


def _changed(status: dict[str, Any]) -> list[str]:
    """Paths, and keys of params.yaml, that DVC names."""
    found = set()
    for entries in status.values():
        for entry in entries:
            for kind, paths in entry.items() if isinstance(entry, dict) else ():
                for path, how in paths.items():
                    if isinstance(how, dict):
                        found |= {f"{path}: {key}" for key in how}
                    elif not path.startswith(_CODE) and (kind == "changed deps" or Path(path).parts[0] == "data"):
                        found.add(path)
    return sorted(found)
