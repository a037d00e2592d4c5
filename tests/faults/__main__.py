"""Plant each fault and run the test that must notice it: ``python -m tests.faults [NAME ...]``.

Prints one line for each fault. Exit status 1: a test passed in spite of its fault, or could not be
run.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.faults.edits import module_file, planted
from tests.faults.table import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 10
AT_ONCE = 2
OUTCOMES = {0: "NOT NOTICED", 1: "noticed"}  # by pytest's exit status


def main() -> int:
    """Judge the faults that are named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help=f"of {', '.join(fault.name for fault in FAULTS)}"
    )
    names = parser.parse_args().names
    unknown = set(names) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    wanted = [fault for fault in FAULTS if not names or fault.name in names]
    copies: Queue[Path] = Queue()
    with (
        tempfile.TemporaryDirectory(prefix="primorl-faults-") as folder,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        for number in range(AT_ONCE):
            copies.put(copied_project(Path(folder) / str(number)))

        def judged(fault: Fault) -> bool:
            copy = copies.get()
            try:
                outcome = verdict(fault, copy)
            finally:
                copies.put(copy)
            print(f"{outcome}: {fault.name}: {fault.test}", flush=True)
            return outcome == OUTCOMES[1]

        missed = [
            fault.name
            for fault, noticed in zip(wanted, pool.map(judged, wanted), strict=True)
            if not noticed
        ]
    print(
        f"{len(wanted) - len(missed)} of {len(wanted)} faults are noticed"
        + (f"; not: {', '.join(missed)}" if missed else "")
    )
    return int(bool(missed))


def copied_project(folder: Path) -> Path:
    """Copy all files that git knows or does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(
        listed, cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0"):
        if (ROOT / name).is_file():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
    return folder


def verdict(fault: Fault, copy: Path) -> str:
    """Plant a fault in a copy of the project, run its test, and take it out again."""
    file = module_file(copy, fault.module)
    original = file.read_text(encoding="utf-8")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(copy),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        fault.test,
        "-x",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
    ]
    try:
        file.write_text(planted(original, fault.function, fault.edit), encoding="utf-8")
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=60 * MINUTES
        )
    except LookupError as gone:
        return f"ITS PLACE IS GONE ({gone})"
    except subprocess.TimeoutExpired:
        return f"NOT DONE AFTER {MINUTES} MINUTES"
    finally:
        file.write_text(original, encoding="utf-8")
    return OUTCOMES.get(done.returncode) or f"COULD NOT BE RUN ({done.stdout[-500:]})"


if __name__ == "__main__":
    sys.exit(main())
