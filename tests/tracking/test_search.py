"""Results that only a model judges are not ranked by its opinion."""

from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from primorl.tracking.search import results
from tests.projects import project_settings, write_settings


def test_a_model_s_own_opinion_ranks_nothing_and_is_no_interval(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: what the private units say does rank, and comes first."""
    monkeypatch.chdir(tmp_path)
    Path("mlflow.db").write_bytes(empty_store.read_bytes())
    params = write_settings(project_settings())
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.create_experiment(params.dataset)
    for start, metrics in enumerate(
        (
            {"private_value": 1.0, "private_value_low": 0.0, "private_value_high": 2.0, "model_value": 0.5},
            {"model_value": 9.0, "model_low": 8.0, "model_high": 10.0},
            {"private_value": 2.0, "private_value_low": 1.0, "private_value_high": 3.0},
            {"model_value": 4.0, "model_low": 3.0, "model_high": 5.0},
        )
    ):
        run = client.create_run(experiment, start_time=start, tags={"dataset": params.dataset}).info.run_id
        client.log_param(run, "private", "True")
        for name, value in metrics.items():
            client.log_metric(run, name, value)
    found = results(params, most_epsilon=None, sweeps=False)
    assert [(each.value, each.by) for each in found] == [
        (2.0, "private units"),
        (1.0, "private units"),
        (4.0, "model"),
        (9.0, "model"),
    ]
    assert [(each.low, each.high) for each in found[1:3]] == [(0.0, 2.0), (None, None)]
