"""kill -9 at random moments of private evaluation: ``python -m benchmarks.privacy.evaluation_crashes [--kills 50]``.

Every kill hits `evaluate_private` at a time drawn uniformly over the length of an undisturbed run, of two queries and
one estimator with rounds. After one to three kills the stage runs to its end, and the ledger is held against a count of
the releases that were really made, which the processes write down one by one.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mlflow  # noqa: F401 - imported here so that the forked processes need not
import sqlalchemy  # noqa: F401
import torch

from benchmarks.machine import machine, write
from benchmarks.privacy.crashes import row
from benchmarks.privacy.small_project import in_process, make
from pipeline import evaluate_private, optimize_policy, train_model
from pipeline.runner import run_stage
from primorl.config import params as params_module
from primorl.evaluation.private.results import PrivateEvaluation
from primorl.privacy.accounting.epsilon import releases
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.mechanism.plan import Plan
from primorl.project.progress import progress_bar
from primorl.setup.accounts import project_ledger
from tests.projects import write_settings

ASKED = {"behaviour": 20.0, "model_check": 20.0, "dptd": 20.0}
CHANGES: dict[str, dict[str, Any]] = {
    "privacy": {"target_epsilon": 5.0, "sampling_probability": 0.3, "rounds": 20, "delta": 1e-3},
    "dynamics": {"hidden": [16], "early_stopping": {"every": 10, "patience": None}},
    "policy": {"epochs": 1, "updates_per_epoch": 10, "rollout_batch": 8, "buffer_size": 2000, "hidden": [16]},
    "compute": {"device": "cpu", "memory_mb": None, "threads": 1},
}
FILE = Path("metrics/private_evaluation.json")


def main() -> int:
    """Kill, resume, judge; write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments; the mechanism has no seed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="primorl-crashes-") as name:
        folder = Path(name)
        os.chdir(folder)
        content = make(folder, CHANGES)
        content["evaluation"]["private"] |= {"estimators": ASKED}
        write_settings(content, folder)
        for body in (train_model.body, optimize_policy.body):
            assert wait(in_process(lambda body=body: stage(body.__module__, body), folder / "log")) == 0, said(folder)
        rows = study(folder, content, arguments.kills, random.Random(arguments.seed))
    for each in rows:
        command = f"python -m benchmarks.privacy.evaluation_crashes --kills {arguments.kills}"
        each |= {"machine": machine(), "command": command}
    write("evaluation_crashes", rows)
    return int(any(each["what"].startswith("must be 0") and each["ours"] for each in rows))


def study(folder: Path, content: dict[str, Any], kills: int, rng: random.Random) -> list[dict[str, Any]]:
    """All kills; the rows of the table."""
    draws = iter(range(10_000))
    counts = dict.fromkeys(("killed", "alive", "failed", "corrupt", "unpaid", "unverified", "again", "runs"), 0)
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert run(folder, content, next(draws), None) == 0, said(folder)
        took.append(time.monotonic() - began)
    length = sorted(took)[1]
    with progress_bar(kills, "crashes", "kill") as bar:
        while counts["killed"] < kills:
            draw = next(draws)
            for _ in range(rng.choice((1, 1, 2, 3))):
                status = run(folder, content, draw, rng.uniform(0, length))
                counts["killed" if status == -signal.SIGKILL else "alive"] += 1
                bar.update(status == -signal.SIGKILL)
            counts["runs"] += 1
            counts["failed"] += run(folder, content, draw, None) != 0
            charged, charges, verified = judged(draw)
            counts["again"] += charges - len(ASKED)
            counts["unpaid"] += made(folder, draw) > charged
            counts["unverified"] += not verified
            counts["corrupt"] += not sound()
    return [
        row("kills that hit a living process", counts["killed"], "kills"),
        row("runs that ended before their kill", counts["alive"], "runs"),
        row("evaluations", counts["runs"], "runs"),
        row("must be 0: resumed runs that did not end well", counts["failed"], "runs"),
        row("must be 0: outputs that do not load or lack an answer", counts["corrupt"], "looks"),
        row("must be 0: evaluations with more releases than the ledger shows", counts["unpaid"], "runs"),
        row("must be 0: ledgers that do not verify", counts["unverified"], "looks"),
        row("charges made again, for an only release that a kill hit", counts["again"], "charges"),
    ]


def run(folder: Path, content: dict[str, Any], draw: int, kill_after: float | None) -> int:
    """One `evaluate_private`; its exit status, negative for a signal."""
    content["evaluation"]["private"]["draw"] = draw
    write_settings(content, folder)
    process = in_process(lambda: counted(folder / f"released-{draw}"), folder / "log")
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(process, signal.SIGKILL)
    return wait(process)


def wait(process: int) -> int:
    """Exit status of a process, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def stage(module: str, body: Any) -> int:
    """A stage, as DVC starts it."""
    sys.argv[1:] = []
    torch.set_num_threads(1)
    return run_stage(module.rpartition(".")[2], "", body)


def counted(count: Path) -> int:
    """`evaluate_private`, with every release and answer written down the moment it exists."""
    handle = os.open(count, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for name in ("release", "answer"):
        plain = getattr(Plan, name)

        def counting(self: Plan, *arguments: Any, plain: Any = plain) -> Any:
            noisy = plain(self, *arguments)
            os.write(handle, b".")
            return noisy

        setattr(Plan, name, counting)
    return stage("evaluate_private", evaluate_private.body)


def made(folder: Path, draw: int) -> int:
    """Releases that were made under a draw, over all processes."""
    count = folder / f"released-{draw}"
    return count.stat().st_size if count.exists() else 0


def judged(draw: int) -> tuple[int, int, bool]:
    """Releases that were charged since the newest evaluation began, its charges, and whether the chain holds."""
    ledger = project_ledger(params_module.load(Path("params.yaml")))
    try:
        ledger.verify()
        charges = [charge for charge in ledger.charges() if charge.stage.startswith("evaluate_private")]
    except Exception:
        return 0, 0, False
    finally:
        ledger.close()
    identities = list(dict.fromkeys(charge.identity for charge in charges))[-len(ASKED) :]
    own = [charge for charge in charges if charge.identity in identities]
    return sum(releases(event_from_json(charge.event)) for charge in own), len(own), True


def sound() -> bool:
    """Whether the file is whole and has all answers."""
    try:
        record = PrivateEvaluation.read(FILE)
    except Exception:
        return False
    return set(record.statements) == set(ASKED) and {each.estimator for each in record.estimates} >= set(ASKED)


def said(folder: Path) -> str:
    """What the last process said."""
    return (folder / "log").read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
