"""The stage reads released and public files alone, and the page says what the summary says."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from pipeline import report
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.privacy_filter import cost
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.release.composition import whole
from primorl.report.facts import Facts, Spending, _with_others, compared_actions, read_facts
from tests.pipeline.fakes import FakeRun
from tests.pipeline.test_evaluate import SEEDS, chosen, place_seeds, project, run
from tests.pipeline.test_evaluate_in_model import without_simulator
from tests.pipeline.tiny_policy import write_model, write_partitions
from tests.statements import OF_TRAINING, PRIVATE
from tests.trajectories.builders import INFO, episodes, table

__all__ = ["project"]

HERE = PRIVATE | {"dataset_fingerprint": INFO.dataset_fingerprint}
MANIFEST, CURVES = Path("data/partitions/manifest.json"), Path("plots/curves.csv")


def evaluated(*, simulator: bool = True, termination: str = "none") -> None:
    """A run of the data that are here, as far as `evaluate`."""
    write_model(HERE, termination=termination)
    write_json(Path("models/policy/privacy.json"), HERE)
    run(chosen() if simulator else without_simulator(chosen()))


def facts_here(dataset: str = "pendulum-replay") -> Facts:
    return read_facts(dataset=dataset, uncertainty="max_aleatoric")


@pytest.mark.usefixtures("project")
def test_the_page_says_what_the_summary_says() -> None:
    evaluated()
    logged = FakeRun()
    report.body(chosen(), logged)
    summary, text = read_json(Path("metrics/summary.json")), Path("reports/report.html").read_text(encoding="utf-8")
    assert logged.pipeline.artifacts == {"report.html": text.encode()}
    assert "ε = 1.19" in text
    assert f"{summary['return_mean']:.4g}" in text
    assert f"{summary['public_return_mean']:.4g}" in text
    assert "MLflow run 0123." in text
    assert "Whoever has this run&#39;s model and policy is right in at most" in text


@pytest.mark.usefixtures("project")
def test_a_run_that_mlflow_has_not_seen_is_not_named() -> None:
    """Where the store was lost. Twin: `test_the_page_says_what_the_summary_says`."""
    evaluated()
    lost = FakeRun()
    lost.pipeline.run_id = ""
    report.body(chosen(), lost)
    assert "MLflow run" not in Path("reports/report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("project")
def test_facts_are_of_the_public_split_and_the_curve() -> None:
    """Twin: where the private partition is gone, everything is read all the same."""
    evaluated()
    facts = facts_here()
    assert [point.number for point in facts.curve] == [1, 2, 3]
    assert len(facts.model_error) == 4
    assert all(error > 0 for error in facts.model_error.values())
    assert facts.rollouts is not None
    assert len(facts.rollouts.reward) == len(facts.rollouts.uncertainty) > 0
    assert facts.rollouts.penalised is None
    priced = read_facts(dataset="pendulum-replay", uncertainty="max_aleatoric", penalty=2.0).rollouts
    assert priced is not None
    assert priced.penalised == pytest.approx(
        [reward - 2 * doubt for reward, doubt in zip(priced.reward, priced.uncertainty, strict=True)], rel=1e-4
    )
    assert priced.reward == facts.rollouts.reward
    for quartiles in facts.first_states.values():
        assert list(quartiles) == sorted(quartiles)
    assert facts.actions is not None
    assert all(
        0 <= level <= 1 for side in (facts.actions.recorded, facts.actions.chosen) for each in side for level in each
    )
    for private in ("private", "units.bin"):
        for file in Path("data/partitions").glob(f"{private}*"):
            file.rename(f"gone-{private}")
    assert facts_here() == facts


@pytest.mark.usefixtures("project")
def test_a_report_over_another_policy_is_refused() -> None:
    """Twin: over the policy that was evaluated it is written."""
    evaluated()
    facts_here()
    policy = Path("models/policy/policy.safetensors")
    policy.write_bytes(policy.read_bytes() + b" ")
    with pytest.raises(
        PipelineError, match=r"summary\.json: these results are of an earlier run: another models/policy"
    ):
        facts_here()


@pytest.mark.usefixtures("project")
def test_a_statement_that_says_another_epsilon_than_the_summary_is_refused() -> None:
    """A statement of another run must not lend its ε to results. Twin: as written it is read."""
    evaluated()
    facts_here()
    path = Path("metrics/summary.json")
    summary = read_json(path)
    path.write_text(json.dumps(summary | {"epsilon": summary["epsilon"] / 2}), encoding="utf-8")
    with pytest.raises(PipelineError, match=r"summary\.json: epsilon: not what models/policy/privacy\.json"):
        facts_here()


@pytest.mark.usefixtures("project")
def test_a_run_of_another_dataset_than_the_chosen_one_is_refused() -> None:
    """Its card and its other results would stand beside. Twin: the chosen one is read."""
    evaluated()
    assert facts_here().summary["dataset"] == "pendulum-replay"
    with pytest.raises(PipelineError, match=r"params\.yaml: dataset: found 'ward', and metrics/summary\.json has the"):
        facts_here("ward")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("key", "value", "refusal"),
    [
        (
            "dataset_fingerprint",
            "e" * 64,
            r"manifest\.json: dataset_fingerprint: found eeeeeeeeeeee…, and models/policy",
        ),
        ("public_units", 4, r"partitions/public: found 3 units, and data/partitions/manifest\.json says 4"),
    ],
    ids=["data", "split"],
)
def test_public_rows_of_other_data_are_refused(key: str, value: object, refusal: str) -> None:
    """The ε of one version must not stand beside the rows of another. Twin: as partitioned they are read."""
    evaluated()
    facts_here()
    write_json(MANIFEST, read_json(MANIFEST) | {key: value})
    with pytest.raises(PipelineError, match=refusal):
        facts_here()


@pytest.mark.usefixtures("project")
def test_a_model_of_another_split_is_refused() -> None:
    """Twin: it was made where three units are public, as here."""
    evaluated()
    for units in (3, 2):
        write_json(Path("models/dynamics/privacy.json"), HERE | {"public_units": units})
        write_json(Path("models/policy/privacy.json"), HERE | {"public_units": units})
        if units == 3:
            facts_here()
        else:
            with pytest.raises(PipelineError, match=r"public: found 3 units, and models/policy/privacy\.json says 2"):
                facts_here()


@pytest.mark.parametrize("place", ["simulator", "model", "seeds"])
def test_a_curve_of_another_evaluation_is_refused(project: Path, place: str) -> None:
    """Its last point is the summary's value, also over several seeds. Twin: as `evaluate` wrote it, it is read."""
    if place == "seeds":
        place_seeds(SEEDS)
    evaluated(simulator=place != "model")
    assert len(facts_here().curve) == 3
    rows = CURVES.read_text(encoding="utf-8").splitlines()
    for edited in ([*rows[:-1]], [*rows[:-1], rows[-2].replace("2,", "3,", 1)], rows[:1], ["epoch"], ["epoch", "1"]):
        CURVES.write_text("\n".join(edited) + "\n", encoding="utf-8")
        with pytest.raises(PipelineError, match=r"plots/curves\.csv: (found|not a curve).*run `dvc repro evaluate`"):
            facts_here()
    CURVES.unlink()
    with pytest.raises(PipelineError, match=r"curves\.csv: not a curve \(FileNotFoundError\)"):
        facts_here()


