"""A tiny project that ran every stage up to ``evaluate``, so that there is something to release."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from minari.data_collector import EpisodeBuffer as Episode

from pipeline import (
    clone_behaviour,
    evaluate,
    evaluate_private,
    ingest,
    optimize_policy,
    partition,
    plan,
    train_model,
)
from primorl.base.files import write_json
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.engine.setup import TrainingSetup
from primorl.engine.training import Trained
from primorl.model.architecture import PublicLosses
from primorl.stages import training
from primorl.stages.training import write_model
from primorl.work.jobs import RunPlan
from tests.data.builders import episode, write_raw
from tests.pipeline.training_project import TINY
from tests.projects import inside, project_settings, write_settings

SECRET = bytes(range(32))
STAGES = (
    "collect",
    "ingest",
    "partition",
    "plan",
    "train_model",
    "clone_behaviour",
    "optimize_policy",
    "evaluate_private",
)
SHORT_POLICY = TINY | {"epochs": 1, "updates_per_epoch": 4, "reward_scale": 0.1}
EPISODES = tuple(episode(20 + i % 3, seed=i) for i in range(14))


def tiny_params() -> dict[str, Any]:
    """The project's own choices at a tiny size."""
    raw = project_settings()
    raw["partition"] = {"public_fraction": 0.3, "public": None}
    raw["privacy"] |= {"target_epsilon": 2.0, "rounds": 3, "delta": 1e-3}
    raw["privacy"]["sampling_probability"] = 1.0  # which is accounted at once
    raw["privacy"]["budget"] = {"epsilon": None}
    raw["dynamics"] |= {"hidden": [8], "early_stopping": {"every": 2, "patience": None}}
    raw["policy"] |= SHORT_POLICY
    raw["evaluation"] |= {"episodes": 2, "epoch_episodes": 2, "seed": 9}
    return raw


def write_as_good(
    folder: Path, plan: RunPlan, setup: TrainingSetup, trained: Trained, *others: Any
) -> None:
    """Write that the model is better than a constant: a few rounds on a few units make none that
    is.
    """
    if (loss := trained.public_loss) is not None:
        good = replace(loss, final=min(loss.initial, loss.constant) - 1)
        trained = replace(trained, public_loss=good)
    write_model(folder, plan, setup, trained, *others)


def run_stages(
    folder: Path, raw: dict[str, Any], episodes: Sequence[Episode], store: Path
) -> Params:
    """Fill ``folder`` from these episodes by the stages' own code, with a copy of a store."""
    with inside(folder):
        shutil.copy(store, "mlflow.db")
        chosen = write_settings(raw)
        Path(".primorl").mkdir(mode=0o700, exist_ok=True)
        Path(".primorl/secret").write_bytes(SECRET)
        Path(".primorl/secret").chmod(0o600)
        write_raw(Path("data/raw"), list(episodes))
        for name in STAGES:
            write_json(Path(f"metrics/stages/{name}.json"), {"seconds": 1.0, "metrics": []})
        with (
            mock.patch.object(PublicLosses, "diverged", False),
            mock.patch.object(training, "write_model", write_as_good),
        ):
            before = (ingest, partition, plan, train_model, clone_behaviour)
            for stage in (*before, optimize_policy, evaluate_private, evaluate):
                if not (hasattr(stage, "idle") and stage.idle(chosen)):
                    stage.body(chosen, StageLog())
    return chosen
