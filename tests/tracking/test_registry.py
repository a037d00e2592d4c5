"""Registered policies: they answer as `Policy.act` does, and the champion is the best that the budget allows."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from fastapi.testclient import TestClient
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import scoring_server
from mlflow.tracking import MlflowClient

from primorl.base.files import write_json
from primorl.config.params import from_plain
from primorl.evaluate.private.results import MEAN_RETURN
from primorl.policy.exported import DeterministicPolicy, save
from primorl.policy.loaded import load_policy
from primorl.policy.networks import initial_layers
from primorl.privacy.statement import Statement
from primorl.tracking.registry import CHOSEN, champion, register
from primorl.tracking.store import Log, Store
from tests.projects import project_settings
from tests.statements import PRIVATE

NAMES = ("age", "pressure", "dose before")
GENERATED = ("observation_0", "observation_1", "observation_2")
ROWS = np.array([[0.5, -0.5, 1.0], [0.0, 0.25, -1.0]])
ASKED = {"judged_by": "private units"}


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MlflowClient]:
    """A store that is nobody's default while a policy is registered."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    before = mlflow.get_tracking_uri()
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    client.create_experiment("e", artifact_location=(tmp_path / "runs").as_uri())
    yield client
    mlflow.set_tracking_uri(before)


def registered(store: MlflowClient, value: float = -3.5, said: Any = None, budget: Any = None, **more: Any) -> Path:
    """Register a policy whose weights and summary follow from ``value``, and ``said`` of it; return its folder."""
    one = torch.ones(2)
    layers = initial_layers((3, 4, 2), 1, torch.Generator().manual_seed(int(-10 * value)))
    discrete = more.get("discrete", False)
    policy = DeterministicPolicy(layers, torch.zeros(3), torch.ones(3), 0 * one if discrete else -one, one, discrete)
    folder = Path(f"policy{value}")
    folder.mkdir(exist_ok=True)
    save(folder, [policy], variant="private", environment=None, names=(more.get("names", NAMES), ("rate", "volume")))
    write_json(folder / "privacy.json", PRIVATE)
    experiment = store.get_experiment_by_name("e")
    assert experiment is not None
    run = Log(Store(store, "test"), store.create_run(experiment.experiment_id).info.run_id)
    plain = project_settings()
    plain["privacy"]["budget"]["epsilon"] = budget
    summary = {"dataset": "visits", "env_id": "Pendulum-v1", "epsilon": 0.5, "delta": 1e-5, "unit": "patient"}
    summary |= {"units": 900, "policy_sha256": f"{-value:08.3f}", "return_mean": value, "void": []}
    summary |= {"spent_on_dataset": {"epsilon": 0.75, "delta": 1e-6}} | (said or {})
    register(run, folder, summary, from_plain(plain), more.get("fingerprint", "ab"), "again" if said else "d")
    mlflow.set_tracking_uri(store.tracking_uri)  # for those who fetch it
    return folder


def aliases(store: MlflowClient) -> dict[str, int]:
    return {alias: int(number) for alias, number in store.get_registered_model("visits").aliases.items()}


def test_a_served_policy_takes_columns_by_name_and_quotes_no_value(store: MlflowClient) -> None:
    """By MLflow's own server. Twin: without names an array goes in. Both answer what `Policy.act` answers."""
    expected = load_policy(registered(store)).act(ROWS)
    model = mlflow.pyfunc.load_model("models:/visits@latest-private")
    table = pd.DataFrame(ROWS, columns=list(NAMES))
    np.testing.assert_array_equal(model.predict(table[["pressure", "dose before", "age"]]), expected)
    with pytest.raises(MlflowException, match="found no column pressure; needed are age, pressure, dose before"):
        model.predict(table.drop(columns="pressure"))
    plain = load_policy(registered(store, -4.0, names=GENERATED))
    server = TestClient(scoring_server.init(mlflow.pyfunc.load_model("models:/visits@latest-private")))
    answer = server.post("/invocations", json={"inputs": ROWS.tolist()})
    np.testing.assert_allclose(answer.json()["predictions"], plain.act(ROWS), rtol=1e-6)
    answer = server.post("/invocations", json={"inputs": np.full((2, 4), 0.123).tolist()})
    assert answer.status_code == 400
    assert answer.json()["message"] == "observation: found shape 2x4; allowed: [3] or [n, 3]"
    assert "0.123" not in answer.text
    discrete = load_policy(registered(store, -5.0, discrete=True))
    answers = mlflow.pyfunc.load_model("models:/visits@latest-private").predict(table)
    np.testing.assert_array_equal(answers, discrete.act(ROWS))
    assert answers.dtype == np.int64


