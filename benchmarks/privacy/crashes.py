"""kill -9 at random moments of private training: ``python -m benchmarks.privacy.crashes [--kills 200]``.

Every kill hits `train_model` at a time drawn uniformly over the length of an undisturbed run. After each, whatever is
in ``models/dynamics`` must load and agree with its statement; after one to three kills the run is taken up to its end,
and the ledger is held against a count of the rounds that were really released, which the processes write down one by
one. The quality of what was killed stands beside undisturbed runs of the same settings.
"""

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import mlflow  # noqa: F401 - imported here so that the forked processes need not
import sqlalchemy  # noqa: F401
import torch
from scipy import stats

from benchmarks.machine import ROOT, row, write
from pipeline import train_model
from pipeline.runner import run_stage
from primorl.base.files import read_json
from primorl.base.reporting import progress_bar
from primorl.config import params as params_module
from primorl.model.ensemble import GaussianEnsemble
from primorl.paid.accounts import project_ledger
from primorl.privacy.mechanism.plan import Plan
from tests.projects import project_settings, write_settings

ROUNDS = 100
CHANGES: dict[str, dict[str, Any]] = {
    "privacy": {
        "target_epsilon": None,
        "noise_multiplier": 0.5,
        "sampling_probability": 0.3,
        "rounds": ROUNDS,
        "delta": 1e-3,
    },
    "dynamics": {"hidden": [32, 32], "early_stopping": {"every": 10, "patience": None}},
    "compute": {"device": "cpu", "memory_mb": None, "threads": 1},
}


