"""A released model of first states: drawn within the bounds, nothing run on loading."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from primorl.base.errors import PipelineError
from primorl.model.starts import FILE, StartModel

CPU = torch.device("cpu")
MODEL = StartModel(
    low=torch.tensor([-2.0, 0.0, 0.0, 0.0, 10.0]),
    high=torch.tensor([6.0, 1.0, 1.0, 1.0, 21.0]),
    mean=torch.tensor([1.0, 0.0, 0.0, 0.0, 20.0]),
    factor=torch.diag(torch.tensor([0.5, 0.0, 0.0, 0.0, 2.0])),
    block=torch.tensor([-1, 0, 0, 0, -1]),
    probabilities=torch.tensor([0.0, 0.25, 0.5, 0.25, 0.0]),
)


def test_draws_are_within_the_bounds_and_have_one_category() -> None:
    states = MODEL.sample(20000, torch.Generator().manual_seed(0))
    assert float(states[:, 0].mean()) == pytest.approx(1, abs=0.02)
    assert float(states[:, 0].std()) == pytest.approx(0.5, rel=0.05)
    assert float(states[:, 4].max()) == 21.0
    category = states[:, 1:4]
    assert torch.equal(category.sum(1), torch.ones(len(states)))
    assert set(category.unique().tolist()) <= {0.0, 1.0}
    assert category.mean(0).tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.02)


def test_it_comes_back_from_its_file_and_a_broken_one_is_one_clear_error(tmp_path: Path) -> None:
    model, file = MODEL, tmp_path / FILE
    model.save(tmp_path)
    assert StartModel.load(tmp_path, CPU).survival is None
    model = replace(model, survival=torch.tensor([[1.0, 0.5], [1.0, 0.25]]))
    model.save(tmp_path)
    again = StartModel.load(tmp_path, CPU)
    assert all(
        torch.equal(a, b) for a, b in zip(vars(model).values(), vars(again).values(), strict=True)
    )
    whole = load_file(file)
    for change in ({"mean": torch.full((5,), torch.nan)}, {"first_state": torch.zeros(5)}, None):
        less = {name: value for name, value in whole.items() if name != "factor"}
        save_file(whole | change if change else less, file)
        with pytest.raises(PipelineError, match=rf"{FILE}.*not a model of first states"):
            StartModel.load(tmp_path, CPU)
    file.unlink()
    with pytest.raises(PipelineError, match=r"trained without first states"):
        StartModel.load(tmp_path, CPU)
