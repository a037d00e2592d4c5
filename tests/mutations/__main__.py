"""Plant each known way to break the guarantee, and see which test or audit notices: ``python -m tests.mutations``.

Every bug of `tests.mutations.planted_bugs` is planted alone in a copy of the project, where the test files it names
are run: at least one must fail. Files that fail without any bug, bugs whose place is gone from the source, and bugs
that keep a test file from being loaded are errors: they prove nothing.

Resumable: a row of benchmarks/results/mutations.json is kept while bug, source and tests are the ones it was made with.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, machine
from primorl.project.errors import PipelineError
from primorl.project.progress import progress_bar
from tests.mutations.planted_bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
FILE = RESULTS / "mutations.json"
CODE = ("primorl", "pipeline", "tests", "params.yaml", "dvc.yaml", "pyproject.toml")
REST = ("benchmarks", "docs", "constraints.txt", "README.md", "LICENSE")
MINUTES = 10


def main() -> int:
    """Run what is missing, keep and print the table; 1 if a bug went unnoticed or could not be judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", choices=[bug.name for bug in BUGS], help="these bugs alone"
    )
    arguments = parser.parse_args()
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in kept}
    code = digest()
    wanted = [bug for bug in BUGS if arguments.only is None or bug.name in arguments.only]
    missing = [bug for bug in wanted if rows.get(bug.name, {}).get("code") != key(bug, code)]
    errors = 0
    with tempfile.TemporaryDirectory(prefix="primorl-mutations-") as folder:
        copy = Path(folder)
        for name in CODE + REST:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, copy)
        sound: dict[str, bool] = {}
        with progress_bar(len(missing), "mutations", "bug") as bar:
            for bug in missing:
                bar.set_postfix_str(bug.name)
                try:
                    rows[bug.name] = row(bug, copy, sound) | {"code": key(bug, code)}
                except PipelineError as wrong:
                    errors += 1
                    rows.pop(bug.name, None)
                    bar.write(f"error: {wrong}", file=sys.stderr)
                kept = [rows[each.name] for each in BUGS if each.name in rows]
                RESULTS.mkdir(exist_ok=True)
                FILE.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
                bar.update()
    shown = [rows[bug.name] for bug in wanted if bug.name in rows]
    print(table(shown))
    return int(errors > 0 or any(row["ours"] == 0 for row in shown))


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


def row(bug: Bug, copy: Path, sound: dict[str, bool]) -> dict[str, Any]:
    """Plant ``bug`` in ``copy``, run its tests, and take it out again.

    Args:
        bug: to plant.
        copy: of the project.
        sound: test files already known to pass without a bug; grows.

    Raises:
        PipelineError: the verdict would mean nothing.
    """
    for tests in bug.tests:
        if tests not in sound:
            sound[tests] = failures(copy, tests) == []
        if not sound[tests]:
            raise PipelineError(f"{tests}: fails without any bug; repair it first")
    file = copy / bug.file
    original = file.read_text(encoding="utf-8")
    if original.count(bug.old) != 1:
        raise PipelineError(
            f"tests/mutations/planted_bugs.py: {bug.name}: found its place {original.count(bug.old)} times in "
            f"{bug.file}, allowed is once; follow the source"
        )
    file.write_text(original.replace(bug.old, bug.new), encoding="utf-8")
    try:
        caught = [first[0] for tests in bug.tests if (first := failures(copy, tests))]
    finally:
        file.write_text(original, encoding="utf-8")
    return {
        "what": f"{bug.family}: {bug.breaks}",
        "ours": len(caught),
        "peer": None,
        "ratio": None,
        "unit": f"of {len(bug.tests)} test files notice",
        "machine": machine(),
        "command": f"python -m tests.mutations --only {bug.name}",
        "name": bug.name,
        "file": bug.file,
        "caught_by": caught,
    }


def failures(copy: Path, tests: str) -> list[str]:
    """The first test of a file that fails in ``copy``, if one does.

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
    if done.returncode not in (0, 1):
        raise PipelineError(f"{tests}: could not be run (pytest's status {done.returncode}): {done.stdout[-2000:]}")
    lines = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [line.partition(" ")[2] for line in lines] or ([tests] if done.returncode else [])


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: each bug, where it was planted, and the first test of each file that failed."""
    lines = ["| planted bug | in | noticed by |", "|---|---|---|"]
    for one in rows:
        by = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in one["caught_by"]) or "**nothing**"
        lines.append(f"| {one['what']} | `{one['file']}` | {by} |")
    noticed = sum(one["ours"] > 0 for one in rows)
    return "\n".join([*lines, "", f"{noticed} of {len(rows)} planted bugs are noticed."])


if __name__ == "__main__":
    sys.exit(main())
