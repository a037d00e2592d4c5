"""What every stage shares: arguments, parameters, its log, its wall time, its errors."""

import argparse
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import primorl
from primorl.base import PipelineError, say
from primorl.base.dvc import hint
from primorl.base.files import (
    CHECKPOINTS,
    CONSENT,
    DATASETS,
    PARAMS,
    PIPELINE,
    STATE,
    WITHDRAWALS,
    check_writable,
    home,
    refuse_readable,
    stage_log,
    sweep_leftovers,
    workspace,
    write_json,
)
from primorl.base.processes import place_among_processes
from primorl.base.reporting import StageLog, exit_status
from primorl.base.template import check_version
from primorl.config import params
from primorl.config.params import Params
from primorl.config.reading import read_yaml
from primorl.data.sources.log_paths import describe_edits

Body = Callable[[Params, StageLog], None]
Idle = Callable[[Params], bool]
"""Writes the outputs of a stage that has nothing to do, and tells whether it did.

The body of such a stage imports what is slow to load, which would take longer than the idle stage
itself.
"""

# less free space than this would not hold a stage's log, checkpoints and small outputs
_BYTES_NEEDED = 32 << 20


def run_stage(name: str, description: str | None, body: Body, idle: Idle | None = None) -> int:
    """Run one DVC stage from the command line; return its exit status.

    Checks that the project is of the installed version, deletes what killed processes left, reads
    ``params.yaml``, checks that the stage's outputs can be written, calls ``body(params, log)`` in
    the working directory and writes ``metrics/stages/<name>.json``.
    """
    parser = argparse.ArgumentParser(prog=f"python -m pipeline.{name}", description=description)
    parser.add_argument(
        "--debug", action="store_true", help="show tracebacks (inside the trust boundary only)"
    )
    arguments = parser.parse_args()
    # a scheduler's stop ends a stage as Ctrl-C does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = exit_status(name, lambda: _run(name, body, idle), debug=arguments.debug)
    if status != 0 and (advice := hint()):
        say(advice)
    return status


def _run(name: str, body: Body, idle: Idle | None) -> None:
    _, processes = place_among_processes()
    if name != "train_model" and processes != 1:
        # Each process would pay, or release the same sum with noise of its own.
        raise PipelineError(
            f"{name}: found WORLD_SIZE={processes}, it uses one process; start it without "
            "torchrun, or unset what a scheduler set"
        )
    check_version(primorl.__version__)
    (home() / STATE).mkdir(mode=0o700, exist_ok=True)
    refuse_readable()
    for root in {workspace(), home()}:
        sweep_leftovers(root)
    listed = _read_listed(name)
    before = _read_followed(listed, params.load(PARAMS).dataset)
    checked = params.load(PARAMS)  # after `before`: an edit in between shows at the end
    check_writable([*_outputs(listed), home() / CHECKPOINTS / name], _BYTES_NEEDED)
    if name != "collect" and (said := describe_edits(checked.dataset, checked.chosen)) is not None:
        say(f"{name}: warning: {said}")
    started, log = time.perf_counter(), StageLog()
    if idle is None or not idle(checked):
        body(checked, log)
    now = _read_followed(listed, checked.dataset)
    # DVC records what they are when the stage has ended, and would never run it for an edit.
    if edited := [key for key in before | now if before.get(key) != now.get(key)]:
        raise PipelineError(f"{edited[0]}: edited while {name} ran; run `dvc repro` again")
    seconds = round(time.perf_counter() - started, 3)
    write_json(stage_log(name), {"seconds": seconds, "metrics": log.metrics})


def _read_listed(stage: str) -> dict[str, Any]:
    """What ``dvc.yaml`` says of a stage; nothing outside a DVC project."""
    try:
        stages: dict[str, dict[str, Any]] = yaml.safe_load(PIPELINE.read_text("utf-8"))["stages"]
    except (FileNotFoundError, KeyError):
        return {}
    return stages.get(stage, {})


def _read_followed(listed: dict[str, Any], dataset: str) -> dict[str, Any]:
    """Read what a stage follows and a person may edit: its settings, and lists of people."""
    read = cache(lambda file: read_yaml(Path(file), "run `dvc repro`") or {})
    found: dict[str, Any] = {}
    for each in listed.get("deps", ()):
        path = Path(each.replace("${dataset}", dataset))
        if path in (WITHDRAWALS, CONSENT) or path.parent == DATASETS:
            files = [path, *path.rglob("*")]
            found |= {str(file): file.read_bytes() for file in files if file.is_file()}
    for each in listed.get("params", ()):
        keys_of = each if isinstance(each, dict) else {str(PARAMS): [each]}
        for named, keys in keys_of.items():
            file = named.replace("${dataset}", dataset)
            for key in keys or read(file):
                value = read(file)
                for part in key.split("."):
                    value = value.get(part) if isinstance(value, dict) else None
                found[f"{file}: {key}"] = value
    return found


def _outputs(listed: dict[str, Any]) -> list[Path]:
    """The outputs that ``dvc.yaml`` lists for a stage."""
    outputs = [*listed.get("outs", []), *listed.get("metrics", []), *listed.get("plots", [])]
    return [
        Path(path)
        for output in outputs
        for path in ([output] if isinstance(output, str) else output)
    ]
