"""DVC's own command line, for what it alone knows."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Set
from pathlib import Path
from typing import Self

from primorl.project.errors import PipelineError
from primorl.project.files import home

_PATIENCE = 10.0  # seconds
REMAKE = "`dvc repro --force --single-item ingest partition`"
"""What makes the partitions anew. Without these words DVC does nothing: to it, no input has changed."""


def run_dvc(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run ``dvc WORDS`` in ``folder`` and keep what it says; whether it failed is the caller's to see."""
    with _started(folder, *words) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _started(folder: Path, *words: str) -> "subprocess.Popen[str]":
    wide = os.environ | {"COLUMNS": "10000"}  # DVC breaks lines to fit a terminal, also where there is none
    command = [sys.executable, "-m", "dvc", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=wide, stdout=pipe, stderr=pipe, text=True)


class Status:
    """What ``dvc status`` says of the project in the working directory, asked in a process beside this one.

    DVC takes a second to start. A command that will need the answer asks early, and does its own work meanwhile. Use it
    as a context manager, which ends the process where nobody waited for it.
    """

    def __init__(self) -> None:
        there = (home() / ".dvc").is_dir() and Path("dvc.yaml").exists()
        self._process = _started(Path(), "status", "--json") if there else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)  # DVC gives its locks back
            try:
                self._process.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()

    def changed_stages(self) -> Set[str]:
        """Names of the stages whose own inputs or outputs changed since they ran; none outside a DVC project.

        Call it once. Stages after them may run too: DVC knows that only when their inputs are made.

        Raises:
            PipelineError: DVC cannot say, so it could not run the pipeline either.
        """
        if self._process is None:
            return frozenset()
        out, err = self._process.communicate()
        try:
            return frozenset(json.loads(out))
        except ValueError:
            said = next((line for line in err.splitlines() if line.startswith("ERROR")), "no answer")
            raise PipelineError(f"`dvc status` fails: {said.removeprefix('ERROR: ')}") from None


def changed_stages() -> Set[str]:
    """Ask ``dvc status`` now, and wait: see `Status.changed_stages`."""
    with Status() as status:
        return status.changed_stages()
