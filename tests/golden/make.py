"""Make the kept projects that `test_golden.py` opens: ``python -m tests.golden.make``.

``kept/`` was made by this file at commit 2d71654, before the library was made smaller. Make it anew only where a format
changes on purpose. All people and numbers in it are made up.
"""

import json
import os
import random
import shutil
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

from pipeline import (
    clone_behaviour,
    collect,
    evaluate,
    evaluate_private,
    ingest,
    online,
    optimize_policy,
    partition,
    train_model,
)
from primorl.base.files import write_json
from primorl.commands import main as cli
from primorl.config import params
from tests.pipeline.tiny_policy import RememberingRun
from tests.projects import inside, project_settings, write_settings

KEPT = Path(__file__).parent / "kept"
SECRET = bytes(range(32))
PATIENTS = [f"patient {number:02d}" for number in range(12)]
ESTIMATORS = {"behaviour": 3.0, "model_check": 3.0, "lstd": 3.0, "doubly_robust": 3.0, "dptd": 3.0}
PREPARING = (collect, ingest, partition)
CHARGED = (train_model, clone_behaviour, evaluate_private)
PAID = ("train_model", "clone_behaviour", "evaluate_private")
STAGES = (*PAID, "collect", "ingest", "partition", "optimize_policy", "optimize_mopo")


def log_settings() -> dict[str, Any]:
    """A log of twelve patients, nobody public, with a model, a clone and five questions."""
    raw = project_settings("csv-log")
    raw["partition"] = {"public_fraction": 0.0, "public": None, "salt": "primorl"}
    raw["privacy"] |= {
        "target_epsilon": None,
        "noise_multiplier": 4.0,
        "sampling_probability": 1.0,
        "rounds": 2,
        "delta": 1e-3,
        "budget": {"epsilon": None, "delta": 1e-3},
        "statistics": {"normaliser": "bounds", "starts": True, "noise_multiplier": 14.0},
    }
    raw["dynamics"] |= {
        "hidden": [4],
        "ensemble_size": 2,
        "early_stopping": {"every": 2, "patience": None},
    }
    raw["behaviour"] |= {"target_epsilon": 2.0, "hidden": [4], "log_variance_bounds": [-5.0, 1.0]}
    raw["policy"] |= {
        "starts": "released",
        "epochs": 1,
        "updates_per_epoch": 4,
        "rollout_every": 4,
        "rollout_batch": 8,
        "horizon": 4,
        "buffer_size": 64,
        "hidden": [4],
        "batch_size": 8,
    }
    raw["evaluation"] |= {"episodes": 2, "epoch_episodes": 2}
    raw["evaluation"]["private"] |= {"estimators": ESTIMATORS, "discount": 0.9}
    options = raw["chosen"]["options"]
    options["files"] = "log.csv"
    options["columns"]["action"] = {"column": "dose", "count": 3}
    return raw


def online_settings() -> dict[str, Any]:
    """Twelve simulated users of CartPole in four cohorts, from scratch."""
    raw = project_settings()
    raw["chosen"]["environment"] = "CartPole-v1"
    raw["privacy"]["delta"] = raw["privacy"]["budget"]["delta"] = 1e-3
    raw["evaluation"] |= {"episodes": 2, "epoch_episodes": 2}
    raw["online"] |= {
        "users": 12,
        "cohort": 3,
        "start": "scratch",
        "steps": 20,
        "algorithm": "dp-pg",
    }
    return raw


def write_log(patients: list[str]) -> None:
    """Two stays of four rows each in ``log.csv``."""
    generator = random.Random(0)
    lines = ["patient,stay,time,glucose,insulin_on_board,meal,dose,reward"]
    for patient in patients:
        for stay, time in product(range(2), range(4)):
            glucose, insulin, reward = (
                generator.uniform(4, 20),
                generator.uniform(0, 2),
                -generator.random(),
            )
            meal, dose = generator.choice(["none", "snack", "meal"]), generator.randrange(3)
            lines.append(
                f"{patient},{stay},{time},{glucose:.4f},{insulin:.4f},{meal},{dose},{reward:.4f}"
            )
    Path("log.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(*stages: Any) -> None:
    """Run these stages of the project in the working directory."""
    chosen = params.load(Path("params.yaml"))
    for stage in stages:
        remembering = RememberingRun()
        remembering.pipeline = RememberingRun()  # type: ignore[attr-defined]
        if not (hasattr(stage, "idle") and stage.idle(chosen)):
            stage.body(chosen, remembering)


def command(*words: str) -> None:
    """Run one command of `primorl`."""
    assert cli.main(list(words)) == 0, words


def begin(settings: dict[str, Any]) -> None:
    """Write settings and the project's secret."""
    write_settings(settings)
    Path(".primorl").mkdir(mode=0o700)
    Path(".primorl/secret").write_bytes(SECRET)
    for name in STAGES:
        write_json(Path(f"metrics/seconds/{name}.json"), {"seconds": 1.0})


def make_log() -> None:
    """A finished project with a bundle and a selection."""
    begin(log_settings())
    write_log(PATIENTS)
    Path("data/raw").mkdir(parents=True)
    run(*PREPARING, train_model, clone_behaviour, optimize_policy, evaluate_private, evaluate)
    command("select", "models/policy", "models/behaviour", "--epsilon", "3", "--estimator", "model")
    command("release", "out/bundle", "--policy", "models/policy")


def make_online() -> None:
    """A finished run of the stage `online`, and its bundle."""
    begin(online_settings())
    run(online)
    command("release", "out/bundle", "--policy", "models/online")


def keep(folder: Path, name: str) -> None:
    """Pack the project into ``kept/NAME.tar.xz``, without MLflow's database and figures."""
    with closing(sqlite3.connect(folder / ".primorl/ledger.db")) as database:
        database.execute("vacuum")
    for path in (*folder.glob("mlflow.db*"), *folder.glob("plots/*.png")):
        path.unlink()
    shutil.rmtree(folder / "mlruns", ignore_errors=True)
    KEPT.mkdir(exist_ok=True)
    with tarfile.open(KEPT / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        archive.add(folder, arcname=name)


def main() -> None:
    """Make both projects anew."""
    os.environ.pop("DVC_ROOT", None)
    for name, make in (("log", make_log), ("online", make_online)):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, name)
            with inside(folder):
                make()
            keep(folder, name)
            print(json.dumps({name: (KEPT / f"{name}.tar.xz").stat().st_size}))


if __name__ == "__main__":
    main()
