"""Stage ``evaluate``: the policy's return in the true environment; reads released things only.

Where the dataset names no environment there is nothing to measure in: it gives the value in the released model instead,
and says so wherever it stands.
"""

import csv
import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.runner import run_stage
from primorl.config.params import Params
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.starts import StartModel
from primorl.evaluation.figure import Estimate, draw_returns
from primorl.evaluation.model_value import NOTE, ModelValue, values_by_member
from primorl.evaluation.returns import episode_returns
from primorl.evaluation.statistics import MeanInterval
from primorl.evaluation.summary import SeedSummary, Summary
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import DeterministicPolicy, seed_folders
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, replaced_file
from primorl.setup.horizon import declared_horizon
from primorl.tracking import Log, StageRun
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

PARTITIONS, MODEL = Path("data/partitions"), Path("models/dynamics")
SUMMARY, CURVES, FIGURE = Path("metrics/summary.json"), Path("plots/curves.csv"), Path("plots/return.png")
_STARTS = 4096  # drawn from the released first states
_STAGES = ("collect", "ingest", "partition", "train_model", "optimize_policy", "optimize_mopo")


def body(params: Params, run: StageRun) -> None:
    """Evaluate the final policy and those of every epoch; write the summary, the curve and its figure."""
    started = time.perf_counter()
    folder = Path("models/mopo" if params.dynamics.variant == "mopo" else "models/policy")
    statement = Statement.read(folder)
    config = PolicyConfig.read(folder)
    made_for, seeds = config.variant, config.seeds
    if made_for != params.dynamics.variant:
        raise PipelineError(
            f"{folder / 'config.json'}: found a policy of variant {made_for!r}, params.yaml asks for "
            f"{params.dynamics.variant!r}; run `dvc repro`"
        )
    manifest = Manifest.load(PARTITIONS / "manifest.json")
    folders = seed_folders(folder, seeds or [params.seed])
    results, said = (
        _in_the_model(params, manifest, folders)
        if params.chosen.environment is None
        else _in_the_environment(params, params.chosen.environment, manifest, folders)
    )
    over_seeds = Result.over(results)
    by_seed = tuple(
        SeedSummary(seed=seed, **_value(params, result.final), policy_sha256=_digest(where))
        for seed, result, where in zip(seeds or (), results, folders, strict=False)
    )
    found = Summary.of(
        statement,
        dataset=params.dataset,
        env_id=params.chosen.environment,
        variant=params.dynamics.variant,
        seed=params.seed,
        **_value(params, over_seeds.final),
        **said,
        seeds=seeds,
        by_seed=by_seed or None,
        policy_sha256=_digest(folder),
        seconds={
            **{stage: read_json(Path(f"metrics/seconds/{stage}.json"))["seconds"] for stage in _STAGES},
            "evaluate": round(time.perf_counter() - started, 3),
        },
    )
    summary = found.to_json()
    with replaced_file(CURVES) as fresh:
        _write_curve(fresh, over_seeds.curve, params)
    with replaced_file(FIGURE) as fresh:
        draw_returns(fresh, over_seeds.final, over_seeds.curve, summary)
    found.write(SUMMARY)
    _log(run, summary, over_seeds, statement, folder)
    for seed, result in zip(seeds or (), results, strict=False):
        with run.nested(f"seed {seed}") as log:
            _log_choices(log, {**summary, "seed": seed}, statement)
            _log_results(log, result, _value(params, result.final)["normalized_score"])


@dataclass(frozen=True)
class Result:
    """What a seed's final policy is worth, and those of its epochs."""

    final: Estimate
    curve: tuple[Estimate, ...]

    @classmethod
    def over(cls, seeds: Sequence["Result"]) -> "Result":
        """The mean over seeds, and what their spread says; of one seed, what was found."""
        curve = zip(*(result.curve for result in seeds), strict=True)
        return cls(_over([result.final for result in seeds]), tuple(_over(same) for same in curve))


def _over(seeds: Sequence[Any]) -> Estimate:
    kind: type[Any] = type(seeds[0])
    estimate: Estimate = kind.over(seeds)
    return estimate


