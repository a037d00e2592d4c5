"""DVC's own command line, for what it alone knows."""

import json
import os
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

from primorl.project.errors import PipelineError
from primorl.project.files import home

REMAKE = "`dvc repro --force --single-item ingest partition`"
"""What makes the partitions anew. Without these words DVC does nothing: to it, no input has changed."""


def run_dvc(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run ``dvc WORDS`` in ``folder`` and keep what it says; whether it failed is the caller's to see."""
    wide = os.environ | {"COLUMNS": "10000"}  # DVC breaks lines to fit a terminal, also where there is none
    command = [sys.executable, "-m", "dvc", *words]
    return subprocess.run(command, cwd=folder, env=wide, capture_output=True, text=True, check=False)


def changed_stages() -> Set[str]:
    """Names of the stages whose own inputs or outputs changed since they ran; none outside a DVC project.

    Stages after them may run too: DVC knows that only when their inputs are made.

    Raises:
        PipelineError: DVC cannot say, so it could not run the pipeline either.
    """
    if not (home() / ".dvc").is_dir() or not Path("dvc.yaml").exists():
        return frozenset()
    found = run_dvc(Path(), "status", "--json")
    try:
        return frozenset(json.loads(found.stdout))
    except ValueError:
        said = next((line for line in found.stderr.splitlines() if line.startswith("ERROR")), "no answer")
        raise PipelineError(f"`dvc status` fails: {said.removeprefix('ERROR: ')}") from None