def main() -> int:
    """Kill, resume, judge; write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--undisturbed", type=int, default=15)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the moments; the mechanism has no seed"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="primorl-crashes-") as name:
        folder = Path(name)
        os.chdir(folder)
        content = make(folder, CHANGES)
        command = f"python -m benchmarks.privacy.crashes --kills {arguments.kills}"
        rows = study(
            folder,
            content,
            arguments.kills,
            arguments.undisturbed,
            random.Random(arguments.seed),
            command,
        )
    write("crashes", rows)
    return int(any(str(found["what"]).startswith("must be 0") and found["ours"] for found in rows))


def study(
    folder: Path,
    content: dict[str, Any],
    kills: int,
    undisturbed: int,
    rng: random.Random,
    command: str,
) -> list[dict[str, Any]]:
    """Make all kills; return the rows of the table."""
    seeds = iter(range(10_000))
    usual, took = [], []
    for _ in range(undisturbed):
        content["seed"] = next(seeds)
        began = time.monotonic()
        assert run(folder, content, None) == 0, (folder / "log").read_text()
        took.append(time.monotonic() - began)
        usual.append(loss())
    length = median(took)
    counts = dict.fromkeys(
        ("killed", "alive", "failed", "corrupt", "unpaid", "unverified", "lost", "resumed"), 0
    )
    disturbed = []
    with progress_bar(kills, "crashes", "kill") as bar:
        while counts["killed"] < kills:
            content["seed"] = next(seeds)
            for _ in range(rng.choice((1, 1, 2, 3))):
                status = run(folder, content, rng.uniform(0, length))
                counts["killed" if status == -signal.SIGKILL else "alive"] += 1
                bar.update(status == -signal.SIGKILL)
                counts["corrupt"] += not sound()
            before = released(folder)
            counts["failed"] += run(folder, content, None) != 0
            counts["corrupt"] += not sound()
            counts["resumed"] += 0 < before < released(folder)
            charged, verified = judged()
            counts["unpaid"] += released(folder) > charged
            counts["unverified"] += not verified
            done = int(read_json(Path("models/dynamics/config.json"))["rounds"])
            counts["lost"] += ROUNDS - done
            disturbed.append(loss())
    alike = stats.mannwhitneyu(usual, disturbed, alternative="two-sided").pvalue
    figures = [
        ("kills that hit a living process", counts["killed"], "kills"),
        ("runs that ended before their kill", counts["alive"], "runs"),
        ("runs taken up in the middle of their rounds", counts["resumed"], "runs"),
        ("must be 0: resumed runs that did not end well", counts["failed"], "runs"),
        (
            "must be 0: outputs that do not load or contradict their statement",
            counts["corrupt"],
            "looks",
        ),
        (
            "must be 0: runs with more rounds released than the ledger shows",
            counts["unpaid"],
            "runs",
        ),
        ("must be 0: ledgers that do not verify", counts["unverified"], "looks"),
        (
            f"rounds of {ROUNDS} lost to a kill, mean over kills",
            counts["lost"] / counts["killed"],
            "rounds",
        ),
        ("p-value that the losses are alike (Mann-Whitney)", float(alike), "probability"),
    ]
    rows = [row(command, what, found, None, None, None, unit) for what, found, unit in figures]
    loss_after, loss_before = median(disturbed), median(usual)
    ratio = loss_after / loss_before
    what = "public loss after kills, median"
    return [*rows, row(command, what, loss_after, loss_before, "undisturbed", ratio, "nats")]


def run(folder: Path, content: dict[str, Any], kill_after: float | None) -> int:
    """One `train_model`; its exit status, negative for a signal."""
    write_settings(content, folder)
    process = in_process(lambda: stage(folder / f"released-{content['seed']}"), folder / "log")
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def stage(count: Path) -> int:
    """`train_model`, with every release written down the moment it exists."""
    sys.argv[1:] = []
    torch.set_num_threads(1)
    release = Plan.release
    handle = os.open(count, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def counted(self: Plan, total: Any) -> Any:
        noisy = release(self, total)
        os.write(handle, b".")
        return noisy

    Plan.release = counted  # type: ignore[method-assign]
    return run_stage("train_model", "", train_model.body)


def released(folder: Path) -> int:
    """Rounds that were released under the present seed, over all processes."""
    seed = params_module.load(folder / "params.yaml").seed
    count = folder / f"released-{seed}"
    return count.stat().st_size if count.exists() else 0


def judged() -> tuple[int, bool]:
    """Rounds charged to the newest identity, and whether the chain holds."""
    ledger = project_ledger(params_module.load(Path("params.yaml")))
    try:
        charges = ledger.charges()
        ledger.verify()
    except Exception:
        return 0, False
    finally:
        ledger.close()
    return sum(c.event["count"] for c in charges if c.identity == charges[-1].identity), True


def sound() -> bool:
    """Whether ``models/dynamics`` is whole: it loads, and is stated to be private at the ε of its event."""
    if not Path("models/dynamics").exists():
        return False
    try:
        GaussianEnsemble.load(Path("models/dynamics"), torch.device("cpu"))
        stated = read_json(Path("models/dynamics/privacy.json"))
    except Exception:
        return False
    return (
        stated["private"]
        and stated["void"] == []
        and stated["rounds"] == ROUNDS
        and "charge" in stated
    )


def loss() -> float:
    """The last public loss of the newest MLflow run of the stage."""
    with sqlite3.connect("mlflow.db") as store:
        query = "SELECT m.value FROM metrics m WHERE m.key = 'public_loss' ORDER BY m.timestamp DESC, m.step DESC LIMIT 1"
        return float(store.execute(query).fetchone()[0])


def make(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Collect, ingest and partition a small Pendulum dataset in ``folder``; returns its settings."""
    content = project_settings()
    small = {
        "episodes": 120,
        "num_envs": 30,
        "learning_starts": 24000,
        "hidden": [16],
        "gradient_steps": 1,
    }
    content["chosen"]["options"] |= small
    content["partition"]["public_fraction"] = 0.2
    for block, values in changes.items():
        content[block] |= values
    write_settings(content, folder)
    for stage in ("collect", "ingest", "partition"):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
        subprocess.run(
            [sys.executable, "-m", f"pipeline.{stage}"], cwd=folder, env=environment, check=True
        )
    return content


def in_process(body: Callable[[], int], log: Path) -> int:
    """Start ``body`` in a forked process, its output in ``log``; returns the process's number.

    The parent has imported everything, so a process starts in milliseconds: what is measured, and killed, is the work.
    """
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        status = body()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