@pytest.mark.usefixtures("project")
def test_rollouts_end_as_the_policy_s_own_did() -> None:
    """`evaluate` does the same. Twin: where the learned ends were believed, rollouts end by them."""
    evaluated(termination="learned")
    config = Path("models/policy/config.json")
    found = {}
    for ends in (None, "none"):
        write_json(config, read_json(config) | {"ends": ends})
        found[ends] = facts_here().rollouts
    assert found["none"] is not None
    assert found[None] != found["none"]
    assert len(found["none"].reward) == 7


@pytest.mark.usefixtures("project")
def test_rollouts_are_as_long_as_a_trajectory_not_as_all_of_a_unit() -> None:
    """The units have 5 and 10 steps, the longest trajectory 7. Twin: a declared horizon of a value in the model."""
    shutil.rmtree("data/partitions")
    four = table(episodes(4), units=["p0", "p0", "p1", "p1"], names=["a", "b", "c", "d"])
    write_partitions(table(episodes(9)), four)
    for simulator, steps in ((True, 7), (False, 200)):
        evaluated(simulator=simulator)
        rollouts = facts_here().rollouts
        assert rollouts is not None
        assert len(rollouts.reward) == steps


def test_actions_are_shares_of_the_range_and_those_at_a_bound_are_counted() -> None:
    """The policy of zeros is in the middle, whatever the rows say. Twin: its bias at +20 is the upper bound."""
    rows = torch.tensor([[9.0, -2.0], [8.0, 0.0], [7.0, 2.0], [6.0, 6.0], [5.0, 6.0]])
    middle = constant(0.0, low=-2.0, high=6.0)
    found = compared_actions(middle, rows, ["dose"])
    assert found is not None
    assert (found.names, found.discrete) == (("dose",), False)
    assert found.recorded == ((0.0, 0.25, 0.5, 1.0, 1.0),)
    assert found.chosen == ((0.5,) * 5,)
    assert found.at_bound == ((pytest.approx(0.6),), (0.0,))
    highest = compared_actions(constant(20.0, low=-2.0, high=6.0), rows, None)
    assert highest is not None
    assert highest.names == ("action 0",)
    assert highest.at_bound[1] == (1.0,)
    assert compared_actions(constant(0.0, low=-2.0, high=torch.inf), rows, None) is None


def test_discrete_actions_have_shares() -> None:
    rows = torch.tensor([[9.0, 1.0, 0.0], [8.0, 1.0, 0.0], [7.0, 0.0, 1.0], [6.0, 1.0, 0.0]])
    found = compared_actions(constant(0.0, 1.0, discrete=True), rows, ["none", "some"])
    assert found is not None
    assert found.recorded == ((0.75,), (0.25,))
    assert found.chosen == ((0.0,), (1.0,))
    assert found.at_bound == ((), ())


def constant(*output: float, low: float = 0.0, high: float = 1.0, discrete: bool = False) -> DeterministicPolicy:
    """The policy of one observed number whose network says the same everywhere."""
    layers = (torch.zeros(1, len(output), 1), torch.tensor([[output]]))
    ends = [torch.full((len(output),), end) for end in (low, high)]
    return DeterministicPolicy(layers, torch.zeros(1), torch.ones(1), *ends, discrete_actions=discrete)


def test_a_result_that_the_ledger_did_not_pay_for_takes_the_bound_away() -> None:
    """Twin: with results within the account it stays. δ is the smaller one of the run and the budget."""
    released, own = whole(OF_TRAINING.to_json(), None, None, 1e-5), [OF_TRAINING]
    spending = Spending((), None, 1e-3, {"0ther": cost(Training(0.5, 4.0, 50).event)})
    within, beyond = ("a", 0.1, 1.0, "simulator"), ("b", 1e3, 2.0, "simulator")
    kept = _with_others(released, own, spending, [within, within])
    assert kept["private"]
    assert kept["delta"] == released["delta"]
    assert not _with_others(released, own, spending, [within, beyond])["private"]
