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

from primorl.config.params import from_plain
from primorl.evaluation.private.results import GAIN, MEAN_RETURN
from primorl.policy.exported import DeterministicPolicy, save
from primorl.policy.loaded import load_policy
from primorl.policy.networks import initial_layers
from primorl.privacy.statement import Statement
from primorl.project.files import write_json
from primorl.tracking.registry import CHOSEN, Entry, champion, judged, register
from primorl.tracking.store import Log, Store
from tests.projects import project_settings
from tests.statements import PRIVATE

NAMES = ("age", "pressure", "dose before")
GENERATED = ("observation_0", "observation_1", "observation_2")
ROWS = np.array([[0.5, -0.5, 1.0], [0.0, 0.25, -1.0]])


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MlflowClient]:
    """A store that is nobody's default while a policy is registered."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    before = mlflow.get_tracking_uri()
    yield MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_tracking_uri(before)


def registered(
    store: MlflowClient,
    value: float = -3.5,
    *,
    discrete: bool = False,
    named: bool = True,
    said: dict[str, Any] | None = None,
    budget: float | None = None,
) -> Path:
    """Register a policy of random weights, of which a summary says what `summary` does and more; its folder."""
    one = torch.ones(2)
    layers = initial_layers((3, 4, 2), 1, torch.Generator().manual_seed(int(-10 * value)))
    policy = DeterministicPolicy(layers, torch.zeros(3), torch.ones(3), 0 * one if discrete else -one, one, discrete)
    folder = Path(f"policy{value}")
    folder.mkdir(exist_ok=True)
    save(
        folder,
        [policy],
        variant="private",
        environment=None,
        names=(NAMES if named else GENERATED, ("rate", "volume")),
    )
    write_json(folder / "privacy.json", PRIVATE)
    experiment = store.get_experiment_by_name("e") or store.get_experiment(
        store.create_experiment("e", artifact_location=(Path.cwd() / "runs").as_uri())
    )
    run = Log(Store(store, "test"), store.create_run(experiment.experiment_id).info.run_id)
    plain = project_settings()
    plain["privacy"]["budget"]["epsilon"] = budget
    register(run, folder, Entry.of(summary(value) | (said or {}), from_plain(plain), "ab", description="d"))
    mlflow.set_tracking_uri(store.tracking_uri)  # for those who fetch it
    return folder


def summary(value: float, epsilon: float = 0.5) -> dict[str, Any]:
    return {
        "dataset": "visits",
        "epsilon": epsilon,
        "delta": 1e-5,
        "unit": "patient",
        "units": 900,
        "policy_sha256": f"{-value:08.3f}",
        "spent_on_dataset": {"epsilon": 0.75, "delta": 1e-6},
        "return_mean": value,
        "env_id": "Pendulum-v1",
        "void": [],
    }


def stored(number: int, value: float, epsilon: float = 0.5, **more: str) -> Any:
    """A version as the store lists it."""
    plain = {
        "judged_by": "simulator",
        "judged_in": "Pendulum-v1",
        "unit": "patient",
        "delta": "1e-05",
        "dataset_fingerprint": "ab",
    }
    return SimpleNamespace(version=str(number), tags=plain | {"value": str(value), "epsilon": str(epsilon)} | more)


def best(versions: list[Any], budget: float | None = None) -> str | None:
    return champion(versions, budget, 1e-5)


def test_columns_go_in_by_name_whatever_their_order(store: MlflowClient) -> None:
    """Twin: without names an array goes in. Both answer what `Policy.act` answers."""
    folder = registered(store)
    expected = load_policy(folder).act(ROWS)
    model = mlflow.pyfunc.load_model("models:/visits@latest-private")
    table = pd.DataFrame(ROWS, columns=list(NAMES))
    np.testing.assert_array_equal(model.predict(table[["pressure", "dose before", "age"]]), expected)
    with pytest.raises(MlflowException, match="found no column pressure; needed are age, pressure, dose before"):
        model.predict(table.drop(columns="pressure"))
    plain = registered(store, -4.0, named=False)
    model = mlflow.pyfunc.load_model("models:/visits@latest-private")
    np.testing.assert_array_equal(model.predict(ROWS), load_policy(plain).act(ROWS))


def asked(model: Any, content: dict[str, Any]) -> Any:
    """What MLflow's own server answers."""
    return TestClient(scoring_server.init(model)).post("/invocations", json=content)


