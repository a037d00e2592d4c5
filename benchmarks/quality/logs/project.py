"""One log through the whole pipeline in a project of its own, and what truly became of it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import yaml
from numpy.typing import NDArray

from benchmarks.quality.logs.log import CONSENTED, Act, Levels, Log, Observed
from benchmarks.quality.logs.stages import SECONDS
from primorl.base import paths
from primorl.base.paths import (
    DATASETS,
    MODEL,
    MODELS,
    PARAMS,
    PARTITIONS,
    PIPELINE,
    POLICY,
    SUMMARY,
)
from primorl.data.storage.parquet import PartReader
from primorl.model.ensemble import SeedGenerators
from primorl.policy.behaviour import BehaviourPolicy, released
from primorl.policy.config import BEHAVIOUR_FILE as BEHAVIOUR
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.member_values import Policies

ROOT = Path(__file__).resolve().parents[3]
DATA = ("collect", "ingest", "partition")
LEARNING = (
    "train_model",
    "clone_behaviour",
    "optimize_policy",
    "evaluate_private",
    "evaluate",
)
_TEN = paths.CONSENT / "ten"
SPLITS: dict[str, dict[str, object]] = {
    "nobody": {"partition.public_fraction": 0},
    "ten": {"partition.public": {"file": str(_TEN)}},
    "hash": {"partition.public_fraction": 0.02},
    "biased": {"partition.public": {"column": CONSENTED, "values": ["yes"]}},
}
"""Who is public, and the keys of params.yaml that say so: two percent by hash or by `Log.bias`, or the first ten."""
LEARNERS = ("private", "alone", "all")
"""Who teaches: all with privacy, or without it the public people alone, or all."""
_REFERENCE: dict[str, object] = {
    "dynamics.variant": "no_privacy",
    "evaluation.private.estimators": {},
}
CLONED = MODELS / "behaviour"
MOST_SECONDS = 4 * 3600
_EPISODES, _REFERENCE_EPISODES, _SEED = 20_000, 100_000, 77
_LOG, _OUTPUT = Path("log"), Path("output.txt")
_LEFT_OUT = (
    "dataset",
    "seed",
    "seconds",
    "env_id",
    "policy_sha256",
    "model_sha256",
    "spent_on_dataset",
)


class StageFailedError(Exception):
    """A stage of the data failed: its status and its line."""


def run(
    log: Log,
    *,
    people: int,
    seed: int,
    public: str,
    learner: str,
    changes: Mapping[str, object],
    folder: Path,
) -> dict[str, Any]:
    """Make the log, run the stages on it and measure the policies in the hidden simulator.

    Args:
        log: of the zoo.
        people: in it, public ones included.
        seed: of the log and of params.yaml.
        public: who is, one of `SPLITS`.
        learner: one of `LEARNERS`. Those without privacy have the keys `_REFERENCE`, and only their policy counts.
        changes: values by dotted keys of params.yaml, which win over these.
        folder: of the project, made anew. Data are shared with other runs in its parent.

    Returns:
        A row of plain values. ``status`` is not 0 where a stage failed, and ``error`` is then what it said.
    """
    shutil.rmtree(folder, ignore_errors=True)
    key = {"people": people, "seed": seed, "public": public, "learner": learner}
    settings = SPLITS[public] if learner == "private" else SPLITS["nobody"] | _REFERENCE
    settings = settings | changes
    try:
        data = data_project(log, **key, changes=settings, folder=folder.parent / "data")
    except StageFailedError as failed:
        status, error = failed.args
    else:
        shutil.copytree(data, folder)
        lay(log, seed, settings, folder)
        status, error = stages(folder, LEARNING)
    summary = (
        json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        if (folder / SUMMARY).exists()
        else {}
    )
    return {
        "log": log.name,
        **key,
        "epsilon": summary.get("epsilon"),
        "status": status,
        "error": error,
        "truth": truth(log),
        "can_learn": _verdict(folder / MODEL / "config.json"),
        "policy": measured(log, folder / POLICY),
        "cloned": measured(log, folder / CLONED),
        "summary": {name: value for name, value in summary.items() if name not in _LEFT_OUT},
        "seconds": json.loads((folder / SECONDS).read_text(encoding="utf-8"))
        if (folder / SECONDS).exists()
        else {},
    }


def _verdict(config: Path) -> str | None:
    """What the stage train_model said before the charge; None: it did not get so far."""
    said: str | None = (
        json.loads(config.read_text(encoding="utf-8")).get("can_learn") if config.exists() else None
    )
    return said


def data_project(
    log: Log,
    *,
    people: int,
    seed: int,
    public: str,
    learner: str,
    changes: Mapping[str, object],
    folder: Path,
) -> Path:
    """A project in ``folder`` whose log is collected, ingested and partitioned; made once.

    Arguments are those of `run`. For the learner ``alone`` the log has no people but the public ones.

    Raises:
        StageFailedError: with its status and what it said.
    """
    split = {key: value for key, value in changes.items() if key.startswith("partition.")}
    split |= {"alone": public} if learner == "alone" else {}
    tag = hashlib.sha256(json.dumps(split, sort_keys=True).encode()).hexdigest()[:6]
    project = folder / f"{log.name}-{people}-{seed}-{tag}"
    if not (project / PARTITIONS / "manifest.json").exists():
        shutil.rmtree(project, ignore_errors=True)
        project.mkdir(parents=True)
        log.write(project / _LOG, people, seed)
        if learner == "alone":
            whole = data_project(
                log,
                people=people,
                seed=seed,
                public=public,
                learner="private",
                changes=SPLITS[public],
                folder=folder,
            )
            keep_public(project / _LOG / "log.parquet", log.unit, whole)
        lay(log, seed, changes, project)
        status, error = stages(project, DATA)
        if status != 0:
            raise StageFailedError(status, error)
        shutil.rmtree(project / _LOG)  # the partitions are all that later stages read
        shutil.rmtree(project / "data/raw")
        shutil.rmtree(project / "data/trajectories")
    return project


def keep_public(file: Path, unit: str, whole: Path) -> None:
    """Drop the rows of all but the people who are public in the project ``whole``."""
    reader = PartReader(whole / paths.PUBLIC, made_by="partition")
    public = pa.concat_tables(reader.tables(columns=["unit_id"]))["unit_id"].cast(pa.int64())
    table = pq.read_table(file)
    pq.write_table(table.filter(pc.is_in(table[unit], value_set=public.combine_chunks())), file)


def partitions(log: Log, people: int, seed: int, folder: Path) -> Path:
    """The project whose ``data/partitions`` holds a log, 2% of it public by a hash, made once in ``folder``.

    Change to it before `primorl.paid.partitions.Partitions.open`, which checks the project's secret.
    """
    return data_project(
        log,
        people=people,
        seed=seed,
        public="hash",
        learner="private",
        changes=SPLITS["hash"],
        folder=folder,
    )


def lay(log: Log, seed: int, changes: Mapping[str, object], folder: Path) -> None:
    """Write a project's settings: this checkout's, the log's entry and the changes."""
    (folder / DATASETS).mkdir(parents=True, exist_ok=True)
    (folder / paths.CONSENT).mkdir(parents=True, exist_ok=True)
    (folder / _TEN).write_text("".join(f"{person}\n" for person in range(1, 11)), encoding="utf-8")
    for file in (PIPELINE, DATASETS / "defaults.yaml"):
        shutil.copy(ROOT / file, folder / file)
    settings = yaml.safe_load((ROOT / PARAMS).read_text(encoding="utf-8"))
    for key, value in {"compute.threads": 1, **changes, "dataset": log.name, "seed": seed}.items():
        *path, last = key.split(".")
        block = settings
        for part in path:
            block = block[part]
        block[last] = value
    (folder / PARAMS).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    entry = yaml.safe_dump(log.entry(str(_LOG)), sort_keys=False)
    (folder / DATASETS / f"{log.name}.yaml").write_text(entry, encoding="utf-8")


