"""Private outputs on a remote that somebody named: `dvc push` alone never sends them."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from primorl.project.dvc import run_dvc
from primorl.project.errors import PipelineError
from primorl.project.files import home, scratch_directory


def push_private(remote: str) -> list[str]:
    """Send every output that ``dvc.yaml`` keeps off remotes (``push: false``) to the DVC remote ``remote``.

    DVC has no word for "this once", so the project's pipeline is copied without that flag into a temporary folder
    that shares the project's cache, and pushed from there. ``dvc pull -r NAME PATH`` brings the files back.

    Raises:
        PipelineError: no such remote, nothing to send, or DVC failed.
    """
    root = home()
    listed = [line.split() for line in _dvc(root, "remote", "list").stdout.splitlines() if line.strip()]
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
        _dvc(copy, "init", "--no-scm", "--quiet")
        for file in ("config", "config.local"):
            if (root / ".dvc" / file).exists():
                shutil.copy(root / ".dvc" / file, copy / ".dvc" / file)
        _dvc(copy, "config", "--local", "core.no_scm", "true")
        _dvc(copy, "remote", "modify", "--local", remote, "url", known[remote])
        _dvc(copy, "config", "--local", "cache.dir", _dvc(root, "cache", "dir").stdout.strip())
        for file in ("dvc.lock", "params.yaml"):
            shutil.copy(root / file, copy / file)
        (copy / "dvc.yaml").write_text(yaml.safe_dump(pipeline), encoding="utf-8")
        _dvc(copy, "push", "--remote", remote, *private)
    return private


def _without_flag(pipeline: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    private = []
    for stage in pipeline["stages"].values():
        for output in stage.get("outs", []):
            for path, flags in output.items() if isinstance(output, dict) else ():
                if flags.pop("push", True) is False:
                    private.append(path)
    return pipeline, private


def _dvc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = run_dvc(folder, *words)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise PipelineError(f"dvc {words[0]}: {said[0].removeprefix('ERROR: ') if said else 'failed'}")
    return done