def forms(rows: Any, *, named: bool) -> list[dict[str, Any]]:
    """Every way to send rows as JSON: as columns by name, and as arrays where the log names no columns."""
    names = NAMES if named else GENERATED
    records = [dict(zip(names, row, strict=True)) for row in rows]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    tables = [{"dataframe_split": {"columns": list(names), "data": rows}}, {"dataframe_records": records}]
    if named:
        return [*tables, {"inputs": records}, {"inputs": columns}, {"instances": records}]
    return [*tables, {"inputs": rows}, {"instances": rows}]


def test_a_model_s_file_names_no_path_of_this_machine(store: MlflowClient) -> None:
    """`primorl release` refuses such paths in a bundle."""
    registered(store)
    text = Path(mlflow.artifacts.download_artifacts("models:/visits/1"), "MLmodel").read_text(encoding="utf-8")
    flavor = yaml.safe_load(text)["flavors"]["python_function"]
    assert (flavor["model_code_path"], flavor["artifacts"]["policy"]["uri"]) == ("served.py", "artifacts/policy")
    assert not re.search(r"(^|[^:/\w])/\w", text)


def test_a_served_policy_refuses_a_wrong_width_in_one_line_without_values(store: MlflowClient) -> None:
    """By MLflow's own server. Twin: the right width is answered."""
    folder = registered(store, named=False)
    server = TestClient(scoring_server.init(mlflow.pyfunc.load_model("models:/visits/1")))
    answer = server.post("/invocations", json={"inputs": ROWS.tolist()})
    np.testing.assert_allclose(answer.json()["predictions"], load_policy(folder).act(ROWS), rtol=1e-6)
    answer = server.post("/invocations", json={"inputs": np.full((2, 4), 0.123).tolist()})
    assert answer.status_code == 400
    assert answer.json()["message"] == "observation: found shape 2x4; allowed: [3] or [n, 3]"
    assert "0.123" not in answer.text


def test_discrete_actions_are_numbers(store: MlflowClient) -> None:
    folder = registered(store, discrete=True)
    answers = mlflow.pyfunc.load_model("models:/visits@champion").predict(pd.DataFrame(ROWS, columns=list(NAMES)))
    np.testing.assert_array_equal(answers, load_policy(folder).act(ROWS))
    assert answers.dtype == np.int64


def test_nothing_of_a_version_is_pickled_and_it_says_what_it_promises(store: MlflowClient) -> None:
    registered(store)
    (version,) = store.search_model_versions("name = 'visits'")
    folder = Path(mlflow.artifacts.download_artifacts("models:/visits/1"))
    files = {file.name for file in folder.rglob("*") if file.is_file()}
    assert {"served.py", "policy.safetensors", "config.json", "privacy.json", "MLmodel"} <= files
    assert not [name for name in files if name.endswith((".pkl", ".pickle", ".pt"))]
    assert version.tags == {
        "dataset": "visits",
        "epsilon": "0.5",
        "delta": "1e-05",
        "unit": "patient",
        "units": "900",
        "spent_on_dataset": "0.75",
        "policy_sha256": version.tags["policy_sha256"],
        "dataset_fingerprint": "ab",
        "value": "-3.5",
        "judged_by": "simulator",
        "judged_in": "Pendulum-v1",
    }


def test_the_champion_is_the_best_and_the_latest_is_the_newest(store: MlflowClient) -> None:
    for value in (-3.5, -2.0, -9.0):
        registered(store, value)
    assert int(store.get_model_version_by_alias("visits", "champion").version) == 2
    assert int(store.get_model_version_by_alias("visits", "latest-private").version) == 3


def test_a_policy_that_is_evaluated_again_is_no_new_version_and_has_its_new_value(store: MlflowClient) -> None:
    """Evaluated with another seed, the second is the better one after all. Twin: other weights are a new version."""
    folder = registered(store, -3.5)
    registered(store, -2.0)
    assert int(store.get_model_version_by_alias("visits", "champion").version) == 2
    again = summary(-3.5) | {"return_mean": -1.0}
    (run,) = store.search_runs([store.get_experiment_by_name("e").experiment_id], max_results=1)
    log = Log(Store(store, "test"), run.info.run_id)
    register(log, folder, Entry.of(again, from_plain(project_settings()), "ab", description="again"))
    assert len(store.search_model_versions("name = 'visits'")) == 2
    assert int(store.get_model_version_by_alias("visits", "champion").version) == 1
    assert int(store.get_model_version_by_alias("visits", "latest-private").version) == 2
    found = store.get_model_version("visits", "1")
    assert (found.tags["value"], found.description) == ("-1.0", "again")


