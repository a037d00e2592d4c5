"""Stage ``evaluate``: the policy's return in the true environment; reads released things only."""

import csv
import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.evaluation.figure import draw_returns
from pipeline.evaluation.returns import episode_returns
from pipeline.evaluation.statistics import MeanInterval
from pipeline.files import read_json, replaced_file, write_json
from pipeline.params import Params
from pipeline.policy.exported import DeterministicPolicy
from pipeline.stages.runner import run_stage
from pipeline.tracking import StageRun

SUMMARY, CURVES, FIGURE = Path("metrics/summary.json"), Path("plots/curves.csv"), Path("plots/return.png")
_STATED = ("private", "epsilon", "epsilon_rdp", "delta", "unit", "units", "void", "spent_on_dataset")
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
    environment, chosen = params.chosen.environment, params.evaluation

    final = MeanInterval.of(
        episode_returns(environment, DeterministicPolicy.load(folder), chosen.episodes, chosen.seed)[0]
    )
    epochs = DeterministicPolicy.load_epochs(folder)
    curve = [
        MeanInterval.of(returns) for returns in episode_returns(environment, epochs, chosen.epoch_episodes, chosen.seed)
    ]

    summary = {
        "dataset": params.dataset,
        "env_id": environment,
        "variant": params.dynamics.variant,
        **{key: statement[key] for key in _STATED},
        "seed": params.seed,
        "return_mean": final.mean,
        "return_ci95": [final.low, final.high],
        "normalized_score": _score(params, final.mean),
        "episodes": chosen.episodes,
        "policy_sha256": hashlib.sha256((folder / "policy.safetensors").read_bytes()).hexdigest(),
        "seconds": {
            **{stage: read_json(Path(f"metrics/seconds/{stage}.json"))["seconds"] for stage in _STAGES},
            "evaluate": round(time.perf_counter() - started, 3),
        },
    }
    with replaced_file(CURVES) as fresh:
        _write_curve(fresh, curve, params)
    with replaced_file(FIGURE) as fresh:
        draw_returns(fresh, curve, summary)
    write_json(SUMMARY, summary)
    _log(run, summary, curve, statement, folder)


def _score(params: Params, mean: float) -> float | None:
    return None if params.chosen.score is None else params.chosen.score.of(mean)


def _write_curve(path: Path, curve: Sequence[MeanInterval], params: Params) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["epoch", "return_mean", "return_low", "return_high", "normalized_score"])
        for epoch, point in enumerate(curve, start=1):
            rows.writerow([epoch, point.mean, point.low, point.high, _score(params, point.mean)])


def _log(
    run: StageRun, summary: dict[str, Any], curve: Sequence[MeanInterval], statement: dict[str, Any], folder: Path
) -> None:
    """The stage's run gets everything; the pipeline's run gets what pipelines are compared by."""
    choices = {key: summary[key] for key in ("dataset", "env_id", "variant", "seed", "private", "epsilon", "delta")}
    low, high = summary["return_ci95"]
    results = {key: summary[key] for key in ("return_mean", "normalized_score", "epsilon")}
    results |= {"return_low": low, "return_high": high}
    for log in (run, run.pipeline):
        log.params(choices)
        log.tag("dataset_fingerprint", statement["dataset_fingerprint"])
        log.artifact(folder / "privacy.json")
        for name, value in results.items():
            if value is not None:
                log.metric(name, value)
    for epoch, point in enumerate(curve, start=1):
        run.metric("curve.return_mean", point.mean, epoch)
    for file in (SUMMARY, CURVES, FIGURE):
        run.artifact(file)


if __name__ == "__main__":
    sys.exit(run_stage("evaluate", "Measure the policy's return in the true environment.", body))
