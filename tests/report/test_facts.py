"""The stage reads released and public files alone, and the page says what the summary says."""

import json
from pathlib import Path

import pytest
import torch

from pipeline import report
from primorl.policy.exported import DeterministicPolicy
from primorl.project.errors import PipelineError
from primorl.project.files import read_json
from primorl.report.facts import compared_actions, read_facts
from tests.pipeline.fakes import FakeRun
from tests.pipeline.test_evaluate import chosen, project, run
from tests.pipeline.tiny_policy import write_model
from tests.statements import PRIVATE

__all__ = ["project"]


@pytest.mark.usefixtures("project")
def test_the_page_says_what_the_summary_says() -> None:
    write_model(PRIVATE)
    run(chosen())
    report.body(chosen(), FakeRun())
    summary, text = read_json(Path("metrics/summary.json")), Path("reports/report.html").read_text(encoding="utf-8")
    assert "ε = 1.19" in text
    assert f"{summary['return_mean']:.4g}" in text
    assert f"{summary['public_return_mean']:.4g}" in text
    assert "MLflow run 0123." in text


@pytest.mark.usefixtures("project")
def test_facts_are_of_the_public_split_and_the_curve() -> None:
    """Twin: where the private partition is gone, everything is read all the same."""
    write_model(PRIVATE)
    run(chosen())
    facts = read_facts(uncertainty="max_aleatoric")
    assert [point.number for point in facts.curve] == [1, 2, 3]
    assert len(facts.model_error) == 4
    assert all(error > 0 for error in facts.model_error.values())
    assert facts.rollouts is not None
    assert len(facts.rollouts.reward) == len(facts.rollouts.uncertainty) > 0
    assert facts.rollouts.penalised is None
    priced = read_facts(uncertainty="max_aleatoric", penalty=2.0).rollouts
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
    assert read_facts(uncertainty="max_aleatoric") == facts


@pytest.mark.usefixtures("project")
def test_a_report_over_another_policy_is_refused() -> None:
    """Twin: over the policy that was evaluated it is written."""
    write_model(PRIVATE)
    run(chosen())
    read_facts(uncertainty="max_aleatoric")
    policy = Path("models/policy/policy.safetensors")
    policy.write_bytes(policy.read_bytes() + b" ")
    with pytest.raises(
        PipelineError, match=r"summary\.json: these results are of an earlier run: another models/policy"
    ):
        read_facts(uncertainty="max_aleatoric")


@pytest.mark.usefixtures("project")
def test_a_statement_that_says_another_epsilon_than_the_summary_is_refused() -> None:
    """A statement of another run must not lend its ε to results. Twin: as written it is read."""
    write_model(PRIVATE)
    run(chosen())
    read_facts(uncertainty="max_aleatoric")
    path = Path("metrics/summary.json")
    summary = read_json(path)
    path.write_text(json.dumps(summary | {"epsilon": summary["epsilon"] / 2}), encoding="utf-8")
    with pytest.raises(PipelineError, match=r"summary\.json: epsilon: not what models/policy/privacy\.json"):
        read_facts(uncertainty="max_aleatoric")


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
