import csv
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.tracking import MlflowClient

from pipeline import evaluate
from primorl.config import params
from primorl.config.params import Params
from primorl.dynamics.config import Variant
from primorl.evaluation import episode
from primorl.evaluation.returns import episode_returns
from primorl.evaluation.wording import text
from primorl.policy.exported import DeterministicPolicy, save
from primorl.privacy.statement import ProfilePoint
from primorl.privacy.together import together
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.project.paths import MANIFEST, PRIVATE_EVALUATION
from primorl.setup.paid_training import write_nothing
from primorl.setup.private_evaluation import nothing_asked
from primorl.tracking import RUN_TAGS, stage_run
from primorl.tracking.registry import CHAMPION, LATEST
from primorl.trajectories.storage.manifest import Manifest
from tests.evaluation.conftest import random_policy
from tests.pipeline.fakes import FakeRun
from tests.pipeline.tiny_policy import write_partitions
from tests.projects import project_settings
from tests.statements import NOT_PRIVATE, OF_TRAINING
from tests.statements import PRIVATE as STATEMENT
from tests.trajectories.builders import episodes, table

EPOCHS = [random_policy(1, 3, 2.0, seed) for seed in range(3)]
PUBLIC = table(episodes(3), names=["p0", "p1", "p2"])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Path:
    for name in ("DVC_EXP_NAME", "DVC_EXP_BASELINE_REV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path)
    monkeypatch.setattr(episode, "_MOST_DRAWN", 3)  # every state would take half of the time of these tests
    stages = "collect ingest partition train_model clone_behaviour optimize_policy optimize_mopo evaluate_private"
    for seconds, stage in enumerate(stages.split()):
        write_json(Path(f"metrics/seconds/{stage}.json"), {"seconds": float(seconds)})
    place(Path("models/policy"), STATEMENT)
    write_json(Path("models/dynamics/privacy.json"), STATEMENT)
    write_nothing(Path("models/behaviour"))
    write_partitions(table(episodes(9)), PUBLIC)
    nothing_asked(chosen()).write(PRIVATE_EVALUATION)
    return tmp_path


def place(
    folder: Path,
    statement: dict[str, Any],
    epochs: list[DeterministicPolicy] = EPOCHS,
    *,
    clone_error: float | None = None,
) -> None:
    folder.mkdir(parents=True)
    variant: Variant = "mopo" if folder.name == "mopo" else "private"
    save(folder, epochs, variant=variant, environment="Pendulum-v1", clone_error=clone_error)
    write_json(folder / "privacy.json", statement)


def chosen(variant: str = "private", score: dict[str, float] | None = None) -> Params:
    raw = project_settings()
    raw["dynamics"]["variant"] = variant
    raw["chosen"]["score"] = score
    raw["evaluation"] |= {"episodes": 5, "epoch_episodes": 2, "seed": 9}
    return params.from_plain(raw)


def run(selected: Params) -> None:
    with stage_run("evaluate", selected) as log:
        evaluate.body(selected, log)


@pytest.mark.usefixtures("project")
def test_results_of_an_epsilon_that_was_written_by_hand_are_refused() -> None:
    for epsilon in (0.1, 1.2):
        for folder in ("policy", "dynamics"):
            write_json(Path(f"models/{folder}/privacy.json"), STATEMENT | {"epsilon": epsilon})
        if epsilon < 1:
            with pytest.raises(PipelineError, match=r"policy/privacy\.json: epsilon: found 0\.1, less than the accoun"):
                run(chosen())
            assert not Path("metrics/summary.json").exists()
        else:
            run(chosen())


@pytest.mark.usefixtures("project")
def test_a_statement_of_another_model_or_without_its_clone_is_refused() -> None:
    model, clone = (replace(OF_TRAINING, charge=charge) for charge in ("model", "clone"))
    both = together({"models/dynamics": model, "models/behaviour": clone})
    write_json(Path("models/policy/privacy.json"), both.to_json())
    other = replace(clone, charge="other")
    for beside, refusal in (
        (
            {"dynamics": model, "behaviour": other},
            "mechanisms: not that of models/dynamics/privacy.json and models/beh",
        ),
        (
            {"dynamics": other, "behaviour": clone},
            "mechanisms: not that of models/dynamics/privacy.json and models/beh",
        ),
        ({"dynamics": replace(model, void=("noise is seeded",)), "behaviour": clone}, "void: not that of"),
        ({"dynamics": model}, "mechanisms: found models/dynamics and models/behaviour; there are statements of models"),
        ({"dynamics": model, "behaviour": clone}, None),
    ):
        Path("models/behaviour/privacy.json").unlink(missing_ok=True)
        for folder, statement in beside.items():
            write_json(Path(f"models/{folder}/privacy.json"), statement.to_json())
        if refusal is None:
            run(chosen())
        else:
            with pytest.raises(PipelineError, match=refusal):
                run(chosen())
    edited = replace(both, profile=(ProfilePoint(epsilon=0.0, delta=1e-6), *both.profile[1:]))
    twice = replace(both, mechanisms=both.mechanisms[:1] * 2)
    for statement, refusal in ((edited, "profile: not what the accountant makes"), (twice, "mechanisms: found models")):
        write_json(Path("models/policy/privacy.json"), statement.to_json())
        with pytest.raises(PipelineError, match=refusal):
            run(chosen())
    shutil.rmtree("models/policy")
    place(Path("models/policy"), model.to_json(), clone_error=0.5)
    with pytest.raises(PipelineError, match="mechanisms: found none, yet the policy was chosen near a clone"):
        run(chosen())


@pytest.mark.usefixtures("project")
def test_a_statement_that_says_something_else_than_its_model_s_is_refused() -> None:
    policy, model = Path("models/policy/privacy.json"), Path("models/dynamics/privacy.json")
    edits: list[dict[str, Any]] = [
        *({"unit": "hospital"}, {"units": 9999}, {"public_units": 7}, {"dataset_fingerprint": "ab" * 32}),
        *({"public_assumptions": []}, {"attacks": []}, {"epsilon": 3.0}),
    ]
    for edit in edits:
        write_json(policy, STATEMENT | edit)
        with pytest.raises(PipelineError, match=f"{next(iter(edit))}: not that of {model}"):
            run(chosen())
    write_json(policy, STATEMENT)
    for admitted in ({"void": ["noise is seeded"]}, NOT_PRIVATE):
        write_json(model, STATEMENT | admitted)
        with pytest.raises(PipelineError, match=f"not that of {model}"):
            run(chosen())
    model.unlink()
    with pytest.raises(PipelineError, match=f"{model}: "):
        run(chosen())


@pytest.mark.usefixtures("project")
def test_the_summary_says_what_the_policy_earns_and_what_its_statement_says() -> None:
    run(chosen(score={"low": -1500.0, "high": 0.0, "scale": 1000.0}))

    summary = json.loads(Path("metrics/summary.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    returns = episode_returns("Pendulum-v1", EPOCHS[-1], 5, seed=9)[0]
    low, high = summary.pop("return_ci95")
    assert low < summary["return_mean"] < high
    seconds = summary.pop("seconds")
    assert seconds.pop("evaluate") > 0
    assert seconds == {
        "collect": 0,
        "ingest": 1,
        "partition": 2,
        "train_model": 3,
        "clone_behaviour": 4,
        "optimize_policy": 5,
        "optimize_mopo": 6,
        "evaluate_private": 7,
    }
    low, high = summary.pop("public_return_ci95")
    assert low < summary["public_return_mean"] < high
    assert summary == {
        "format": 5,
        "dataset": "pendulum-replay",
        "env_id": "Pendulum-v1",
        "variant": "private",
        "private": True,
        "epsilon": 1.19,
        "epsilon_rdp": 1.31,
        "delta": 1e-5,
        "unit": "trajectory",
        "units": 2970,
        "void": [],
        "spent_on_dataset": STATEMENT["spent_on_dataset"],
        "seed": 0,
        "return_mean": pytest.approx(returns.mean(), rel=1e-3),
        "normalized_score": pytest.approx(1000 * (summary["return_mean"] + 1500) / 1500),
        "episodes": 5,
        "policy_sha256": hashlib.sha256(Path("models/policy/policy.safetensors").read_bytes()).hexdigest(),
        "public_return_mean": pytest.approx(PUBLIC["reward"].to_numpy().sum() / 3),
        "public_trajectories": 3,
    }


def test_pipelines_can_be_compared_in_mlflow(project: Path) -> None:
    run(chosen(score={"low": -1500.0, "high": 0.0, "scale": 1000.0}))
    store = MlflowClient(f"sqlite:///{project}/mlflow.db")
    experiment = store.get_experiment_by_name("pendulum-replay")
    assert experiment is not None
    (pipeline,) = store.search_runs([experiment.experiment_id], "metrics.epsilon <= 2")
    (stage,) = store.search_runs([experiment.experiment_id], "tags.stage = 'evaluate'")
    assert stage.data.tags["mlflow.parentRunId"] == pipeline.info.run_id
    summary = read_json(Path("metrics/summary.json"))
    assert {name: pipeline.data.metrics[name] for name in ("return_mean", "normalized_score", "epsilon")} == {
        name: summary[name] for name in ("return_mean", "normalized_score", "epsilon")
    }
    assert pipeline.data.metrics["epsilon_spent_on_dataset"] == summary["spent_on_dataset"]["epsilon"]
    assert set(stage.data.metrics) == {"curve.return_mean"}
    for logged in (stage, pipeline):
        assert logged.data.params == {
            "dataset": "pendulum-replay",
            "env_id": "Pendulum-v1",
            "variant": "private",
            "seed": "0",
            "private": "True",
            "epsilon": "1.19",
            "delta": "1e-05",
            "unit": "trajectory",
        }
        assert logged.data.tags["dataset_fingerprint"] == STATEMENT["dataset_fingerprint"]
        assert {file.path for file in store.list_artifacts(logged.info.run_id)} >= {
            "privacy.json",
            "summary.json",
            "curves.csv",
            "return.png",
        }
    assert len(store.get_metric_history(stage.info.run_id, "curve.return_mean")) == 3
    assert "ε = 1.19" in pipeline.data.tags["mlflow.note.content"]
    (used,) = pipeline.inputs.dataset_inputs
    assert used.dataset.name == "pendulum-replay"
    assert STATEMENT["dataset_fingerprint"].startswith(used.dataset.digest)


@pytest.mark.usefixtures("project")
def test_an_episode_of_the_final_policy_is_drawn_for_the_pipelines_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(evaluate, "log_episode", lambda *given: drawn.append(given))
    selected = chosen()
    with stage_run("evaluate", selected) as log:
        evaluate.body(selected, log)
        ((run_of, environment, policy, seed, limit),) = drawn
        assert run_of is log.pipeline
    assert (environment, seed, limit) == ("Pendulum-v1", 9, Manifest.load(MANIFEST).info.horizon)
    observation = torch.ones(1, 1, 3)
    assert torch.equal(policy.act(observation), EPOCHS[-1].act(observation))
    monkeypatch.setenv(RUN_TAGS, json.dumps({"sweep": "tiny"}))
    run(selected)
    assert len(drawn) == 1


def test_private_policies_are_registered_and_no_others(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MlflowClient(f"sqlite:///{project}/mlflow.db")
    for folder in ("policy", "dynamics"):
        write_json(Path(f"models/{folder}/privacy.json"), STATEMENT | {"void": ["noise is seeded"]})
    run(chosen())
    place(Path("models/mopo"), NOT_PRIVATE, EPOCHS[:1])
    with monkeypatch.context() as other:
        other.setenv("DVC_EXP_NAME", "mopo")  # another pipeline
        run(chosen("mopo"))
    for folder in ("policy", "dynamics"):
        write_json(Path(f"models/{folder}/privacy.json"), STATEMENT)
    with monkeypatch.context() as trial:
        trial.setenv(RUN_TAGS, json.dumps({"sweep": "tiny"}))
        run(chosen())
    assert store.search_registered_models() == []
    run(chosen())
    run(chosen())  # the same policy again
    (version,) = store.search_model_versions("name = 'pendulum-replay'")
    for alias in (CHAMPION, LATEST):
        assert store.get_model_version_by_alias("pendulum-replay", alias).version == version.version
    summary = read_json(Path("metrics/summary.json"))
    assert version.tags["policy_sha256"] == summary["policy_sha256"]
    assert (version.tags["epsilon"], version.tags["unit"], version.tags["judged_by"]) == (
        "1.19",
        "trajectory",
        "simulator",
    )


@pytest.mark.usefixtures("project")
def test_the_baseline_is_judged_by_its_own_policy_and_called_not_private() -> None:
    baseline = [random_policy(1, 3, 2.0, seed=77)]
    place(Path("models/mopo"), NOT_PRIVATE, baseline)
    run(chosen("mopo"))
    summary = read_json(Path("metrics/summary.json"))
    assert (summary["private"], summary["epsilon"], summary["variant"]) == (False, None, "mopo")
    expected = episode_returns("Pendulum-v1", baseline[0], 5, seed=9).mean()
    assert summary["return_mean"] == pytest.approx(expected, rel=1e-3)
    assert "not private" in text(summary)


SEEDS = {4: EPOCHS, 7: [random_policy(1, 3, 2.0, seed) for seed in range(20, 23)]}


def place_seeds(seeds: dict[int, list[DeterministicPolicy]]) -> None:
    for number, (seed, epochs) in enumerate(seeds.items()):
        folder = Path("models/policy") if number == 0 else Path(f"models/policy/seeds/{seed}")
        folder.mkdir(parents=True, exist_ok=True)
        save(folder, epochs, variant="private", environment="Pendulum-v1", seeds=list(seeds) if number == 0 else None)


def test_several_seeds_are_one_result_with_the_spread_over_them(project: Path) -> None:
    place_seeds(SEEDS)
    run(chosen(score={"low": -1500.0, "high": 0.0, "scale": 1000.0}))
    summary = json.loads(Path("metrics/summary.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    means = [float(episode_returns("Pendulum-v1", epochs[-1], 5, seed=9).mean()) for epochs in SEEDS.values()]
    half = 12.706 * abs(means[0] - means[1]) / 2
    assert summary["seeds"] == [4, 7]
    assert summary["return_mean"] == pytest.approx(sum(means) / 2, rel=1e-3)
    assert summary["return_ci95"] == pytest.approx([sum(means) / 2 - half, sum(means) / 2 + half], rel=1e-3)
    for own, seed, mean in zip(summary["by_seed"], SEEDS, means, strict=True):
        assert (own["seed"], own["return_mean"]) == (seed, pytest.approx(mean, rel=1e-3))
        assert own["return_ci95"][0] < own["return_mean"] < own["return_ci95"][1]
        assert own["normalized_score"] == pytest.approx(1000 * (own["return_mean"] + 1500) / 1500)
    files = (Path("models/policy/policy.safetensors"), Path("models/policy/seeds/7/policy.safetensors"))
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert [own["policy_sha256"] for own in summary["by_seed"]] == digests
    assert summary["policy_sha256"] == digests[0]

    rows = list(csv.DictReader(Path("plots/curves.csv").read_text(encoding="utf-8").splitlines()))
    for epoch, row in enumerate(rows):
        count = 5 if epoch == 2 else 2
        expected = [episode_returns("Pendulum-v1", epochs[epoch], count, seed=9).mean() for epochs in SEEDS.values()]
        assert float(row["return_mean"]) == pytest.approx(sum(expected) / 2, rel=1e-3)
    assert "variant  private, 2 seeds" in text(summary)
    assert "over 2 seeds, 5 episodes each" in text(summary)
    assert f"seeds    4: {means[0]:.4g} ±" in text(summary)  # each seed's own interval is not that over seeds

    store = MlflowClient(f"sqlite:///{project}/mlflow.db")
    experiment = store.get_experiment_by_name("pendulum-replay")
    assert experiment is not None
    runs = {logged.info.run_name: logged for logged in store.search_runs([experiment.experiment_id])}
    for seed, own in zip(SEEDS, summary["by_seed"], strict=True):
        logged = runs[f"seed {seed}"]
        assert logged.data.tags["mlflow.parentRunId"] == runs["evaluate"].info.run_id
        assert (logged.data.params["seed"], logged.info.status) == (str(seed), "FINISHED")
        assert logged.data.metrics["return_mean"] == own["return_mean"]
        assert len(store.get_metric_history(logged.info.run_id, "curve.return_mean")) == 3
    (pipeline,) = store.search_runs([experiment.experiment_id], "metrics.epsilon <= 2")
    assert pipeline.data.metrics["return_mean"] == summary["return_mean"]


def test_a_policy_of_another_variant_is_refused(project: Path) -> None:
    with pytest.raises(PipelineError, match="found a policy of variant 'private'"):
        evaluate.body(chosen("no_privacy"), FakeRun())  # type: ignore[arg-type]
