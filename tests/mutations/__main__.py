"""Plant each known way to break the guarantee, and see which test or audit notices: ``python -m tests.mutations``.

Every bug of `tests.mutations.planted_bugs` is planted alone in a copy of the project, where the test files it names
are run until one of their tests fails. Files that fail without any bug, bugs whose place is gone from the source, and
bugs that keep a test file from being loaded are errors: they prove nothing.

The test that noticed a bug last time is run first, so a second run is quicker. Resumable: a row of
benchmarks/results/mutations.json is kept while bug, source and tests are the ones it was made with.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import Any

from benchmarks.machine import RESULTS, machine
from primorl.project.errors import PipelineError
from primorl.project.progress import progress_bar
from primorl.project.template import FILES
from tests.mutations.planted_bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
FILE = RESULTS / "mutations.json"
DOCUMENT = ROOT / "docs" / "planted-bugs.md"
CODE = ("primorl", "pipeline", "tests", "datasets", "examples", "params.yaml", "dvc.yaml", "pyproject.toml")
REST = (".gitignore", ".dvc", "Makefile", "benchmarks", "docs", "constraints.txt", "README.md", "LICENSE")
MINUTES = 10


def main() -> int:
    """Run what is missing, keep and print the table; 1 if a bug went unnoticed or could not be judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=[bug.name for bug in BUGS], help="some bugs")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="bugs judged side by side (default: 2)")
    arguments = parser.parse_args()
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in kept}
    code = digest()
    wanted = [bug for bug in BUGS if arguments.only is None or bug.name in arguments.only]
    missing = [bug for bug in wanted if rows.get(bug.name, {}).get("code") != key(bug, code)]
    judge, errors, lock = Judge(), 0, Lock()
    with tempfile.TemporaryDirectory(prefix="primorl-mutations-") as folder:
        copies: Queue[Path] = Queue()
        for number in range(arguments.jobs):
            copies.put(copy_project(Path(folder) / str(number)))
        with progress_bar(len(missing), "mutations", "bug") as bar, ThreadPoolExecutor(arguments.jobs) as pool:

            def run(bug: Bug) -> None:
                nonlocal errors
                copy = copies.get()
                try:
                    found: dict[str, Any] | PipelineError = judge.row(bug, copy, rows.get(bug.name, {}))
                except PipelineError as wrong:
                    found = wrong
                finally:
                    copies.put(copy)
                with lock:
                    if isinstance(found, PipelineError):
                        errors += 1
                        rows.pop(bug.name, None)
                        bar.write(f"error: {found}", file=sys.stderr)
                    else:
                        rows[bug.name] = found | {"code": key(bug, code)}
                    kept = [rows[each.name] for each in BUGS if each.name in rows]
                    FILE.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
                    bar.update()

            list(pool.map(run, missing))
    shown = [rows[bug.name] for bug in wanted if bug.name in rows]
    DOCUMENT.write_text(document([rows[bug.name] for bug in BUGS if bug.name in rows]), encoding="utf-8")
    print(table(shown))
    return int(errors > 0 or any(row["ours"] == 0 for row in shown))


def copy_project(folder: Path) -> Path:
    """A copy of everything that the tests need."""
    folder.mkdir()
    for name in CODE + REST:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder)
    for file in (file for pattern in FILES for file in ROOT.glob(pattern)):  # `primorl init` copies them
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return folder


def digest() -> str:
    """SHA-256 of all that a verdict may depend on."""
    content = hashlib.sha256()
    for name in CODE:
        top = ROOT / name
        files = sorted(top.rglob("*")) if top.is_dir() else [top]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                content.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return content.hexdigest()


def key(bug: Bug, code: str) -> str:
    """What a row was made with."""
    return hashlib.sha256(f"{code}{bug!r}".encode()).hexdigest()[:16]