def _in_the_environment(
    params: Params, environment: str, manifest: Manifest, folders: Sequence[Path]
) -> tuple[list[Result], dict[str, Any]]:
    """The final policy of every seed and those of its epochs, side by side, and how they were measured."""
    chosen, limit = params.evaluation, manifest.info.horizon
    final, epochs = _policies(folders)
    returns = episode_returns(environment, final, chosen.episodes, chosen.seed, limit)
    by_epoch = episode_returns(environment, epochs, chosen.epoch_episodes, chosen.seed, limit)
    results = [
        Result(MeanInterval.of(own), tuple(MeanInterval.of(epoch) for epoch in curve))
        for own, curve in zip(returns, by_epoch.reshape(len(folders), -1, chosen.epoch_episodes), strict=True)
    ]
    return results, {"episodes": chosen.episodes}


def _in_the_model(params: Params, manifest: Manifest, folders: Sequence[Path]) -> tuple[list[Result], dict[str, Any]]:
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

    final, epochs = _policies(folders)
    of_epochs = values(epochs, chosen.epoch_episodes)
    each = len(of_epochs) // len(folders)
    results = [
        Result(own, tuple(of_epochs[number * each : (number + 1) * each]))
        for number, own in enumerate(values(final, chosen.episodes))
    ]
    said = {
        "episodes": None,
        "model_value_members": ensemble.architecture.members,
        "model_value_rollouts": chosen.episodes,
        "model_value_horizon": horizon,
        "model_value_note": NOTE,
    }
    return results, said


def _policies(folders: Sequence[Path]) -> tuple[DeterministicPolicy, DeterministicPolicy]:
    """The final policies of all seeds side by side, and those of all epochs, a seed's one after the other."""
    final, epochs = (
        DeterministicPolicy.stacked([load(folder) for folder in folders])
        for load in (DeterministicPolicy.load, DeterministicPolicy.load_epochs)
    )
    return final, epochs


def _value(params: Params, final: Estimate) -> dict[str, Any]:
    """What the summary says of a policy: what was measured, or the model's value and that nothing was."""
    if isinstance(final, ModelValue):
        nothing = dict.fromkeys(("return_mean", "return_ci95", "normalized_score"))
        return nothing | {"model_value": final.mean, "model_value_range": (final.low, final.high)}
    return {
        "return_mean": final.mean,
        "return_ci95": (final.low, final.high),
        "normalized_score": _score(params, final.mean),
    }


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "policy.safetensors").read_bytes()).hexdigest()


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


def _log(run: StageRun, summary: dict[str, Any], result: Result, statement: Statement, folder: Path) -> None:
    """The stage's run gets everything; the pipeline's run gets what pipelines are compared by."""
    for log in (run, run.pipeline):
        _log_choices(log, summary, statement)
        log.artifact(folder / "privacy.json")
        if summary["epsilon"] is not None:
            log.metric("epsilon", summary["epsilon"])
    _log_results(run, result, summary["normalized_score"])
    _log_results(run.pipeline, Result(result.final, ()), summary["normalized_score"])
    for file in (SUMMARY, CURVES, FIGURE):
        run.artifact(file)


def _log_choices(log: Log, summary: dict[str, Any], statement: Statement) -> None:
    log.params({key: summary[key] for key in ("dataset", "env_id", "variant", "seed", "private", "epsilon", "delta")})
    log.tag("dataset_fingerprint", statement.dataset_fingerprint)


def _log_results(log: Log, result: Result, score: float | None) -> None:
    final, of_model = result.final, isinstance(result.final, ModelValue)
    name, kind = ("model_value", "model") if of_model else ("return_mean", "return")
    if of_model:
        log.tag("model_value_note", NOTE)
    for key, value in {name: final.mean, f"{kind}_low": final.low, f"{kind}_high": final.high}.items():
        log.metric(key, value)
    if score is not None:
        log.metric("normalized_score", score)
    for epoch, point in enumerate(result.curve, start=1):
        log.metric(f"curve.{name}", point.mean, epoch)


if __name__ == "__main__":
    description = "Measure the policy's return in the true environment; without one, its value in the released model."
    sys.exit(run_stage("evaluate", description, body))