def test_a_version_says_what_it_promises_and_nothing_of_it_is_pickled_or_names_a_path(store: MlflowClient) -> None:
    registered(store)
    folder = Path(mlflow.artifacts.download_artifacts("models:/visits/1"))
    files = {file.name for file in folder.rglob("*") if file.is_file()}
    assert {"served.py", "policy.safetensors", "config.json", "privacy.json", "MLmodel"} <= files
    assert not [name for name in files if name.endswith((".pkl", ".pickle", ".pt"))]
    text = (folder / "MLmodel").read_text(encoding="utf-8")
    flavor = yaml.safe_load(text)["flavors"]["python_function"]
    assert (flavor["model_code_path"], flavor["artifacts"]["policy"]["uri"]) == ("served.py", "artifacts/policy")
    assert not re.search(r"(^|[^:/\w])/\w", text), "`primorl release` refuses such paths in a bundle"
    known = {"dataset": "visits", "epsilon": "0.5", "delta": "1e-05", "unit": "patient", "units": "900"}
    known |= {"epsilon_of_weights": "0.5", "delta_of_weights": "1e-05", "spent_on_dataset": "0.75", "value": "-3.5"}
    known |= {"policy_sha256": "0003.500", "dataset_fingerprint": "ab"}
    known |= {"judged_by": "simulator", "judged_in": "Pendulum-v1"}
    assert store.get_model_version("visits", "1").tags == known


def test_the_champion_is_the_best_of_what_is_known_now(store: MlflowClient) -> None:
    """Evaluated again, a policy keeps its version; beyond a lowered budget or void, it has no alias any more."""
    for value in (-3.5, -2.0, -9.0):
        registered(store, value)
    assert aliases(store) == {"champion": 2, "latest-private": 3}
    registered(store, -3.5, said={"return_mean": -1.0})
    assert aliases(store) == {"champion": 1, "latest-private": 3}
    found = store.get_model_version("visits", "1")
    assert (found.tags["value"], found.description) == ("-1.0", "again")
    registered(store, -3.5, budget=0.1)
    assert aliases(store) == {"latest-private": 3}
    registered(store, -2.0, said={"void": ["noise is seeded"]})
    assert store.get_model_version("visits", "2").tags["void"] == "noise is seeded"
    assert aliases(store) == {"champion": 1, "latest-private": 3}
    registered(store, -9.0, said={"void": ["noise is seeded"]}, fingerprint="cd")
    assert "void" not in store.get_model_version("visits", "3").tags
    assert len(store.search_model_versions("name = 'visits'")) == 3
    assert "Private policies learned from `visits`" in store.get_registered_model("visits").description


def test_a_policy_that_was_advised_against_has_no_version_to_fetch(store: MlflowClient) -> None:
    """Twin: a trial of it is recommended."""
    trial, keep = ({"recommendation": {"answer": answer}} for answer in ("trial", "keep"))
    registered(store, -3.5, said=trial)
    registered(store, -2.0, said=keep)
    assert aliases(store) == {"champion": 1, "latest-private": 1}
    assert len(store.search_model_versions("name = 'visits'")) == 1
    registered(store, -3.5, said=keep)
    assert store.get_model_version("visits", "1").tags["recommendation"] == "keep"
    assert aliases(store) == {}
    registered(store, -3.5, said=trial)
    assert aliases(store) == {"champion": 1, "latest-private": 1}


def by_units(low: float, spent: float | None) -> dict[str, Any]:
    """What a summary says where the private units say what the policy is worth."""
    answer = {"of": "policy", "what": MEAN_RETURN, "estimator": "lstd", "value": low + 1, "ci95": (low, low + 2)}
    asked = {"private_evaluation": [answer | {"delta": 1e-5}], "spent_on_dataset": {"epsilon": spent, "delta": 1e-6}}
    return {"env_id": None, "return_mean": None} | asked


