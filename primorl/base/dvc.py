"""DVC's view of the project: changed stages, lost outputs, and a push of private ones.

DVC deletes a stage's outputs before it runs the stage; otherwise it could not bring an earlier run's outputs back from
its cache when ``dataset:`` is swapped back. So a stage that fails puts back what ``dvc.lock`` says it made last
(`restore_outputs`). Where DVC itself fails before it starts the stage (an unknown dataset, a missing block of
params.yaml), no code of ours runs: the next command or stage finds the outputs missing and says how to get them back
(`hint`).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Set
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import yaml

from primorl.base.errors import PipelineError
from primorl.base.files import home, replaced_directory, replaced_file, scratch_directory, workspace
from primorl.base.paths import LOCK, SECONDS

_PATIENCE = 10.0  # seconds
_LISTED = 3  # outputs that a hint names
_SHOWN = 60  # characters of a param's two values
REMAKE = "`dvc repro --force --single-item ingest partition`"
"""What makes the partitions anew. Without these words DVC does nothing: to it, no input has changed."""


def run_dvc(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run ``dvc WORDS`` in ``folder`` and keep its output; the caller checks whether it failed."""
    with _started(folder, *words) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


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
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                if line.lower().startswith("error: "):
                    errors.append(line[len("error: ") :].strip())
        except KeyboardInterrupt:  # a notebook interrupts its own process alone
            os.killpg(process.pid, signal.SIGINT)
            process.communicate()  # the stage ends in order, and DVC gives its locks back
            raise
    if process.returncode != 0:
        raise PipelineError(errors[0] if errors else f"`dvc {words[0]}` failed")


def _started(folder: Path, *words: str) -> "subprocess.Popen[str]":
    wide = os.environ | {
        "COLUMNS": "10000"
    }  # DVC breaks lines to fit a terminal, also where there is none
    command = [sys.executable, "-m", "dvc", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=wide, stdout=pipe, stderr=pipe, text=True)


