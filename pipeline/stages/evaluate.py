"""Stage ``evaluate``: the policy's return in the true environment; reads released things only.

Where the dataset names no environment there is nothing to measure in: it gives the value in the released model instead,
and says so wherever it stands.
"""

import csv
import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.dynamics.ensemble import GaussianEnsemble
from pipeline.dynamics.starts import StartModel
from pipeline.errors import PipelineError
from pipeline.evaluation.figure import Estimate, draw_returns
from pipeline.evaluation.model_value import NOTE, ModelValue, values_by_member
from pipeline.evaluation.returns import episode_returns
from pipeline.evaluation.statistics import MeanInterval
from pipeline.files import read_json, replaced_file, write_json
from pipeline.params import Params
from pipeline.policy.exported import DeterministicPolicy
from pipeline.stages.horizon import declared_horizon
from pipeline.stages.runner import run_stage
from pipeline.tracking import StageRun
from pipeline.trajectories.manifest import Manifest
from pipeline.trajectories.store import UnitStore

PARTITIONS, MODEL = Path("data/partitions"), Path("models/dynamics")
SUMMARY, CURVES, FIGURE = Path("metrics/summary.json"), Path("plots/curves.csv"), Path("plots/return.png")
_STATED = ("private", "epsilon", "epsilon_rdp", "delta", "unit", "units", "void", "spent_on_dataset")
_STARTS = 4096  # drawn from the released first states
_STAGES = ("collect", "ingest", "partition", "train_model", "optimize_policy", "optimize_mopo")


def body(params: Params, run: StageRun) -> None:
    """Evaluate the final policy and those of every epoch; write the summary, the curve and its figure."""
    started = time.perf_counter()
    folder = Path("models/mopo" if params.dynamics.variant == "mopo" else "models/policy")
    statement = read_json(folder / "privacy.json")
    missing = [key for key in (*_STATED, "dataset_fingerprint") if key not in statement]
    if missing:
        raise PipelineError(f"{folder / 'privacy.json'}: no {', '.join(missing)}; run `dvc checkout` or `dvc repro`")
    made_for = read_json(folder / "config.json").get("variant")
    if made_for != params.dynamics.variant:
        raise PipelineError(
            f"{folder / 'config.json'}: found a policy of variant {made_for!r}, params.yaml asks for "
            f"{params.dynamics.variant!r}; run `dvc repro`"
        )
    manifest = Manifest.load(PARTITIONS / "manifest.json")
    final, curve, measured = (
        _in_the_model(params, manifest, folder)
        if params.chosen.environment is None
        else _in_the_environment(params, params.chosen.environment, manifest, folder)
    )
    summary = {
        "dataset": params.dataset,
        "env_id": params.chosen.environment,
        "variant": params.dynamics.variant,
        **{key: statement[key] for key in _STATED},
        "seed": params.seed,
        **measured,
        "policy_sha256": hashlib.sha256((folder / "policy.safetensors").read_bytes()).hexdigest(),
        "seconds": {
            **{stage: read_json(Path(f"metrics/seconds/{stage}.json"))["seconds"] for stage in _STAGES},
            "evaluate": round(time.perf_counter() - started, 3),
        },
    }
    with replaced_file(CURVES) as fresh:
        _write_curve(fresh, curve, params)
    with replaced_file(FIGURE) as fresh:
        draw_returns(fresh, final, curve, summary)
    write_json(SUMMARY, summary)
    _log(run, summary, final, curve, statement, folder)


def _in_the_environment(
    params: Params, environment: str, manifest: Manifest, folder: Path
) -> tuple[MeanInterval, list[MeanInterval], dict[str, Any]]:
    """The final policy, those of every epoch, and what the summary says of them: measured."""
    chosen, limit = params.evaluation, manifest.info.horizon
    policy, epochs = DeterministicPolicy.load(folder), DeterministicPolicy.load_epochs(folder)
    final = MeanInterval.of(episode_returns(environment, policy, chosen.episodes, chosen.seed, limit)[0])
    by_epoch = episode_returns(environment, epochs, chosen.epoch_episodes, chosen.seed, limit)
    said = {
        "return_mean": final.mean,
        "return_ci95": [final.low, final.high],
        "normalized_score": _score(params, final.mean),
        "episodes": chosen.episodes,
    }
    return final, [MeanInterval.of(returns) for returns in by_epoch], said


