"""A released model of first states: drawn within the bounds, made of one first state a unit, nothing run on loading."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from primorl.base.errors import PipelineError
from primorl.engine.queries import ObservationColumns, StartQuery
from primorl.model.ensemble import Bounds
from primorl.model.starts import FILE, StartModel
from primorl.privacy.mechanism.queries import ONE, GaussianQuery
from primorl.privacy.mechanism.sampling import SystemEntropy
from tests.units import Ragged

COLUMNS = ObservationColumns(5, ((1, 3),), discrete_actions=False)
LOW, HIGH = torch.tensor([-2.0, 0.0, 0.0, 0.0, 10.0]), torch.tensor([6.0, 1.0, 1.0, 1.0, 30.0])
BOUNDS = Bounds(LOW, HIGH, -torch.ones(1), torch.ones(1), -10.0, 0.0)
CPU = torch.device("cpu")


def units(count: int, later: float = 1e6) -> Ragged:
    """First states with mean (1, 20), deviations (0.5, 2) and correlation 0.8; later rows are far away."""
    generator = torch.Generator().manual_seed(3)
    inputs = []
    for unit in range(count):
        a, b = torch.randn(2, generator=generator).tolist()
        category = torch.eye(3)[[0, 1, 1, 2][unit % 4]]
        first = torch.tensor([1 + 0.5 * a, 20 + 2 * (0.8 * a + 0.6 * b), 0.0])
        inputs.append(
            torch.stack((torch.cat((first[:1], category, first[1:])), torch.full((6,), later)))
        )
    return Ragged(inputs, [torch.zeros(2, 7)] * count)


def model_of(source: Ragged, multiplier: float = 0.0, declared: int | None = None) -> StartModel:
    query = StartQuery(COLUMNS, BOUNDS)
    asked = GaussianQuery("starts", COLUMNS.moments.sensitivity, multiplier)
    known = declared or source.units
    return query.model(
        asked.release(query.total(source) * (known // source.units), SystemEntropy()) / known
    )


def drawn(model: StartModel, count: int = 20000) -> torch.Tensor:
    return model.sample(count, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("multiplier", [0.0, 10.0])
def test_it_says_what_first_states_are_like(multiplier: float) -> None:
    states = drawn(model_of(units(600), multiplier, 3000))
    slack = 1 + multiplier / 5
    assert states[:, [0, 4]].mean(0).tolist() == pytest.approx([1, 20], abs=0.25 * slack)
    correlation = float(torch.corrcoef(states[:, [0, 4]].T)[0, 1])
    if multiplier == 0:
        assert states[:, [0, 4]].std(0).tolist() == pytest.approx([0.5, 2.0], rel=0.1)
        assert correlation == pytest.approx(0.8, abs=0.06)
    category = states[:, 1:4]
    assert torch.equal(category.sum(1), torch.ones(len(states)))
    assert set(category.unique().tolist()) <= {0.0, 1.0}
    assert category.mean(0).tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.02 * slack)


def test_only_first_states_are_asked_for() -> None:
    """The twin of the sum: other later rows change nothing, another first row does."""
    query, source = StartQuery(COLUMNS, BOUNDS), units(5)
    assert torch.equal(query.total(source), query.total(units(5, later=-7.0)))
    source.inputs[0][0, 0] += 1
    assert not torch.equal(query.total(source), query.total(units(5)))


@pytest.mark.parametrize("value", [1e30, -1e30, float("nan"), float("inf"), 6.0])
def test_a_unit_more_moves_the_sum_by_at_most_the_sensitivity(value: float) -> None:
    query, rest = StartQuery(COLUMNS, BOUNDS), units(5)
    odd = torch.full((1, 6), value)
    more = Ragged([*rest.inputs, odd], [*rest.targets, torch.zeros(1, 7)])
    moved = (query.total(more) - query.total(rest)).double() / ONE
    assert float(moved.norm()) <= COLUMNS.moments.sensitivity
    if value == 1e30:
        assert float(moved.norm()) == COLUMNS.moments.sensitivity, (
            "the corner of the box, and a category"
        )


def test_it_comes_back_from_its_file_and_a_broken_one_is_one_clear_error(tmp_path: Path) -> None:
    model, file = model_of(units(50)), tmp_path / FILE
    model.save(tmp_path)
    assert StartModel.load(tmp_path, CPU).survival is None
    model = replace(model, survival=torch.tensor([[1.0, 0.5], [1.0, 0.25]]))
    model.save(tmp_path)
    again = StartModel.load(tmp_path, CPU)
    assert all(
        torch.equal(a, b) for a, b in zip(vars(model).values(), vars(again).values(), strict=True)
    )
    whole = load_file(file)
    means = torch.zeros(4), torch.full((5,), torch.nan), torch.zeros(5, dtype=torch.float64)
    wrong = [{"mean": mean} for mean in means] + [
        {"first_state": torch.zeros(5)},
        {"probabilities": torch.ones(5)},
    ]
    wrong.append({"survival": torch.tensor([[1.5], [1.0]])})
    for change in (*wrong, None):
        less = {name: value for name, value in whole.items() if name != "factor"}
        save_file(whole | change if change else less, file)
        with pytest.raises(PipelineError, match=rf"{FILE}.*not a model of first states"):
            StartModel.load(tmp_path, CPU)
    file.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(PipelineError, match=rf"{FILE}.*not a model of first states"):
        StartModel.load(tmp_path, CPU)
    file.unlink()
    with pytest.raises(PipelineError, match=r"set privacy.statistics.starts: true") as refused:
        StartModel.load(tmp_path, CPU)
    assert "\n" not in str(refused.value)