def test_where_nobody_qualifies_the_old_champion_goes(store: MlflowClient) -> None:
    """The budget is lowered below the champion's ε. Twin: within the budget it stays."""
    folder = registered(store)
    (run,) = store.search_runs([store.get_experiment_by_name("e").experiment_id])
    log, plain = Log(Store(store, "test"), run.info.run_id), project_settings()
    for budget, expected in ((1.0, {"champion", "latest-private"}), (0.1, {"latest-private"})):
        plain["privacy"]["budget"]["epsilon"] = budget
        register(log, folder, Entry.of(summary(-3.5), from_plain(plain), "ab", description="d"))
        assert set(store.get_registered_model("visits").aliases) == expected


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
    registered(store, -1.0, said=by_units(5.0, 0.75), budget=0.7)
    found = store.get_model_version("visits", "1")
    assert {key: found.tags[key] for key in ("epsilon", "delta", "epsilon_of_weights", "delta_of_weights")} == {
        "epsilon": "0.75",
        "delta": "1e-06",
        "epsilon_of_weights": "0.5",
        "delta_of_weights": "1e-05",
    }
    assert CHOSEN in found.description
    assert set(store.get_registered_model("visits").aliases) == {"latest-private"}
    assert statement_of(1).public_assumptions == (*Statement.read(Path("policy-1.0")).public_assumptions, CHOSEN)
    registered(store, -2.0, budget=0.7)
    assert CHOSEN not in (text := store.get_model_version("visits", "2")).description
    assert "epsilon_of_weights" not in text.tags
    assert CHOSEN not in statement_of(2).public_assumptions
    assert int(store.get_model_version_by_alias("visits", "champion").version) == 2


def test_a_policy_that_the_units_judge_later_is_a_new_version_whose_statement_says_so(store: MlflowClient) -> None:
    """Twin: asked again, with more spent, it keeps its version and has the new account."""
    unjudged = by_units(5.0, 0.6) | {"private_evaluation": []}
    registered(store, -1.0, said=unjudged)
    registered(store, -1.0, said=by_units(5.0, 0.75))
    registered(store, -1.0, said=by_units(4.0, 0.9))
    assert [found.version for found in store.search_model_versions("name = 'visits'")] == [2, 1]
    found = store.get_model_version("visits", "2").tags
    assert (found["epsilon"], found["epsilon_of_weights"], found["value"]) == ("0.9", "0.5", "4.0")
    assert CHOSEN not in statement_of(1).public_assumptions
    assert CHOSEN in statement_of(2).public_assumptions


def test_what_the_units_say_of_a_version_beyond_the_budget_has_no_say() -> None:
    """It does not decide which question counts either. Twin: within the budget it does, and no other one compares."""
    asked = {"judged_by": "private units"}
    versions = [stored(1, 5.0, 0.5, **asked), stored(2, 9.0, 2.0, judged_in="fqe, discount 0.9", **asked)]
    assert best(versions, 1.0) == "1"
    assert best(versions, 2.0) == "2"


def test_no_champion_is_above_the_cap_or_judged_by_others() -> None:
    """Twin: with another cap, or another judge of the newest, it is another version."""
    found = [
        stored(1, 5.0),
        stored(2, 9.0, 2.0),
        stored(3, 50.0, 0.1, judged_by="private units"),
        stored(10, 5.0),
        SimpleNamespace(version="11", tags={"epsilon": "0.1"}),
    ]
    assert best(found, 1.0) == "1"
    assert best(found, None) == "2"
    assert best(found[:3], 1.0) == "3"
    assert best(found, 0.1) == "3"
    assert best(found[-1:], None) is None


def test_a_champion_has_the_newest_s_unit_delta_and_judges() -> None:
    """ε per visit does not compare with ε per patient. Twin: with the same of all three the better one is champion."""
    newest = stored(2, 1.0)
    assert best([stored(1, 5.0), newest]) == "1"
    assert best([stored(1, 5.0, dataset_fingerprint="cd"), newest]) == "1"
    for other in ({"unit": "visit"}, {"delta": "0.001"}, {"judged_by": "private units"}):
        assert best([stored(1, 5.0, **other), newest]) == "2"
    asked = {"judged_by": "private units"}
    newest = stored(2, 1.0, **asked)
    assert best([stored(1, 5.0, **asked), newest]) == "1"
    assert best([stored(1, 5.0, dataset_fingerprint="cd", **asked), newest]) == "2"
    assert best([stored(1, 5.0, judged_in="lstd, discount 0.9", **asked), newest]) == "2"


