"""Stage: the policy's return in the true environment; without one, its value in the released model.

Reads released things only.
"""

import sys
import time

import numpy as np
import torch
from torch import Tensor

from pipeline.runner import run_stage
from primorl.config.params import Params
from primorl.dynamics.ends import with_ends
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.starts import StartModel
from primorl.evaluation.episode import log_episode
from primorl.evaluation.figures import draw_returns
from primorl.evaluation.logged import log_summary, note
from primorl.evaluation.private.results import PrivateEvaluation
from primorl.evaluation.recommendation import found_in
from primorl.evaluation.results import in_environment, in_model
from primorl.evaluation.summary import Summary, write_curve
from primorl.evaluation.survival import PublicTrajectories
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import DeterministicPolicy, seed_folders
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
from primorl.release.stated_figures import check_epsilon, check_with_parts
from primorl.tracking import StageRun, in_sweep
from primorl.tracking.registry import Entry, register
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
    if statement.private:
        parts = [MODEL, *([BEHAVIOUR] if (BEHAVIOUR / "privacy.json").exists() else [])]
        found = {str(part): Statement.read(part) for part in parts}
        check_with_parts(folder, statement, found, near_clone=config.clone_error is not None)
    answers = PrivateEvaluation.read(PRIVATE_EVALUATION)
    for own in answers.statements.values():
        if own.private:
            check_epsilon(PRIVATE_EVALUATION, own)
    answers.refuse_other_files(PRIVATE_EVALUATION, MODEL, POLICY, BEHAVIOUR)
    manifest = Manifest.load(MANIFEST)
    folders = seed_folders(folder, config.seeds or [params.seed])
    sizes, seed, environment = params.evaluation, params.evaluation.seed, params.chosen.environment
    score = None if params.chosen.score is None else params.chosen.score.of
    public = UnitStore.open(PUBLIC)
    recorded = PublicTrajectories.of(public) if public.units > 0 else None
    if environment is None:
        horizon = manifest.declared_horizon()
        counts = {"rollouts": sizes.episodes, "epoch_rollouts": sizes.epoch_episodes}
        starts = _released_starts(seed) if recorded is None else public.first_observations()
        survival = None if recorded is None else recorded.in_rollouts(config.ends).survival(horizon)
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
        public_returns=np.array([]) if recorded is None else recorded.reward.sum(1).numpy(),
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
    if in_sweep():
        return
    if environment is not None:
        policy = DeterministicPolicy.load(folder)
        log_episode(run.pipeline, environment, policy, seed, manifest.info.horizon)
    said = summary.to_json()
    register(run.pipeline, folder, Entry.of(said, params, statement.dataset_fingerprint, description=note(said)))


def _released_starts(seed: int) -> Tensor:
    """First states ``[n, S]`` where nobody is public: drawn from the released start model."""
    return StartModel.load(MODEL, torch.device("cpu")).sample(_STARTS, torch.Generator().manual_seed(seed))


if __name__ == "__main__":
    description = "Measure the policy's return in the true environment; without one, its value in the released model."
    sys.exit(run_stage("evaluate", description, body))
