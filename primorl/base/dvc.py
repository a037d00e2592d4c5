"""DVC's view of the project: changed stages and lost outputs.

DVC deletes a stage's outputs before it runs the stage, so a stage that fails leaves none; ``dvc
checkout`` brings back what ``dvc.lock`` lists.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Set
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from primorl.base import PipelineError
from primorl.base.files import (
    CONSENT,
    DATASETS,
    LOCK,
    PARAMS,
    WITHDRAWALS,
    home,
    workspace,
)

_MOST_NAMED = 3  # of missing outputs
_MALFORMED = (OSError, LookupError, TypeError, AttributeError, ValueError, RecursionError)
"""Of a lock that is not there, or of a form that DVC itself reports."""
MAKE_DATA = {"collect", "ingest", "partition"}
REMAKE = "`dvc repro --force --single-item ingest partition`"
"""What makes the partitions anew.

Without these words DVC does nothing: to it, no input has changed.
"""


_BUSY = (
    "a run of DVC is under way (.dvc/tmp/rwlock); ask again when it has ended; if there is none, "
    "delete that file"
)
_DAMAGED = (
    f"it is empty, damaged or of a merge: `git checkout HEAD -- {LOCK}` brings one back; or delete "
    "it: all stages run again, and what is paid for is restored"
)
_REMEDIES = {
    " is busy, ": _BUSY,
    "RWLock": _BUSY,
    f"{LOCK}' validation failed": _DAMAGED,
    f"{LOCK}' is invalid": _DAMAGED,
    "not a git repository": "run `git init` there, or `dvc config core.no_scm true`",
    "exited with -9": "the system ended it, mostly for want of memory; run it again, and what was "
    "paid for is resumed",
}
"""What to do, by a part of DVC's own words."""


def advise(said: str) -> str:
    """Say what to do about an error of DVC."""
    remedy = next((remedy for word, remedy in _REMEDIES.items() if word in said), "")
    return f"{said}; {remedy}" if remedy else said


def show_dvc(*words: str) -> None:
    """Run ``dvc WORDS`` in the working directory, and print what it prints as it comes.

    Stages run with the Python of this process, which need not be the first on PATH.

    Raises:
        PipelineError: it failed: the line of the stage that did, or DVC's own.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [sys.executable, "-m", "dvc", *words]
    errors: list[str] = []
    with subprocess.Popen(
        command,
        env=os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                # DVC's stands behind a bar that did not end
                if "ERROR: " in line or line.startswith("error: "):
                    errors.append(re.split("error: ", line, maxsplit=1, flags=re.I)[1].strip())
        except KeyboardInterrupt:  # a notebook interrupts its own process alone
            os.killpg(process.pid, signal.SIGINT)
            process.communicate()  # the stage ends in order, and DVC gives its locks back
            raise
    if process.returncode != 0:
        raise PipelineError(advise(errors[0]) if errors else f"`dvc {words[0]}` failed")


class Status:
    """The answer of ``dvc status`` in the working directory, asked in a process beside this one.

    DVC takes a second to start. A command that will need the answer asks early, and does its own
    work meanwhile. Where nobody reads the answer, DVC ends by itself and gives its locks back;
    nobody waits for it.
    """

    def __init__(self) -> None:
        self._asked: subprocess.Popen[str] | None = None
        if (home() / ".dvc").is_dir() and Path("dvc.yaml").exists():
            self._asked = subprocess.Popen(
                [sys.executable, "-m", "dvc", "status", "--json"],
                env=os.environ | {"COLUMNS": "10000"},  # or DVC breaks lines
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    def changed_stages(self) -> Set[str]:
        """Names of the stages whose own inputs or outputs changed since they ran; none outside a
        DVC project.

        Stages after them may run too: DVC knows that only when their inputs are made.

        Raises:
            PipelineError: DVC cannot say, so it could not run the pipeline either.
        """
        return frozenset(self._answer)

    def has_other_people(self) -> bool:
        """Whether lists of people, or the entry of the data, changed since the data were made.

        Raises:
            PipelineError: DVC cannot say.
        """
        edited = [
            (stage, Path(path))
            for stage in MAKE_DATA & self._answer.keys()
            for part in self._answer[stage]
            if isinstance(part, dict)  # else a word of its own
            for path, change in part.get("changed deps", {}).items()
            if change != "deleted"
        ]
        if any({path, path.parent} & {WITHDRAWALS, CONSENT} for _, path in edited):
            return True
        if any(path == PARAMS for _, path in edited):
            return False
        # `partition` depends on an entry's recipe as well
        entries = [path for stage, path in edited if stage != "partition"]
        return any(DATASETS in (path, path.parent) for path in entries)

    @cached_property
    def _answer(self) -> dict[str, Any]:
        if self._asked is None:
            return {}
        answer, errors = self._asked.communicate()
        try:
            return dict(json.loads(answer))
        except ValueError:
            lines = (line for line in errors.splitlines() if line.startswith("ERROR"))
            said = next(lines, " ".join(errors.split()) or "no answer")
            said = said.removeprefix("ERROR: ")
            raise PipelineError(f"`dvc status` fails: {advise(said)}") from None


def hint() -> str | None:
    """Say in one line how to get outputs back that ``dvc.lock`` lists and that are gone; None:
    there are none.
    """
    missing = [path for path in recorded_outputs() if not (workspace() / path).exists()]
    if len(missing) > _MOST_NAMED:
        missing[_MOST_NAMED:] = [f"{len(missing) - _MOST_NAMED} more"]
    return f"missing: {', '.join(missing)}; `dvc checkout` brings them back" if missing else None


def recorded_outputs(stage: str | None = None) -> dict[str, str | None]:
    """Map outputs in ``dvc.lock``, of one stage or of all, to their MD5 digests."""
    import yaml  # here, and not above: `primorl plan` starts DVC before it loads anything

    with suppress(*_MALFORMED, yaml.YAMLError):
        stages = yaml.safe_load((workspace() / LOCK).read_text(encoding="utf-8"))["stages"]
        own = [entry.get("outs", []) for name, entry in stages.items() if stage in (None, name)]
        return {str(each["path"]): each.get("md5") for outputs in own for each in outputs}
    return {}
