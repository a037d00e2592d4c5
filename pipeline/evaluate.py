"""Stage: the policy's return in the true environment; without one, its value in the released model.

Reads released things only.
"""

import hashlib
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.runner import run_stage
from primorl.base.files import (
    BEHAVIOUR,
    CURVES,
    MODEL,
    PLAN,
    POLICY,
    PRIVATE_EVALUATION,
    SUMMARY,
    file_sha256,
    read_json,
    stage_log,
)
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.evaluate.private.problem import Recordings
from primorl.evaluate.recommendation import recommend
from primorl.evaluate.returns import Measure, evaluate, in_environment, in_model
from primorl.evaluate.summary import NOTE, Evaluation, Summary, content_of, write_curve
from primorl.model.ensemble import GaussianEnsemble
from primorl.policy.exported import seed_folders
from primorl.run import VerifiedRun
from primorl.tracking import RESULT_TAG, log_run

_OF_FOLDER = ("config.json", "privacy.json")
_FILES = (
    PLAN,
    *(folder / name for folder in (MODEL, BEHAVIOUR, POLICY) for name in _OF_FOLDER),
    SUMMARY,
    PRIVATE_EVALUATION,
    CURVES,
)
"""That MLflow gets."""
_STAGES = (
    "collect ingest partition plan train_model clone_behaviour optimize_policy evaluate_private"
)


def body(params: Params, log: StageLog) -> None:
    """Evaluate the final policies and those of every epoch; write the summary and the curve,
    and log the result.
    """
    started = time.perf_counter()
    found = VerifiedRun.read(params, params.dynamics.variant)
    environment = params.chosen.environment
    folders = seed_folders(POLICY, found.config.seeds or [params.seed])
    evaluation = evaluate_policies(found, params, folders)
    logs = {stage: read_json(stage_log(stage)) for stage in _STAGES.split()}
    seconds = {stage: own["seconds"] for stage, own in logs.items()}
    write_curve(CURVES, evaluation)
    seconds["evaluate"] = round(time.perf_counter() - started, 3)
    summary = Summary.of(
        evaluation,
        folders,
        seeds=found.config.seeds,
        model_sha256=found.config.model_sha256,
        dataset=params.dataset,
        env_id=environment,
        variant=params.dynamics.variant,
        seed=params.seed,
        seconds=seconds,
        statement=found.policy,
        answers=found.answers,
        curve_sha256=file_sha256(CURVES),
        private_evaluation_sha256=file_sha256(PRIVATE_EVALUATION) if environment is None else None,
        public_returns=found.public_returns,
        recommendation=recommend(found.answers) if environment is None else None,
    )
    summary.write(SUMMARY)
    content = content_of(summary, evaluation, found.policy.dataset_fingerprint)
    curves = [
        (f"{stage}.{name}", value, step)
        for stage, own in logs.items()
        for name, value, step in own["metrics"]
    ]
    decided = {key: own["value"] for key, own in read_json(PLAN)["settings"].items()}
    given = content.params | {key: decided[key] for key in params.undecided & decided.keys()}
    result = json.dumps(replace(summary, seconds={}).to_json(), sort_keys=True).encode()
    tags = {**content.tags, RESULT_TAG: hashlib.sha256(result).hexdigest()}
    content = replace(content, params=given, tags=tags, metrics=[*content.metrics, *curves])
    log_run(params, content, [file for file in _FILES if file.exists()])


def evaluate_policies(found: VerifiedRun, params: Params, folders: list[Path]) -> Evaluation:
    """Measure returns in the environment that the dataset names; without one, compute values in the
    model.
    """
    sizes, environment = params.evaluation, params.chosen.environment
    method: dict[str, Any] = {"episodes": sizes.episodes}
    measure: Measure
    if environment is not None:
        horizon = found.manifest.info.horizon
        measure = partial(in_environment, environment=environment, seed=sizes.seed, horizon=horizon)
    else:
        steps, ends = found.manifest.declared_horizon(), found.config.ends
        recordings = Recordings.of(MODEL, found.public)
        ensemble = GaussianEnsemble.load(MODEL, torch.device("cpu")).with_ends(ends)
        measure = partial(
            in_model,
            ensemble=ensemble,
            starts=recordings.first_states(sizes.seed),
            seed=sizes.seed,
            horizon=steps,
            survival=recordings.survival(steps, ends),
        )
        method = {
            "episodes": None,
            "model_value_members": ensemble.architecture.members,
            "model_value_rollouts": sizes.episodes,
            "model_value_horizon": steps,
            "model_value_note": NOTE,
        }
    score = None if params.chosen.score is None else params.chosen.score.of
    final, epoch = sizes.episodes, sizes.epoch_episodes
    return evaluate(folders, measure, final=final, epoch=epoch, method=method, score=score)


if __name__ == "__main__":
    sys.exit(run_stage("evaluate", __doc__, body))
