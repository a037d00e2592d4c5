"""What `evaluate` measures, writes and logs, and the statements that it refuses."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from pipeline import evaluate
from primorl.base import PipelineError
from primorl.base.files import (
    CURVES,
    MODEL,
    PLAN,
    POLICY,
    PRIVATE_EVALUATION,
    SUMMARY,
    file_sha256,
    read_json,
    write_json,
)
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.evaluate.description import text
from primorl.evaluate.private.results import (
    Answer,
    PrivateEvaluation,
    Verdict,
    Veto,
)
from primorl.evaluate.returns import episode_returns
from primorl.evaluate.summary import Summary
from primorl.policy.config import write_nothing
from primorl.policy.exported import DeterministicPolicy, save
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.figures import state_figures
from primorl.privacy.composition import compose_statement, count_held, list_held_by_clone
from primorl.privacy.mechanism.mechanism import GaussianQuery
from primorl.privacy.statement import SpentOnDataset
from primorl.tracking import results
from tests import statements
from tests.data.builders import INFO, episodes, table
from tests.evaluate.conftest import random_policy
from tests.pipeline.training_project import edited, write_model, write_tables
from tests.projects import from_plain, project_settings

STAGES = ["collect", "ingest", "partition", "plan", "train_model", "clone_behaviour"]
STAGES += ["optimize_policy", "evaluate_private"]
DATA = replace(INFO, dataset="pendulum-replay")
OF_THESE_DATA: dict[str, Any] = {"units": 9, "dataset_fingerprint": INFO.dataset_fingerprint}
OF_TRAINING = replace(statements.OF_TRAINING, **OF_THESE_DATA)
STATEMENT, NOT_PRIVATE = statements.PRIVATE | OF_THESE_DATA, statements.NOT_PRIVATE | OF_THESE_DATA
EPOCHS = [random_policy(1, 3, 2.0, seed) for seed in range(3)]
ROWS = table(episodes(3), names=["p0", "p1", "p2"])


@pytest.fixture
def project(folder_with_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for seconds, stage in enumerate(STAGES):
        write_json(Path(f"metrics/stages/{stage}.json"), {"seconds": float(seconds), "metrics": []})
    write_json(PLAN, {"settings": {"dynamics.model": {"value": "linear"}}})
    place_seeds({0: EPOCHS})
    write_json(POLICY / "privacy.json", STATEMENT)
    write_json(MODEL / "privacy.json", STATEMENT)
    write_nothing(Path("models/behaviour"))
    write_tables(table(episodes(9)), ROWS, DATA)
    PrivateEvaluation(
        dataset="pendulum-replay",
        unit="trajectory",
        units=9,
        discount=1.0,
        horizon=DATA.horizon,
    ).write(PRIVATE_EVALUATION)
    return folder_with_store


def place_seeds(seeds: dict[int, list[DeterministicPolicy]]) -> None:
    facts: Any = {"variant": "private", "environment": "Pendulum-v1"}
    several = list(seeds) if len(seeds) > 1 else None
    for number, (seed, epochs) in enumerate(seeds.items()):
        folder = POLICY if number == 0 else POLICY / f"seeds/{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        save(folder, epochs, seeds=None if number else several, **facts)


def chosen(variant: str = "private", score: dict[str, float] | None = None) -> Params:
    seen = {"episodes": 5, "epoch_episodes": 2, "seed": 9}
    own = from_plain(project_settings())
    return edited(own, dynamics={"variant": variant}, chosen={"score": score}, evaluation=seen)


def run(selected: Params) -> None:
    evaluate.body(selected, StageLog())


def refused(says: str, selected: Params | None = None) -> None:
    with pytest.raises(PipelineError, match=says) as refusal:
        evaluate.body(selected or chosen(), StageLog())
    assert "\n" not in str(refusal.value)
    assert not SUMMARY.exists()


@pytest.mark.usefixtures("project")
def test_a_policy_whose_statement_is_not_that_of_what_was_trained_is_refused() -> None:
    def state(**statements: Any) -> None:
        for folder in ("policy", "dynamics", "behaviour"):
            Path(f"models/{folder}/privacy.json").unlink(missing_ok=True)
        for folder, content in statements.items():
            write_json(Path(f"models/{folder}/privacy.json"), content)

    for key, value in {"units": 9999, "dataset_fingerprint": "ab" * 32, "epsilon": 3.0}.items():
        state(policy=STATEMENT | {key: value}, dynamics=STATEMENT)
        refused(f"{key}: not that of models/dynamics/privacy.json")
    for admitted in ({"void": ["noise is seeded"]}, NOT_PRIVATE):
        state(policy=STATEMENT, dynamics=STATEMENT | admitted)
        refused("not that of models/dynamics/privacy.json")
    state(policy=STATEMENT)
    refused("models/dynamics/privacy.json: ")
    state(policy=STATEMENT, dynamics=STATEMENT)
    refused("found a policy of variant 'private'", chosen("no_privacy"))


@pytest.mark.usefixtures("project")
def test_a_clone_in_scales_that_private_people_told_counts_the_model() -> None:
    """Twin: of a model that asked nobody for scales, the clone counts itself alone."""
    training = Training(0.1, 4.083, 150, (14.0,))
    asked = (GaussianQuery("scales", 1.0, 14.0).statement(1e-5),)
    figures = state_figures(training.event, training.compute_spent(1e-5))
    model = replace(OF_TRAINING, charge="model", queries=asked, **figures)
    clone = replace(OF_TRAINING, charge="clone")
    counted = count_held(clone, list_held_by_clone(model))
    assert list_held_by_clone(clone) == {}
    both = compose_statement({"models/dynamics": model, "models/behaviour": counted})
    for folder, own in (("dynamics", model), ("policy", both), ("behaviour", clone)):
        write_json(Path(f"models/{folder}/privacy.json"), own.to_json())
    refused("behaviour/privacy.json: mechanisms: not those of models/dynamics and of its own")
    write_json(Path("models/behaviour/privacy.json"), counted.to_json())
    run(chosen())
    SUMMARY.unlink()
    write_json(POLICY / "privacy.json", model.to_json())  # as if there were no clone
    refused("not that of models/dynamics/privacy.json and models/behaviour/privacy.json")


def test_the_summary_and_mlflow_say_what_the_policy_earns(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected = chosen(score={"low": -1500.0, "high": 0.0, "scale": 1000.0})
    losses = {"seconds": 4.0, "metrics": [["public_loss", 0.5, 2]]}
    write_json(Path("metrics/stages/train_model.json"), losses)
    run(selected)
    run(edited(selected, privacy={"budget": {"epsilon": 9.0}}))
    (listed,) = results(selected)
    assert None not in (listed["value"], listed["epsilon"])

    summary = json.loads(SUMMARY.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    for key in ("return", "public_return"):
        low, high = summary.pop(f"{key}_ci95")
        assert low < summary[f"{key}_mean"] < high
    seconds = summary.pop("seconds")
    assert seconds.pop("evaluate") > 0
    assert seconds == {stage: float(place) for place, stage in enumerate(STAGES)}
    run_of: dict[str, Any] = {"dataset": "pendulum-replay", "env_id": "Pendulum-v1"}
    run_of |= {"variant": "private", "seed": 0}
    stated = {key: STATEMENT[key] for key in ("private", "epsilon", "delta", "unit")}
    earned = episode_returns("Pendulum-v1", EPOCHS[-1], 5, seed=9)[0].mean()
    assert summary == run_of | stated | {
        "format": 1,
        "epsilon_rdp": 1.31,
        "units": 9,
        "void": [],
        "spent_on_dataset": STATEMENT["spent_on_dataset"],
        "return_mean": pytest.approx(earned, rel=1e-3),
        "normalized_score": pytest.approx(1000 * (summary["return_mean"] + 1500) / 1500),
        "episodes": 5,
        "policy_sha256": file_sha256(POLICY / "policy.safetensors"),
        "curve_sha256": file_sha256(CURVES),
        "public_return_mean": pytest.approx(ROWS["reward"].to_numpy().sum() / 3),
        "public_trajectories": 3,
    }
    store, logged = logged_run(project)
    for name in ("return_mean", "normalized_score", "epsilon"):
        assert logged.data.metrics[name] == summary[name]
    assert logged.data.metrics["train_model.public_loss"] == 0.5
    note = logged.data.tags["mlflow.note.content"]
    assert note == "of the policy: ε = 1.19, δ = 1e-05 per trajectory"
    assert logged.data.params.keys() >= (run_of | stated | {"units": 9}).keys()
    folders = ("metrics", "plots", "models/policy")
    found = {f.path for each in folders for f in store.list_artifacts(logged.info.run_id, each)}
    assert found >= {"models/policy/privacy.json", "metrics/summary.json", "plots/curves.csv"}
    assert len(store.get_metric_history(logged.info.run_id, "curve.return_mean")) == 3


def logged_run(project: Path) -> tuple[MlflowClient, Any]:
    store = MlflowClient(f"sqlite:///{project}/mlflow.db")
    experiment = store.get_experiment_by_name("pendulum-replay")
    assert experiment is not None
    (run,) = store.search_runs([experiment.experiment_id], "metrics.epsilon <= 2")
    return store, run


SEEDS = {4: EPOCHS, 7: [random_policy(1, 3, 2.0, seed) for seed in range(20, 23)]}


def test_several_seeds_are_one_result_with_the_spread_over_them(project: Path) -> None:
    place_seeds(SEEDS)
    run(chosen())
    summary = json.loads(SUMMARY.read_text(encoding="utf-8"), parse_constant=pytest.fail)

    means = [
        float(episode_returns("Pendulum-v1", each[-1], 5, seed=9).mean()) for each in SEEDS.values()
    ]
    middle, half = sum(means) / 2, 12.706 * abs(means[0] - means[1]) / 2
    assert summary["return_mean"] == pytest.approx(middle, rel=1e-3)
    assert summary["return_ci95"] == pytest.approx([middle - half, middle + half], rel=1e-3)
    assert "over 2 seeds, 5 episodes each" in text(Summary.read(SUMMARY))
    _, logged = logged_run(project)
    assert logged.data.metrics["return_mean"] == summary["return_mean"]
    folders = (POLICY, POLICY / "seeds/7")
    for own, seed, mean, folder in zip(
        summary["by_seed"], summary["seeds"], means, folders, strict=True
    ):
        assert (own["seed"], own["return_mean"]) == (seed, pytest.approx(mean, rel=1e-3))
        assert own["policy_sha256"] == file_sha256(folder / "policy.safetensors")
        assert logged.data.metrics[f"seed_{seed}.return_mean"] == own["return_mean"]


@pytest.mark.usefixtures("project")
def test_the_summary_repeats_what_the_private_units_answered_about_this_model_and_policy() -> None:
    write_model(STATEMENT)
    rest: dict[str, Any] = {"covers": "noise", "bias": "none", "delta": 1e-5}
    of_today = rest | {"what": "mean return", "of": "behaviour", "estimator": "charged"}
    spread = rest | {"what": "quantile", "of": "behaviour", "estimator": "charged"}
    sign = Veto(kind="warned", reason="the reward may not be learned")
    answers = replace(
        PrivateEvaluation.read(PRIVATE_EVALUATION),
        estimates=(
            Answer(**of_today, value=-9.9, ci95=(-11.1, -8.7), epsilon=0.2),
            Answer(**spread, value=0.5, ci95=(0.4, 0.6), epsilon=0.2),
        ),
        total=SpentOnDataset(epsilon=2.75, delta=1e-5, charges=4),
        verdict=Verdict(vetoes=(sign,)),
        model_sha256=file_sha256(MODEL / "model.safetensors"),
        policy_sha256=file_sha256(POLICY / "policy.safetensors"),
    )
    for key in ("model_sha256", "policy_sha256"):
        other: dict[str, Any] = {key: "0" * 64}
        replace(answers, **other).write(PRIVATE_EVALUATION)
        refused(rf"{key}: the answers are not about models/.*; run `dvc repro`")
    answers.write(PRIVATE_EVALUATION)
    run(chosen())
    summary = read_json(SUMMARY)
    assert [found["of"] for found in summary["private_evaluation"]] == ["behaviour"]
    assert summary["model_verdict"]["vetoes"][0]["reason"] == sign.reason
    assert summary["spent_on_dataset"]["epsilon"] == 2.75
    assert summary["epsilon"] == STATEMENT["epsilon"], "the model's own"
    for line in (
        "in all, up to this run: ε = 2.75, ",
        "today    -9.9 (-11.1 to -8.7) by charged (ε 0.2)",
    ):
        assert line in text(Summary.read(SUMMARY))


@pytest.mark.usefixtures("project")
def test_without_a_simulator_the_value_in_the_model_stands_in_and_is_called_so() -> None:
    """What it is is tested in tests/evaluate."""
    write_model(STATEMENT)
    score = {"low": -1500.0, "high": 0.0, "scale": 1000.0}
    log = chosen(score=score)
    run(edited(log, chosen={"environment": None}, policy={"starts": "public"}))
    summary = json.loads(SUMMARY.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    for key in ("env_id", "return_mean", "return_ci95", "normalized_score", "episodes"):
        assert summary[key] is None
    low, high = summary["model_value_range"]
    assert low < summary["model_value"] < high
    sizes = [summary[f"model_value_{name}"] for name in ("members", "rollouts", "horizon")]
    assert sizes == [2, 5, 200]
    rows = list(csv.DictReader(Path("plots/curves.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["return_mean"] for row in rows] == [""] * len(EPOCHS)
    assert float(rows[-1]["model_value"]) == pytest.approx(summary["model_value"])
    assert "return   not measured: there is no simulator" in text(Summary.read(SUMMARY))
    assert "None" not in text(Summary.read(SUMMARY))
