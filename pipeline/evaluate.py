"""Stage: the policy's return in the true environment; without one, its value in the released model.

Reads released things only.
"""

import sys
import time

import torch
from torch import Tensor

from pipeline.runner import run_stage
from primorl.config.params import Params
from primorl.dynamics.ends import with_ends
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.starts import StartModel
from primorl.evaluation.figure import draw_returns
from primorl.evaluation.private.results import PrivateEvaluation
from primorl.evaluation.recommendation import found_in
from primorl.evaluation.results import in_environment, in_model
from primorl.evaluation.summary import Summary, log_summary, write_curve
from primorl.evaluation.survival import PublicTrajectories
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import seed_folders
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, replaced_file
from primorl.project.paths import (
    BEHAVIOUR,
    CURVES,
    FIGURE,
    MANIFEST,
    MODEL,
    MOPO,
    POLICY,
    PRIVATE_EVALUATION,
    PUBLIC,
    SUMMARY,
    seconds_of,
)
from primorl.tracking import StageRun
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

_STARTS = 4096  # drawn from the released first states
_STAGES = (
    *("collect", "ingest", "partition", "train_model", "clone_behaviour", "optimize_policy"),
    *("optimize_mopo", "evaluate_private"),
)


def body(params: Params, run: StageRun) -> None:
    """Evaluate the final policies and those of every epoch; write the summary, the curve and its figure."""
    started = time.perf_counter()
    folder = MOPO if params.dynamics.variant == "mopo" else POLICY
    statement, config = Statement.read(folder), PolicyConfig.read(folder)
    if config.variant != params.dynamics.variant:
        raise PipelineError(
            f"{folder / 'config.json'}: found a policy of variant {config.variant!r}, params.yaml asks for "
            f"{params.dynamics.variant!r}; run `dvc repro`"
        )
    answers = PrivateEvaluation.read(PRIVATE_EVALUATION)
    answers.refuse_other_files(PRIVATE_EVALUATION, MODEL, POLICY, BEHAVIOUR)
    manifest = Manifest.load(MANIFEST)
    folders = seed_folders(folder, config.seeds or [params.seed])
    sizes, seed, environment = params.evaluation, params.evaluation.seed, params.chosen.environment
    score = None if params.chosen.score is None else params.chosen.score.of
    if environment is None:
        horizon = manifest.declared_horizon()
        counts = {"rollouts": sizes.episodes, "epoch_rollouts": sizes.epoch_episodes}
        starts, survival = _public(seed, horizon, config.ends)
        model = with_ends(GaussianEnsemble.load(MODEL, torch.device("cpu")), config.ends)
        evaluation = in_model(model, folders, starts, **counts, seed=seed, horizon=horizon, survival=survival)
    else:
        counts = {"episodes": sizes.episodes, "epoch_episodes": sizes.epoch_episodes}
        evaluation = in_environment(environment, folders, **counts, seed=seed, horizon=manifest.info.horizon)
    seconds = {stage: read_json(seconds_of(stage))["seconds"] for stage in _STAGES}
    summary = Summary.of(
        evaluation,
        folders,
        score=score,
        seeds=config.seeds,
        model_sha256=config.model_sha256,
        dataset=params.dataset,
        env_id=environment,
        variant=params.dynamics.variant,
        seed=params.seed,
        seconds=seconds | {"evaluate": round(time.perf_counter() - started, 3)},
        statement=statement,
        answers=answers,
        recommendation=found_in(answers, BEHAVIOUR, environment),
    )
    overall = evaluation.overall
    with replaced_file(CURVES) as fresh:
        write_curve(fresh, overall.curve, score)
    with replaced_file(FIGURE) as fresh:
        draw_returns(fresh, overall.final, overall.curve, summary.to_json())
    summary.write(SUMMARY)
    log_summary(
        run,
        run.pipeline,
        summary,
        evaluation,
        fingerprint=statement.dataset_fingerprint,
        score=score,
        artifacts=(SUMMARY, CURVES, FIGURE),
        statement_file=folder / "privacy.json",
    )


def _public(seed: int, horizon: int, ends: str | None) -> tuple[Tensor, Tensor | None]:
    """First states ``[n, S]`` and survival ``[horizon]`` of the public split.

    If nothing is public, first states are drawn from the released start model, and survival is None.
    """
    public = UnitStore.open(PUBLIC)
    if public.units > 0:
        return public.first_observations(), PublicTrajectories.of(public).in_rollouts(ends).survival(horizon)
    starts = StartModel.load(MODEL, torch.device("cpu"))
    return starts.sample(_STARTS, torch.Generator().manual_seed(seed)), None


if __name__ == "__main__":
    description = "Measure the policy's return in the true environment; without one, its value in the released model."
    sys.exit(run_stage("evaluate", description, body))