def statement_of(version: int) -> Statement:
    folder = Path(mlflow.artifacts.download_artifacts(f"models:/visits/{version}"))
    return Statement.read(folder / "artifacts/policy")


def test_where_private_units_choose_the_champion_their_answers_count(store: MlflowClient) -> None:
    """The ε of the weights, 0.5, is within the budget of 0.7. Twin: a policy that a simulator measured is champion."""
    registered(store, -1.0, said=by_units(5.0, 0.6) | {"private_evaluation": []})
    registered(store, -1.0, said=by_units(5.0, 0.75), budget=0.7)
    found = store.get_model_version("visits", "2")
    assert [found.tags[key] for key in ("epsilon", "delta")] == ["0.75", "1e-06"]
    assert [found.tags[key] for key in ("epsilon_of_weights", "delta_of_weights")] == ["0.5", "1e-05"]
    assert CHOSEN in found.description
    assert aliases(store) == {"latest-private": 2}
    before = Statement.read(Path("policy-1.0")).public_assumptions
    assert [statement_of(version).public_assumptions for version in (1, 2)] == [before, (*before, CHOSEN)]
    registered(store, -1.0, said=by_units(4.0, 0.9), budget=0.8)
    found = store.get_model_version("visits", "2")
    assert (found.tags["epsilon"], found.tags["epsilon_of_weights"], found.tags["value"]) == ("0.9", "0.5", "4.0")
    registered(store, -2.0, budget=0.7)
    assert CHOSEN not in store.get_model_version("visits", "3").description
    assert aliases(store) == {"champion": 3, "latest-private": 3}
    registered(store, -4.0, said=by_units(9.0, None), budget=0.8)
    assert "epsilon" not in store.get_model_version("visits", "4").tags, "a run without a guarantee ends the account"
    assert aliases(store) == {"champion": 3, "latest-private": 4}


def stored(number: int, value: float | None, epsilon: float = 0.5, **more: str) -> Any:
    """A version as the store lists it."""
    tags = {"unit": "patient", "delta": "1e-05", "dataset_fingerprint": "ab", "epsilon": str(epsilon)}
    if value is not None:
        tags |= {"value": str(value), "judged_by": "simulator", "judged_in": "Pendulum-v1"}
    return SimpleNamespace(version=str(number), tags=tags | more)


def best(versions: list[Any], budget: float | None = None, delta: float = 1e-5) -> str | None:
    return next((each.version for each in champion(versions, budget, delta)), None)


def test_no_champion_is_above_the_budget_advised_against_or_judged_by_others() -> None:
    """ε per visit does not compare with ε per patient. Twin of each: with the same tags the better one is champion."""
    by_hand = SimpleNamespace(version="11", tags={"epsilon": "0.1"})
    found = [stored(1, 5.0), stored(2, 9.0, 2.0), stored(3, 50.0, 0.1, **ASKED), stored(10, 5.0), by_hand]
    assert [best(found, budget) for budget in (1.0, None, 0.1)] == ["1", "2", "3"]
    assert best(found[:3], 1.0) == "3"
    assert best([by_hand]) is None
    for other in ({"unit": "visit"}, {"delta": "0.001"}, ASKED, {"recommendation": "keep"}):
        assert best([stored(1, 5.0, **other), stored(2, 1.0)]) == "2"
    assert best([stored(1, 5.0, dataset_fingerprint="cd"), stored(2, 1.0)]) == "1"
    for other, expected in (({}, "1"), ({"dataset_fingerprint": "cd"}, "2"), ({"judged_in": "lstd, 0.9"}, "2")):
        assert best([stored(1, 5.0, **ASKED | other), stored(2, 1.0, **ASKED)]) == expected
    unjudged = stored(2, None, unit="ward")
    assert best([stored(1, 5.0), unjudged]) is None, "the data were cut into wards, and nobody judged them yet"
    assert best([stored(1, 5.0, unit="ward"), unjudged]) == "1"
    found = [stored(1, 5.0, **ASKED), stored(2, 9.0, 2.0, judged_in="fqe", **ASKED)]
    assert [best(found, budget) for budget in (1.0, 2.0)] == ["1", "2"], "beyond the budget the units have no say"
    found = [stored(1, 5.0, delta="0.001")]
    assert [best(found, 0.6), best(found), best(found, 0.6, 1e-3)] == [None, "1", "1"]