class Status:
    """The answer of ``dvc status`` in the working directory, asked in a process beside this one.

    DVC takes a second to start. A command that will need the answer asks early, and does its own work meanwhile. Use it
    as a context manager, which ends the process where its answer was not read.
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
            said = next(
                (line for line in err.splitlines() if line.startswith("ERROR")), "no answer"
            )
            if " is busy, " in said:
                said = "a run of DVC is under way (.dvc/tmp/rwlock); ask again when it has ended"
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
    root = home()
    listed = [
        line.split()
        for line in _checked(root, "remote", "list").stdout.splitlines()
        if line.strip()
    ]
    known = {words[0]: words[1] for words in listed}  # DVC shows a relative path as an absolute one
    if remote not in known:
        raise PipelineError(
            f"--remote: found {remote!r}, allowed are the project's DVC remotes: {', '.join(known) or 'none yet'}; "
            "`dvc remote add NAME URL` makes one"
        )
    pipeline, private = _without_flag(
        yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))
    )
    if not (root / "dvc.lock").exists():
        raise PipelineError("dvc.lock: not there; nothing was made yet: run `dvc repro`")
    with scratch_directory(root / ".dvc" / "tmp" / "push") as copy:
        _checked(copy, "init", "--no-scm", "--quiet")
        for file in ("config", "config.local"):
            if (root / ".dvc" / file).exists():
                shutil.copy(root / ".dvc" / file, copy / ".dvc" / file)
        _checked(copy, "config", "--local", "core.no_scm", "true")
        _checked(copy, "remote", "modify", "--local", remote, "url", known[remote])
        _checked(
            copy, "config", "--local", "cache.dir", _checked(root, "cache", "dir").stdout.strip()
        )
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
        raise PipelineError(
            f"dvc {words[0]}: {said[0].removeprefix('ERROR: ') if said else 'failed'}"
        )
    return done


def restore_outputs(stage: str) -> list[str]:
    """Put back every missing output of ``stage`` that is in DVC's cache; return their paths.

    Outputs that are there are left alone: a stage that was not started by DVC has lost nothing.
    """
    missing = _missing(stage)
    cache = _cache() if missing else Path()
    return [
        path
        for path, digest in missing.items()
        if _put_back(workspace() / path, _cached_files(digest, cache))
    ]


def missing_outputs() -> list[str]:
    """Paths of all outputs that ``dvc.lock`` lists and that are not in the workspace."""
    return list(_missing())


def changed_params() -> list[str]:
    """List params of the last run that have another value now, as ``FILE: KEY: BEFORE → NOW``, by ``dvc.lock``.

    Long values are left out.
    """
    found: dict[str, None] = {}  # a param of several stages is listed once
    # No lock, or a file of another form, which DVC reports.
    with suppress(
        OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError, yaml.YAMLError
    ):
        for stage in _parsed((workspace() / LOCK).read_text(encoding="utf-8"))["stages"].values():
            for file, params in stage.get("params", {}).items():
                content = _parsed(Path(file).read_text(encoding="utf-8"))
                for key, before in params.items():
                    now: Any = content
                    for part in key.split("."):
                        now = now.get(part) if isinstance(now, dict) else None
                    found |= dict.fromkeys(
                        f"{file}: {line}" for line in _differences(key, before, now)
                    )
    return list(found)


def remade_inputs() -> list[str]:
    """List outputs but wall times that were made again since a stage that reads them ran, by ``dvc.lock``."""
    with suppress(
        OSError, KeyError, TypeError, AttributeError, yaml.YAMLError
    ):  # no lock, or DVC reports it
        stages = _parsed((workspace() / LOCK).read_text(encoding="utf-8"))["stages"].values()
        made = {out["path"]: out.get("md5") for stage in stages for out in stage.get("outs", ())}
        read = {(dep["path"], dep.get("md5")) for stage in stages for dep in stage.get("deps", ())}
        remade = {path for path, digest in read if made.get(path, digest) != digest}
        return sorted(path for path in remade if not Path(path).is_relative_to(SECONDS))
    return []


def _differences(key: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from _differences(f"{key}.{name}", before.get(name), now.get(name))
    elif _comparable(before) != _comparable(now):
        said = " → ".join(
            json.dumps(each, ensure_ascii=False, default=str) for each in (before, now)
        )
        yield f"{key}: {said}" if len(said) <= _SHOWN else key


def _comparable(value: Any) -> Any:
    """Convert text such as ``1e-05``, which DVC writes for a number and YAML 1.1 reads as a string."""
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    with suppress(TypeError, ValueError):
        return (
            value if isinstance(value, bool) else str(float(value))
        )  # true is not 1, and nan is nan
    return value


def hint(stage: str | None = None) -> str | None:
    """One line that says how to get missing outputs back; None if DVC's cache holds none of them.

    Args:
        stage: a stage whose own outputs are expected to be missing, because DVC is running it now.
    """
    expected = _missing(stage) if stage is not None else {}
    missing = {path: digest for path, digest in _missing().items() if path not in expected}
    cache = _cache() if missing else Path()
    lost = [path for path, digest in missing.items() if _cached_files(digest, cache) is not None]
    if not lost:
        return None
    more = f" and {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
    return f"missing: {', '.join(lost[:_LISTED])}{more}; `dvc checkout` brings back what dvc.lock lists"


def _missing(stage: str | None = None) -> dict[str, str]:
    """Map missing outputs of one stage, or of all, to their digests in ``dvc.lock``."""
    return {
        path: digest
        for path, digest in _recorded(stage).items()
        if not (workspace() / path).exists()
    }


def _recorded(stage: str | None = None) -> dict[str, str]:
    """Map outputs of one stage, or of all, to their digests in ``dvc.lock``."""
    try:
        stages = _parsed((workspace() / LOCK).read_text(encoding="utf-8"))["stages"]
        chosen = stages.values() if stage is None else [stages[stage]]
        outputs: list[dict[str, Any]] = [
            output for entry in chosen for output in entry.get("outs", [])
        ]
        return {str(output["path"]): str(output.get("md5", "")) for output in outputs}
    except (OSError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return {}  # nothing has run to its end yet


@lru_cache(maxsize=8)  # dvc.lock, and the files of params, which many stages name
def _parsed(text: str) -> Any:
    # The loader in C takes a tenth of the time, where PyYAML was built with it.
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text).get_single_data()


def _put_back(target: Path, files: dict[str, Path] | None) -> bool:
    """Copy an output from DVC's cache; False unless all of it is there, as half of an output is worse than none."""
    if files is None or not all(file.is_file() for file in files.values()):
        return False
    if "" in files:
        with replaced_file(target) as fresh:
            shutil.copyfile(files[""], fresh)
        return True
    with replaced_directory(target) as fresh:
        for name, file in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, fresh / name)
    return True


def _cached_files(digest: str, cache: Path) -> dict[str, Path] | None:
    """Map the files of an output to those in DVC's cache, ``""`` where it is one file; None: it is not cached."""
    objects = cache / "files" / "md5"
    found = objects / digest[:2] / digest[2:]
    if not found.is_file():
        return None
    if not digest.endswith(".dir"):
        return {"": found}
    listed = json.loads(found.read_text(encoding="utf-8"))
    return {entry["relpath"]: objects / entry["md5"][:2] / entry["md5"][2:] for entry in listed}


def _cache() -> Path:
    return Path(run_dvc(home(), "cache", "dir").stdout.strip() or home() / ".dvc" / "cache")