def stages(folder: Path, names: tuple[str, ...]) -> tuple[int, str | None]:
    """Run stages in one process; return its status and, if it failed, its line with the error."""
    environment = {name: value for name, value in os.environ.items() if name != "DVC_ROOT"}
    environment["PYTHONPATH"] = str(ROOT)
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
    lines = [
        line for line in (folder / _OUTPUT).read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    return status, next(
        (line for line in reversed(lines) if line.startswith("error:")),
        (lines or ["no output"])[-1],
    )


@cache
def truth(log: Log) -> dict[str, float]:
    """True values of the behaviour, of the best policy known and of random actions or none, whichever is better."""
    idle = (
        -np.inf if log.idle is None else log.returns(log.nothing, _REFERENCE_EPISODES, _SEED).mean()
    )
    return {
        "behaviour": float(log.behaviour_returns(_REFERENCE_EPISODES, _SEED).mean()),
        "best": float(log.returns(log.best_known, _REFERENCE_EPISODES, _SEED).mean()),
        "worst": float(max(idle, log.random_returns(_REFERENCE_EPISODES, _SEED).mean())),
    }


def measured(log: Log, folder: Path) -> dict[str, float] | None:
    """True value of a saved policy, or of the clone as it is released, and its standard error; None: there is none."""
    if not (folder / "policy.safetensors").exists():
        return None
    policy: Policies = DeterministicPolicy.load(folder)
    if (folder / BEHAVIOUR).exists():
        cpu = torch.device("cpu")
        policy = released(BehaviourPolicy.load(folder, cpu), SeedGenerators.of([_SEED], cpu))
    return valued(log, act_of(policy, discrete=isinstance(log.action, Levels)))


def valued(log: Log, act: Act) -> dict[str, float]:
    """True value of a policy and its standard error."""
    returns = log.returns(act, _EPISODES, _SEED + 1)
    return {
        "mean": float(returns.mean()),
        "error": float(returns.std(ddof=1) / len(returns) ** 0.5),
    }


def act_of(policy: Policies, *, discrete: bool) -> Act:
    """A policy (P = 1) as the simulators ask it."""
    choose: Callable[[NDArray[Any]], NDArray[Any]] = (
        (lambda action: action.argmax(1)) if discrete else (lambda action: action)
    )

    def act(observed: Observed) -> NDArray[Any]:
        return choose(policy.act(torch.from_numpy(observed)[None])[0].numpy())

    return act
