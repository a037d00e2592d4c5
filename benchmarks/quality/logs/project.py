"""One log through the whole pipeline in a project of its own, and what truly became of it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.machine import ROOT
from benchmarks.quality.logs.log import Levels, Log, Observed
from benchmarks.quality.logs.stages import SECONDS
from primorl.base.files import BEHAVIOUR as CLONE
from primorl.base.files import (
    DATASETS,
    MODEL,
    PARAMS,
    PARTITIONS,
    PIPELINE,
    POLICY,
    PRIVATE_EVALUATION,
    SUMMARY,
)
from primorl.model.numerics import SeedGenerators
from primorl.model.pessimism import Policies
from primorl.policy.behaviour import BehaviourPolicy, SampledClone, make_released
from primorl.policy.config import BEHAVIOUR_FILE
from primorl.policy.exported import DeterministicPolicy

DATA = ("collect", "ingest", "partition")
LEARNING = (
    "plan",
    "train_model",
    "clone_behaviour",
    "optimize_policy",
    "evaluate_private",
    "evaluate",
)
MOST_SECONDS = 4 * 3600
_EPISODES, _REFERENCE_EPISODES, _SEED = 20_000, 100_000, 77
_LOG, _OUTPUT = Path("log"), Path("output.txt")
_KEPT = ("format", "variant", "epsilon", "delta", "unit", "units", "model_value")


class StageFailedError(Exception):
    """A stage of the data failed: its status and its line."""


def run(
    log: Log,
    *,
    people: int,
    seed: int,
    changes: Mapping[str, object],
    folder: Path,
) -> dict[str, Any]:
    """Make the log, run the stages on it and measure the policies in the hidden simulator.

    Args:
        log: one of `LOGS`.
        people: in it.
        seed: of the log and of params.yaml.
        changes: values by dotted keys of params.yaml, which win over these.
        folder: of the project, made anew. Data are shared with other runs in its parent.

    Returns:
        A row of plain values. ``status`` is not 0 where a stage failed, and ``error`` is then what
        it said.
    """
    shutil.rmtree(folder, ignore_errors=True)
    key = {"people": people, "seed": seed}
    settings: dict[str, object] = {"partition.public_fraction": 0.0} | dict(changes)
    try:
        data = data_project(log, **key, changes=settings, folder=folder.parent / "data")
    except StageFailedError as failed:
        status, error = failed.args
    else:
        shutil.copytree(data, folder)
        write_settings(log, seed, settings, folder)
        status, error = stages(folder, LEARNING)
    summary = _json(folder / SUMMARY)
    return {
        "log": log.name,
        **key,
        "epsilon": summary.get("epsilon"),
        "status": status,
        "error": error,
        "truth": truth(log),
        "can_learn": _json(folder / MODEL / "config.json").get("can_learn"),
        "policy": measured(log, folder / POLICY),
        "cloned": measured(log, folder / CLONE),
        "drawn": measured(log, folder / CLONE, drawn=True),
        "persistence": _json(folder / CLONE / BEHAVIOUR_FILE).get("persistence"),
        "products": _json(folder / CLONE / BEHAVIOUR_FILE).get("products"),
        "answers": _answers(folder),
        "summary": {name: value for name, value in summary.items() if name in _KEPT},
        "seconds": _json(folder / SECONDS),
    }


def _answers(folder: Path) -> dict[str, Any]:
    """Return the numbers of all answers and the verdict, as far as a recommendation needs them."""
    found = _json(folder / PRIVATE_EVALUATION)
    words = ("covers", "bias")
    estimates = [
        {key: value for key, value in each.items() if key not in words}
        for each in found.get("estimates", ())
    ]
    return {"estimates": estimates} | {key: found.get(key) for key in ("verdict", "return_bounds")}


def _json(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def data_project(
    log: Log,
    *,
    people: int,
    seed: int,
    changes: Mapping[str, object],
    folder: Path,
) -> Path:
    """Return a project in ``folder`` whose log is collected, ingested and partitioned; it is made
    once.

    Arguments are those of `run`.

    Raises:
        StageFailedError: with its status and what it said.
    """
    split = {key: value for key, value in changes.items() if key.startswith("partition.")}
    tag = hashlib.sha256(json.dumps(split, sort_keys=True).encode()).hexdigest()[:6]
    project = folder / f"{log.name}-{people}-{seed}-{tag}"
    if (project / PARTITIONS / "manifest.json").exists():
        return project
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir(parents=True)
    log.write(project / _LOG, people, seed)
    write_settings(log, seed, changes, project)
    status, error = stages(project, DATA)
    if status != 0:
        raise StageFailedError(status, error)
    for made in (_LOG, "data/raw", "data/trajectories"):  # later stages read the partitions alone
        shutil.rmtree(project / made)
    return project


def write_settings(log: Log, seed: int, changes: Mapping[str, object], folder: Path) -> None:
    """Write a project's settings: this checkout's, the log's entry and the changes."""
    (folder / DATASETS).mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / PIPELINE, folder / PIPELINE)
    settings = yaml.safe_load((ROOT / PARAMS).read_text(encoding="utf-8"))
    for key, value in {**changes, "dataset": log.name, "seed": seed}.items():
        *path, last = key.split(".")
        block = settings
        for part in path:
            block = block.setdefault(part, {})
        block[last] = value
    (folder / PARAMS).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    entry = yaml.safe_dump(log.entry(str(_LOG)), sort_keys=False)
    (folder / DATASETS / f"{log.name}.yaml").write_text(entry, encoding="utf-8")


