"""Plant each fault and run the test that must notice it: ``python -m tests.faults [NAME ...]``.

Prints one line for each fault. Exit status 1: a test passed in spite of its fault, or could not be
run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.table import FAULTS, Fault
from tests.projects import copy_known

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
    if unknown := set(names) - {fault.name for fault in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    wanted = [fault for fault in FAULTS if not names or fault.name in names]

    def judged(fault: Fault) -> bool:
        with tempfile.TemporaryDirectory(prefix="primorl-faults-") as folder:
            outcome = verdict(fault, copy_known(Path(folder)))
        print(f"{outcome}: {fault.name}: {fault.test}", flush=True)
        return outcome == OUTCOMES[1]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        noticed = sum(pool.map(judged, wanted))
    print(f"{noticed} of {len(wanted)} faults are noticed")
    return int(noticed < len(wanted))


def verdict(fault: Fault, copy: Path) -> str:
    """Plant a fault in a copy of the project, and run its test."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", fault.test, *options]
    try:
        fault.file(copy).write_text(fault.plant(copy), encoding="utf-8")
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=60 * MINUTES
        )
    except LookupError as gone:
        return f"ITS PLACE IS GONE ({gone})"
    except subprocess.TimeoutExpired:
        return f"NOT DONE AFTER {MINUTES} MINUTES"
    return OUTCOMES.get(done.returncode) or f"COULD NOT BE RUN ({done.stdout[-500:]})"


if __name__ == "__main__":
    sys.exit(main())
