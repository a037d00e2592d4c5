"""One table or frontier of the paper: its runs, its rows, the pages and figures. A run with a row is not run again.

python -m benchmarks.quality.paper NAME

NAME is a file of benchmarks/quality/paper/sweeps. The project must have the dataset and the public split that it
names in params.yaml, which is changed for each run and put back at the end.
"""

import argparse
import copy
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.quality.paper import rows, sheets
from primorl.base.paths import PARAMS


def main() -> None:
    """Run what is missing, one run after the other, then write the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=sheets.names())
    name = parser.parse_args().name
    written = PARAMS.read_text(encoding="utf-8")
    base = yaml.safe_load(written)
    for key, value in sheets.content(name).get("partition", {}).items():
        if base["partition"][key] != value:
            sys.exit(f"params.yaml: partition.{key}: {name} is for {value}; set it")
    done = {
        rows.canonical(json.loads(row["settings"]))
        for row in rows.read()
        if row["sweep"] == name and row["status"] == "finished"
    }
    try:
        for case, settings in sheets.trials(name):
            if rows.canonical(settings) not in done:
                rows.add([_run(base, name, case, settings)])
    finally:
        PARAMS.write_text(written, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "benchmarks.quality.paper.report"], check=True)


def _run(base: dict[str, Any], name: str, case: str | None, settings: dict[str, Any]) -> rows.Row:
    """Run the pipeline with settings by dotted key; return the row of the run."""
    print(f"{name}: {case or ''} {json.dumps(settings)}", flush=True)
    content = changed(base, settings)
    PARAMS.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    started = time.perf_counter()
    dvc = Path(sys.executable).with_name("dvc")
    ended = subprocess.run([dvc, "repro", "evaluate"], stderr=subprocess.PIPE, text=True)
    print(ended.stderr, file=sys.stderr)
    error = None
    if ended.returncode != 0:
        said = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        error = said[-1] if said else f"exit status {ended.returncode}"
    return rows.row_of(name, case, settings, seconds=time.perf_counter() - started, error=error)


def changed(base: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the content of params.yaml with settings by dotted key in place."""
    content = copy.deepcopy(base)
    for key, value in settings.items():
        *path, last = key.split(".")
        block = content
        for part in path:
            block = block[part]
        if last not in block:
            raise KeyError(f"{key} is no key of params.yaml")
        block[last] = value
    return content


if __name__ == "__main__":
    main()
