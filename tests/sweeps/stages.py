"""Stages that do next to nothing: ``python -m tests.sweeps.stages NAME`` in a trial's folder."""

import json
import os
import sys
import time
from pathlib import Path

import yaml

from primorl.base.files import home

RAN, HOLD = (
    Path("ran"),
    Path("hold"),
)  # which stages ran; while the second is there, seeds 1 and 13 wait
BAD_SEED = 13


def main() -> int:
    (name,) = sys.argv[1:]
    params = yaml.safe_load(Path("params.yaml").read_text())
    with (home() / RAN).open("a") as file:
        file.write(f"{name} {params['seed']} {os.getpid()}\n")
    if name == "evaluate":
        while (home() / HOLD).exists() and params["seed"] in (1, BAD_SEED):
            time.sleep(0.01)
        if params["seed"] == BAD_SEED:
            print("error: a stage says why", file=sys.stderr)
            return 1
        for file, content in {
            "metrics/summary.json": json.dumps(
                {"return_mean": -float(params["seed"]), "epsilon": 1.5}
            ),
            "plots/curves.csv": "epoch,return_mean\n1,-3.0\n2,-2.5\n",
            "models/policy/privacy.json": "{}",
        }.items():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
