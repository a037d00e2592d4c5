"""DVC's own command line, for what it alone knows."""

import os
import subprocess
import sys
from pathlib import Path

REMAKE = "`dvc repro --force --single-item ingest partition`"
"""What makes the partitions anew. Without these words DVC does nothing: to it, no input has changed."""


def run_dvc(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run ``dvc WORDS`` in ``folder`` and keep what it says; whether it failed is the caller's to see."""
    wide = os.environ | {"COLUMNS": "10000"}  # DVC breaks lines to fit a terminal, also where there is none
    command = [sys.executable, "-m", "dvc", *words]
    return subprocess.run(command, cwd=folder, env=wide, capture_output=True, text=True, check=False)