class Judge:
    """Plants bugs and runs tests. Remembers which test files pass without a bug."""

    def __init__(self) -> None:
        self._sound: dict[str, bool] = {}
        self._locks: dict[str, Lock] = {}
        self._lock = Lock()

    def row(self, bug: Bug, copy: Path, before: dict[str, Any]) -> dict[str, Any]:
        """Plant ``bug`` in ``copy``, run its tests, and take it out again.

        Args:
            bug: to plant.
            copy: of the project.
            before: the bug's row of an earlier run, if there is one.

        Raises:
            PipelineError: the verdict would mean nothing.
        """
        for tests in bug.tests:
            if not self._is_sound(copy, tests):
                raise PipelineError(f"{tests}: fails without any bug; repair it first")
        file = copy / bug.file
        original = file.read_text(encoding="utf-8")
        if original.count(bug.old) != 1:
            raise PipelineError(
                f"tests/mutations/planted_bugs: {bug.name}: found its place {original.count(bug.old)} times in "
                f"{bug.file}, allowed is once; follow the source"
            )
        file.write_text(original.replace(bug.old, bug.new), encoding="utf-8")
        try:
            caught = noticed_by(copy, bug, before)
        finally:
            file.write_text(original, encoding="utf-8")
        return {
            "what": f"{bug.family}: {bug.breaks}",
            "ours": len(caught),
            "peer": None,
            "ratio": None,
            "unit": "tests that noticed it, of those run until one did",
            "machine": machine(),
            "command": f"python -m tests.mutations --only {bug.name}",
            "name": bug.name,
            "file": bug.file,
            "caught_by": caught,
        }

    def _is_sound(self, copy: Path, tests: str) -> bool:
        with self._lock:
            lock = self._locks.setdefault(tests, Lock())
        with lock:
            if tests not in self._sound:
                self._sound[tests] = failures(copy, tests) == []
            return self._sound[tests]


def noticed_by(copy: Path, bug: Bug, before: dict[str, Any]) -> list[str]:
    """The first test that fails; none if the bug goes unnoticed."""
    for test in before.get("caught_by", []):
        file = str(test).partition("::")[0]
        if file in bug.tests and (copy / file).exists() and "::" in test:
            found = failures(copy, str(test), unknown_ok=True)
            if found:
                return found[:1]
    for tests in bug.tests:
        found = failures(copy, tests)
        if found:
            return found[:1]
    return []


def failures(copy: Path, tests: str, *, unknown_ok: bool = False) -> list[str]:
    """The first test of a file that fails in ``copy``, if one does.

    Args:
        copy: of the project.
        tests: a test file, or one test of it.
        unknown_ok: whether a test that is gone counts as passed.

    Raises:
        PipelineError: the tests could not be run at all, or are not those of the copy.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # a bug of the same size within a second would be taken for the old bytes
        "PYTHONPATH": str(copy),
    }
    where = "import primorl; print(primorl.__file__)"
    seen = subprocess.run([sys.executable, "-c", where], cwd=copy, env=environment, capture_output=True, text=True)
    if seen.returncode == 0 and not Path(seen.stdout.strip()).resolve().is_relative_to(copy.resolve()):
        raise PipelineError(f"{seen.stdout.strip()}: another copy of the project is in the way of the one under test")
    command = [sys.executable, "-m", "pytest", tests, "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        raise PipelineError(f"{tests}: not done after {MINUTES} minutes") from None
    if done.returncode == 4 and unknown_ok:
        return []
    if done.returncode not in (0, 1):
        raise PipelineError(f"{tests}: could not be run (pytest's status {done.returncode}): {done.stdout[-2000:]}")
    lines = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [line.partition(" ")[2] for line in lines] or ([tests] if done.returncode else [])


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: each bug, where it was planted, and the test that noticed it."""
    lines = ["| planted bug | in | noticed by |", "|---|---|---|"]
    for one in rows:
        by = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in one["caught_by"]) or "**nothing**"
        lines.append(f"| {one['what']} | `{one['file']}` | {by} |")
    noticed = sum(one["ours"] > 0 for one in rows)
    return "\n".join([*lines, "", f"{noticed} of {len(rows)} planted bugs are noticed."])


def document(rows: list[dict[str, Any]]) -> str:
    """The page docs/planted-bugs.md."""
    return f"""# Planted bugs

`python -m tests.mutations` plants each bug of `tests/mutations/planted_bugs` alone in a copy of the project and runs
the tests that should fail. The table names the first test that did. A bug that no test notices fails the command.
This page is written by the command; a test checks that it shows every bug.

{table(rows)}
"""


if __name__ == "__main__":
    sys.exit(main())