def stages(folder: Path, names: tuple[str, ...]) -> tuple[int, str | None]:
    """Run stages in one process; return its status and, if it failed, its line with the error."""
    environment = {name: value for name, value in os.environ.items() if name != "DVC_ROOT"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.quality.logs.stages", *names]
    with (folder / _OUTPUT).open("a", encoding="utf-8") as output:
        try:
            status = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=output,
                timeout=MOST_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return 124, f"not ended after {MOST_SECONDS} s"
    if status == 0:
        return 0, None
    lines = [line for line in (folder / _OUTPUT).read_text(encoding="utf-8").splitlines() if line]
    errors = [line for line in lines if line.startswith("error:")]
    return status, (errors or lines or ["no output"])[-1]


@cache
def truth(log: Log) -> dict[str, float]:
    """True values of the behaviour, of the best policy known or the behaviour, of random actions or
    none, whichever is better, and of the usual actions whoever comes.
    """
    worst = float(log.random_returns(_REFERENCE_EPISODES, _SEED).mean())
    if log.idle is not None:
        worst = max(worst, float(log.returns(log.nothing, _REFERENCE_EPISODES, _SEED).mean()))
    behaviour = float(log.behaviour_returns(_REFERENCE_EPISODES, _SEED).mean())
    best = float(log.returns(log.best_known, _REFERENCE_EPISODES, _SEED).mean())
    usual = float(log.usual_returns(_EPISODES, _SEED).mean())
    values = {"behaviour": behaviour, "best": max(best, behaviour), "worst": worst}
    return values | {"usual": usual}


def measured(log: Log, folder: Path, *, drawn: bool = False) -> dict[str, float] | None:
    """True value of a saved policy, or of the clone as it is released or with actions ``drawn`` as
    people's are, and its standard error; None: there is none.
    """
    if not (folder / "policy.safetensors").exists():
        return None
    policy: Policies = DeterministicPolicy.load(folder)
    if (folder / BEHAVIOUR_FILE).exists():
        cpu = torch.device("cpu")
        clone, generators = BehaviourPolicy.load(folder, cpu), SeedGenerators.of([_SEED], cpu)
        policy = SampledClone(clone, generators) if drawn else make_released(clone, generators)

    def act(observed: Observed) -> np.ndarray[Any, Any]:
        action = policy.act(torch.from_numpy(observed)[None])[0].numpy()
        return action.argmax(1) if isinstance(log.action, Levels) else action

    returns = log.returns(act, _EPISODES, _SEED + 1)
    error = float(returns.std(ddof=1) / len(returns) ** 0.5)
    return {"mean": float(returns.mean()), "error": error}
