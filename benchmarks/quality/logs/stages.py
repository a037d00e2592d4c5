"""Run stages of the pipeline one after the other in this process, in the folder where it was
started.

python -m benchmarks.quality.logs.stages collect ingest partition

The wall time of each is kept in stages.json. The first stage that fails is the last.
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path

from pipeline.runner import run_stage

SECONDS = Path("stages.json")


def main() -> int:
    """Run the stages that are named; return the exit status of the last."""
    names, sys.argv = sys.argv[1:], sys.argv[:1]  # a stage reads arguments of its own
    seconds = {}
    for name in names:
        started = time.perf_counter()
        stage = import_module(f"pipeline.{name}")
        status = run_stage(name, name, stage.body, getattr(stage, "idle", None))
        seconds[name] = round(time.perf_counter() - started, 1)
        SECONDS.write_text(json.dumps(seconds), encoding="utf-8")
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
