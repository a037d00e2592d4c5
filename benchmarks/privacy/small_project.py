"""A small project in a folder of its own, and stages run in it as processes that can be killed."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.projects import project_settings, write_settings

ROOT = Path(__file__).resolve().parents[2]


def make(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Collect, ingest and partition a small Pendulum dataset in ``folder``; returns its settings."""
    content = project_settings()
    small = {"episodes": 120, "num_envs": 30, "learning_starts": 24000, "hidden": [16], "gradient_steps": 1}
    content["chosen"]["options"] |= small
    content["partition"]["public_fraction"] = 0.2
    for block, values in changes.items():
        content[block] |= values
    write_settings(content, folder)
    for stage in ("collect", "ingest", "partition"):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
        subprocess.run([sys.executable, "-m", f"pipeline.{stage}"], cwd=folder, env=environment, check=True)
    return content


def in_process(body: Callable[[], int], log: Path) -> int:
    """Start ``body`` in a forked process, its output in ``log``; returns the process's number.

    The parent has imported everything, so a process starts in milliseconds: what is measured, and killed, is the work.
    """
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        status = body()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
