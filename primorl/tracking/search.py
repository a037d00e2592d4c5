"""Results that MLflow knows of, best first. Reads the store, and creates nothing."""

from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.tracking.store import connected, store_uri

if TYPE_CHECKING:
    from mlflow.entities import Run

_MOST_RUNS = 50_000  # that MLflow gives in one answer
_JUDGES = {
    "simulator": ("return_mean", "return_low", "return_high"),
    "private units": ("private_value", "private_value_low", "private_value_high"),
    "model": ("model_value", "", ""),
    "nobody": ("", "", ""),
}
"""By judge, the metrics of a result's value and its interval. What members of a model say is no interval."""
_RANKED = "simulator", "private units"
"""Judges by whose values results are compared; a model's own opinion compares nothing."""


@dataclass(frozen=True)
class Result:
    """A pipeline's run.

    Attributes:
        run: its id.
        name: its name.
        epsilon: ε of its policy; None: no guarantee, or a void one.
        delta: δ of its ε; None: no guarantee.
        unit: unit of its ε; None: a run of before this was logged.
        spent: ε of all charges on the same units at that time; None: no guarantee was left.
        value: mean return in the simulator, or what the private units or the model say; None: none of them.
        low: lower end of its interval; None: unknown.
        high: upper end.
        by: judge of the value: `simulator`, `private units`, `model`, or nobody.
        finished: when.
        settings: those of ``params.yaml`` that are not the same in all results that were asked for, by dotted key.
    """

    run: str
    name: str
    epsilon: float | None
    delta: float | None
    unit: str | None
    spent: float | None
    value: float | None
    low: float | None
    high: float | None
    by: str
    finished: datetime
    settings: dict[str, str]


def results(params: Params, *, most_epsilon: float | None, sweeps: bool) -> list[Result]:
    """Results on the dataset that params.yaml names, best first: by the simulator, by the private units; then the rest.

    Those that a model alone judges, or nobody, are not compared: the newest stands first.

    Args:
        params: name the store, the experiment and the dataset.
        most_epsilon: the greatest ε, of the dataset's unit at a δ of at most ``privacy.budget.delta``; None: also runs
            without a guarantee, of other units and at other δ.
        sweeps: also the trials of sweeps.

    Raises:
        PipelineError: there is no store, or it cannot be used.
    """
    uri = store_uri(params)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///").partition("?")[0]).exists():
        raise PipelineError("mlflow.db: not there: nothing was run yet; run `dvc repro`")
    wanted = f"tags.dataset = '{params.dataset}' and params.private != ''"
    if most_epsilon is not None:
        wanted += f" and metrics.epsilon <= {most_epsilon!r}"
    with connected(uri) as client:
        experiment = client.get_experiment_by_name(params.tracking.experiment or params.dataset)
        if experiment is None:
            return []
        best = [*(f"metrics.{_JUDGES[judge][0]} DESC" for judge in _RANKED), "attributes.start_time DESC"]
        runs = client.search_runs([experiment.experiment_id], wanted, max_results=_MOST_RUNS, order_by=best)
    found = [_result(run) for run in runs if sweeps or "sweep" not in run.data.tags]
    if most_epsilon is not None:
        most_delta = params.privacy.budget.delta
        found = [each for each in found if each.unit == params.chosen.unit and (each.delta or inf) <= most_delta]
    values: dict[str, list[str]] = {}
    for each in found:
        for key, value in each.settings.items():
            values.setdefault(key, []).append(value)
    # A fitted setting is logged by the run that fitted it, and not by those that restore what it paid for.
    differ = {key for key, said in values.items() if len(said) == len(found) and len(set(said)) > 1}
    return [replace(each, settings={key: each.settings[key] for key in sorted(differ)}) for each in found]


def _result(run: "Run") -> Result:
    metrics, given = run.data.metrics, run.data.params
    epsilon = metrics.get("epsilon")
    by = next(judge for judge, names in _JUDGES.items() if names[0] in metrics or judge == "nobody")
    value, low, high = (metrics.get(name) for name in _JUDGES[by])
    end: Any = run.info.end_time or run.info.start_time
    return Result(
        run=run.info.run_id,
        name=run.data.tags.get("DVC_EXP_NAME") or run.info.run_name or run.info.run_id,
        epsilon=epsilon,
        delta=None if epsilon is None or "delta" not in given else float(given["delta"]),
        unit=given.get("unit"),
        spent=metrics.get("epsilon_spent_on_dataset"),
        value=value,
        low=low,
        high=high,
        by=by,
        finished=datetime.fromtimestamp(end / 1000),
        settings={key: given[key] for key in given if "." in key or key == "seed"},
    )