def _in_the_model(
    params: Params, manifest: Manifest, folder: Path
) -> tuple[ModelValue, list[ModelValue], dict[str, Any]]:
    """The same in the released model, because nothing can measure it.

    Raises:
        PipelineError: nobody says how long an episode is, or where it begins.
    """
    horizon = declared_horizon(params, manifest)
    chosen, ensemble = params.evaluation, GaussianEnsemble.load(MODEL, torch.device("cpu"))
    starts = _first_states(chosen.seed)
    if starts.shape[1:] != (ensemble.architecture.observation_size,):
        raise PipelineError(f"{PARTITIONS}: not of the data that {MODEL} was trained on; run `dvc repro`")

    def values(policy: DeterministicPolicy, rollouts: int) -> list[ModelValue]:
        found = values_by_member(ensemble, policy, starts, rollouts=rollouts, horizon=horizon, seed=chosen.seed)
        return [ModelValue.of(by_member) for by_member in found]

    (final,) = values(DeterministicPolicy.load(folder), chosen.episodes)
    said = {
        "return_mean": None,
        "return_ci95": None,
        "normalized_score": None,
        "episodes": None,
        "model_value": final.mean,
        "model_value_range": [final.low, final.high],
        "model_value_members": ensemble.architecture.members,
        "model_value_rollouts": chosen.episodes,
        "model_value_horizon": horizon,
        "model_value_note": NOTE,
    }
    return final, values(DeterministicPolicy.load_epochs(folder), chosen.epoch_episodes), said


def _first_states(seed: int) -> Tensor:
    """``[n, S]``: those of the public split's episodes; where nothing is public, drawn from the released ones."""
    public = UnitStore.open(PARTITIONS / "public")
    if public.units > 0:
        return public.first_observations()
    return StartModel.load(MODEL, torch.device("cpu")).sample(_STARTS, torch.Generator().manual_seed(seed))


def _score(params: Params, mean: float) -> float | None:
    return None if params.chosen.score is None else params.chosen.score.of(mean)


def _write_curve(path: Path, curve: Sequence[Estimate], params: Params) -> None:
    """One row an epoch; what was not measured stays empty, and a value in the model has columns of its own."""
    measured = ["return_mean", "return_low", "return_high", "normalized_score"]
    of_model = isinstance(curve[0], ModelValue)
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["epoch", *measured, *(["model_value", "model_low", "model_high"] if of_model else [])])
        for epoch, point in enumerate(curve, start=1):
            numbers = [point.mean, point.low, point.high]
            score = [] if of_model else [_score(params, point.mean)]
            rows.writerow([epoch, *([None] * len(measured) if of_model else []), *numbers, *score])


def _log(
    run: StageRun,
    summary: dict[str, Any],
    final: Estimate,
    curve: Sequence[Estimate],
    statement: dict[str, Any],
    folder: Path,
) -> None:
    """The stage's run gets everything; the pipeline's run gets what pipelines are compared by."""
    choices = {key: summary[key] for key in ("dataset", "env_id", "variant", "seed", "private", "epsilon", "delta")}
    name, kind = ("model_value", "model") if isinstance(final, ModelValue) else ("return_mean", "return")
    results = {name: final.mean, f"{kind}_low": final.low, f"{kind}_high": final.high}
    results |= {key: summary[key] for key in ("normalized_score", "epsilon")}
    for log in (run, run.pipeline):
        log.params(choices)
        log.tag("dataset_fingerprint", statement["dataset_fingerprint"])
        if isinstance(final, ModelValue):
            log.tag("model_value_note", NOTE)
        log.artifact(folder / "privacy.json")
        for key, value in results.items():
            if value is not None:
                log.metric(key, value)
    for epoch, point in enumerate(curve, start=1):
        run.metric(f"curve.{name}", point.mean, epoch)
    for file in (SUMMARY, CURVES, FIGURE):
        run.artifact(file)


if __name__ == "__main__":
    description = "Measure the policy's return in the true environment; without one, its value in the released model."
    sys.exit(run_stage("evaluate", description, body))