def test_the_newest_version_says_for_whom_also_if_nobody_judged_it() -> None:
    """The data were cut into patients instead of visits: no policy of visits is champion. Twin: the same unit."""
    unjudged = stored(2, 0.0, unit="ward")
    for tag in ("value", "judged_by", "judged_in"):
        del unjudged.tags[tag]
    assert best([stored(1, 5.0), unjudged]) is None
    assert best([stored(1, 5.0, unit="ward"), unjudged]) == "1"


def test_an_epsilon_at_a_larger_delta_is_not_within_a_budget() -> None:
    """Twin: without a budget, or at its δ, it is."""
    found = [stored(1, 5.0, delta="0.001")]
    assert champion(found, 0.6, 1e-5) is None
    assert champion(found, None, 1e-5) == champion(found, 0.6, 1e-3) == "1"


def test_what_is_found_void_has_no_alias_any_more(store: MlflowClient) -> None:
    """Twin: the version before it has both again. Of a void policy that is not there no version is made."""
    registered(store, -3.5)
    folder = registered(store, -2.0)
    (run,) = store.search_runs([store.get_experiment_by_name("e").experiment_id], max_results=1)
    log, void = Log(Store(store, "test"), run.info.run_id), summary(-2.0) | {"void": ["noise is seeded"]}
    register(log, folder, Entry.of(void, from_plain(project_settings()), "ab", description="d"))
    assert store.get_model_version("visits", "2").tags["void"] == "noise is seeded"
    assert store.get_registered_model("visits").aliases == {"champion": 1, "latest-private": 1}
    assert "Private policies learned from `visits`" in store.get_registered_model("visits").description
    register(log, folder, Entry.of(void, from_plain(project_settings()), "cd", description="d"))
    assert len(store.search_model_versions("name = 'visits'")) == 2


def test_a_policy_that_was_advised_against_is_no_champion() -> None:
    """Twin: one that is worth a trial is."""
    for advice, expected in (("keep", "2"), ("more_data", "2"), ("trial", "1")):
        assert best([stored(1, 5.0, recommendation=advice), stored(2, 1.0)]) == expected


def test_a_policy_is_worth_its_measured_return_or_the_lower_end_of_what_the_units_say() -> None:
    """The value in the model and free answers judge nothing."""
    answers = [
        {"of": "policy", "what": MEAN_RETURN, "value": -7.5, "ci95": (-8.0, -7.0), "delta": 1e-5},
        {"of": "policy", "what": MEAN_RETURN, "value": -8.0, "ci95": (-9.0, -7.0), "delta": 1e-5},
        {"of": "policy", "what": MEAN_RETURN, "value": -9.5, "ci95": None, "delta": 1e-5},
        {"of": "policy", "what": MEAN_RETURN, "value": -50.0, "ci95": (-60.0, -40.0), "delta": None},
        {"of": "policy", "what": GAIN, "value": -50.0, "ci95": (-60.0, -40.0), "delta": 1e-5},
        {"of": "behaviour", "what": MEAN_RETURN, "value": -50.0, "ci95": (-99.0, 0.0), "delta": 1e-5},
    ]
    assert judged({"return_mean": -2.0, "private_evaluation": answers}) == (-2.0, "simulator")
    assert judged({"return_mean": None, "private_evaluation": answers}) == (-9.0, "private units")
    assert judged({"return_mean": None, "model_value": 3.0}) == (None, None)
    assert judged({"return_mean": -1.0, "by_seed": [{"return_mean": -4.0}]}) == (-4.0, "simulator")


def test_a_run_left_without_a_guarantee_is_no_champion(store: MlflowClient) -> None:
    """Twin: at a budget of 0.8 the account of 0.75 is within. A run without a guarantee on the same people ends it."""
    registered(store, -1.0, said=by_units(5.0, 0.75), budget=0.8)
    registered(store, -2.0, said=by_units(9.0, None), budget=0.8)
    assert "epsilon" not in store.get_model_version("visits", "2").tags
    assert int(store.get_model_version_by_alias("visits", "champion").version) == 1
