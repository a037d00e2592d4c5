"""One table or frontier of the paper: its runs, its rows and the page.

A run with a row is not made again, one that failed only with ``--again``.

python -m benchmarks.quality.paper NAME --work /tmp/paper

NAME is a file of benchmarks/quality/paper/settings. The runs share a project in the folder, so one
ledger, and what was paid for is restored.
"""

import argparse
import copy
import json
import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine import ROOT
from benchmarks.quality.logs.project import DATA, LEARNING, stages
from benchmarks.quality.paper import grids, report, rows
from primorl.base.files import DATASETS, PARAMS, PIPELINE
from primorl.privacy.accounting.epsilon import (
    Training,
    compute_spent,
    gaussian_epsilon,
    gaussian_mean,
)


def main() -> None:
    """Run what is missing, one run after the other, then write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=grids.names())
    parser.add_argument("--work", type=Path, required=True, help="folder of the project")
    parser.add_argument("--again", action="store_true", help="make failed runs again")
    arguments = parser.parse_args()
    name, folder = arguments.name, arguments.work / arguments.name
    base = yaml.safe_load((ROOT / PARAMS).read_text(encoding="utf-8"))
    base["partition"] |= grids.content(name).get("partition", {})
    (folder / PIPELINE).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / PIPELINE, folder / PIPELINE)
    shutil.copytree(ROOT / DATASETS, folder / DATASETS, dirs_exist_ok=True)
    done = {
        rows.canonical(json.loads(row["settings"]))
        for row in rows.read()
        if row["sweep"] == name and (row["status"] == "finished" or not arguments.again)
    }
    for case, settings in grids.trials(name):
        if rows.canonical(settings) in done:
            continue
        print(f"{name}: {case or ''} {json.dumps(settings)}", flush=True)
        content = yaml.safe_dump(changed(base, settings), sort_keys=False)
        (folder / PARAMS).write_text(content, encoding="utf-8")
        if not (folder / "data/partitions").exists():
            _, error = stages(folder, DATA)
            if error is not None:
                raise SystemExit(error)
        started = time.perf_counter()
        _, error = stages(folder, LEARNING)
        seconds = time.perf_counter() - started
        rows.add([rows.row_of(folder, name, case, settings, seconds=seconds, error=error)])
    report.main()


def as_costs(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Say by ``privacy.target_epsilon`` and ``shares`` what a grid says by z, or of a job alone."""
    own = dict(settings)
    z = own.pop("privacy.noise_multiplier", None)
    if z is not None:
        event = Training(own["privacy.sampling_probability"], z, own["privacy.rounds"]).event
        own["privacy.target_epsilon"] = compute_spent(event, _DELTA).epsilon_pld
    clone = own.pop("behaviour.target_epsilon", None)
    if clone is not None:
        alone = {"model": own["privacy.target_epsilon"], "clone": clone}
        parts = {job: gaussian_mean(each, _DELTA) ** 2 for job, each in alone.items()}
        whole = math.fsum(parts.values())
        own["privacy.target_epsilon"] = gaussian_epsilon(math.sqrt(whole), _DELTA)
        own["privacy.shares"] = {job: part / whole for job, part in parts.items()}
    return own


_DELTA = 1e-5
_ALL = 1_000  # rows of a unit: more than an episode of these tasks has


def changed(base: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the content of params.yaml with settings by dotted key in place."""
    content = copy.deepcopy(base)
    for key, value in as_costs(settings).items():
        *path, last = key.split(".")
        block = content
        for part in path:
            block[part] = block.get(part) or {}
            block = block[part]
        if key == "dynamics.max_transitions_per_unit":
            value = value or _ALL  # null in these grids
        block[last] = value
    return content


if __name__ == "__main__":
    main()
