"""DVC's own command line: what it says of the project, and private outputs sent to a remote that somebody named."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any, Self

from primorl.project.errors import PipelineError
from primorl.project.files import home, scratch_directory

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


def push_private(remote: str) -> list[str]:
    """Send every output that ``dvc.yaml`` keeps off remotes (``push: false``) to the DVC remote ``remote``.

    DVC cannot do so once only, so the project's pipeline is copied without that flag into a temporary folder
    that shares the project's cache, and pushed from there. ``dvc pull -r NAME PATH`` brings the files back.

    Raises:
        PipelineError: no such remote, nothing to send, or DVC failed.
    """
    import yaml

    root = home()
    listed = [line.split() for line in _checked(root, "remote", "list").stdout.splitlines() if line.strip()]
    known = {words[0]: words[1] for words in listed}  # DVC shows a relative path as an absolute one
    if remote not in known:
        raise PipelineError(
            f"--remote: found {remote!r}, allowed are the project's DVC remotes: {', '.join(known) or 'none yet'}; "
            "`dvc remote add NAME URL` makes one"
        )
    pipeline, private = _without_flag(yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8")))
    if not (root / "dvc.lock").exists():
        raise PipelineError("dvc.lock: not there; nothing was made yet: run `dvc repro`")
    with scratch_directory(root / ".dvc" / "tmp" / "push") as copy:
        _checked(copy, "init", "--no-scm", "--quiet")
        for file in ("config", "config.local"):
            if (root / ".dvc" / file).exists():
                shutil.copy(root / ".dvc" / file, copy / ".dvc" / file)
        _checked(copy, "config", "--local", "core.no_scm", "true")
        _checked(copy, "remote", "modify", "--local", remote, "url", known[remote])
        _checked(copy, "config", "--local", "cache.dir", _checked(root, "cache", "dir").stdout.strip())
        for file in ("dvc.lock", "params.yaml"):
            shutil.copy(root / file, copy / file)
        (copy / "dvc.yaml").write_text(yaml.safe_dump(pipeline), encoding="utf-8")
        _checked(copy, "push", "--remote", remote, *private)
    return private


def _without_flag(pipeline: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    private = []
    for stage in pipeline["stages"].values():
        for output in stage.get("outs", []):
            for path, flags in output.items() if isinstance(output, dict) else ():
                if flags.pop("push", True) is False:
                    private.append(path)
    return pipeline, private


def _checked(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = run_dvc(folder, *words)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise PipelineError(f"dvc {words[0]}: {said[0].removeprefix('ERROR: ') if said else 'failed'}")
    return done
