"""One table or frontier of the paper: its sweep, its rows, the pages and figures. Resumable: what is done stays done.

python -m benchmarks.quality.paper NAME [words for primorl sweep]

NAME is a file of benchmarks/quality/paper/sweeps. The project must hold the sweep's dataset, split as the file says:
`params.yaml` has `dataset`, `partition.public_fraction`, and `dvc repro partition` has run.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.quality.paper import sheets


def main() -> None:
    """Run the sweep, gather its rows, write the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=sheets.names())
    arguments, words = parser.parse_known_args()
    file = sheets.SWEEPS / f"{arguments.name}.yaml"
    # A sweep in which a run failed ends with status 1: its other rows count all the same.
    sweep = [
        str(Path(sys.executable).with_name("primorl")),
        "sweep",
        str(file.relative_to(Path.cwd())),
        *words,
    ]
    status = subprocess.run(sweep).returncode
    for step in (["rows", "--from", "."], ["report"]):
        subprocess.run(
            [sys.executable, "-m", f"benchmarks.quality.paper.{step[0]}", *step[1:]], check=True
        )
    sys.exit(status)


if __name__ == "__main__":
    main()
