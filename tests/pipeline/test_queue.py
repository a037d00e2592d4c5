"""Experiments in DVC's queue share the project's ledger: a model that was paid for is restored, not
charged again.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from primorl.config.params import Params, plain
from tests.data.builders import episode, episodes
from tests.pipeline.conftest import small
from tests.pipeline.training_project import charged, with_changes, write_partitions
from tests.projects import ROOT, write_settings

__all__ = ["small"]

STAGES = {
    "train_model": {
        "cmd": "python -m pipeline.plan && python -m pipeline.train_model",
        "deps": ["data/partitions"],
        "params": ["policy.epochs"],  # so that DVC runs the stage in every trial
        "outs": ["models/dynamics", {"metrics/stages/train_model.json": {"cache": False}}],
    }
}


def test_a_queue_of_two_trials_that_begin_together_pays_for_their_model_once(
    small: Params, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = with_changes(small)
    write_settings(plain(params))
    write_partitions(episodes(6), [episode(7, 100 + i) for i in range(3)])
    shutil.copy(empty_store, "mlflow.db")
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": STAGES}), encoding="utf-8")
    Path(".gitignore").write_text(".primorl\nmlflow.db*\nmlruns\n__pycache__\n", encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    named = {
        f"GIT_{who}_{what}": "test@localhost"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    settings = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(Path.cwd())}
    settings |= {"DVC_NO_ANALYTICS": "1", "OMP_NUM_THREADS": "1"}

    def run(*words: str) -> str:
        done = subprocess.run(
            words, env=os.environ | named | settings, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("git", "init", "--quiet")
    run("dvc", "init", "--quiet")
    run("git", "add", "--all")
    run("git", "commit", "--quiet", "--message", "settings")
    run("dvc", "exp", "run", "--queue", "-S", "policy.epochs=1,2")
    # `dvc exp run --run-all` waits for its workers, one of which need not end on a busy machine
    run("dvc", "queue", "start", "--jobs", "2")
    while sum(map(run("dvc", "queue", "status").count, ("Success", "Failed"))) < 2:
        time.sleep(1)
    run("dvc", "queue", "stop", "--kill")
    shown = json.loads(run("dvc", "exp", "show", "--json"))
    assert len(shown[1]["experiments"]) == 2
    assert len(charged(params)) == 1, "the model comes to nothing in both, and is paid for once"
