"""What is saved is what is loaded; files that lie are refused; a learned end is believed where
rows support it; first states are drawn within the bounds.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from primorl.base import PipelineError
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser, judge_ends
from primorl.model.starts import FILE, StartModel
from tests.model.models import CPU, ends_where_positive


@pytest.fixture
def ensemble(shape: Architecture) -> GaussianEnsemble:
    normaliser = Normaliser(
        torch.randn(4), torch.rand(4) + 0.5, torch.randn(4), torch.rand(4) + 0.5
    )
    low, high = torch.tensor([-1.0, -1.0, -torch.inf]), torch.tensor([1.0, 1.0, torch.inf])
    bounds = Bounds(low, high, torch.tensor([-2.0]), torch.tensor([2.0]), -16.0, 0.0)
    return GaussianEnsemble(shape, shape.initial_weights(1), normaliser, bounds)


def test_what_is_saved_is_what_is_loaded(ensemble: GaussianEnsemble, tmp_path: Path) -> None:
    head = replace(ensemble.architecture, learned_termination=True)
    observation, action = torch.randn(7, 3), torch.randn(7, 1)
    for made in (
        ensemble,
        replace(
            ensemble,
            termination="hopper",
            bounds=replace(ensemble.bounds, discrete_actions=True, angles=((2, 0),)),
        ),
        replace(
            ensemble, architecture=head, weights=head.initial_weights(1), termination="learned"
        ),
    ):
        made.save(tmp_path, environment="Pendulum-v1", variant="private", rounds=3)
        loaded = GaussianEnsemble.load(tmp_path, CPU)
        assert (loaded.architecture, loaded.termination) == (made.architecture, made.termination)
        assert loaded.bounds.discrete_actions is made.bounds.discrete_actions
        assert loaded.bounds.angles == made.bounds.angles
        assert torch.equal(loaded.bounds.observation_high, made.bounds.observation_high)
        ours, theirs = loaded.predict(observation, action), made.predict(observation, action)
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
    assert ours[2] is not None
    torch.testing.assert_close(ours[2], torch.full((3, 7), 0.01))
    assert sum(w.numel() for w in loaded.weights) == head.parameters


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"members": 5}, r"layers.0.weight has shape \(3, 4, 16\), config.json says \(5, 4, 16\)"),
        ({"termination": "os.system"}, "not a dynamics model"),
    ],
)
def test_broken_files_are_refused_in_one_line(
    ensemble: GaussianEnsemble, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    ensemble.save(tmp_path, environment=None, variant="private", rounds=3)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(PipelineError, match=says):
        GaussianEnsemble.load(tmp_path, CPU)


def test_target_scales() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (
        torch.randn(10_000, 3, generator=generator),
        torch.randn(10_000, 2, generator=generator),
    )
    targets[::100, 0] *= 100
    assert 0.9 < float(Normaliser.from_public(inputs, targets).target_scale[0]) < 1.1
    assert float(targets[:, 0].std()) > 5, "the standard deviation would not have done"
    sparse = (torch.arange(1000) % 20 == 0).float()[:, None]
    torch.testing.assert_close(
        Normaliser.from_public(inputs[:1000], sparse).target_scale, sparse.std(0)
    )
    constant = Normaliser.from_public(torch.ones(50, 3), torch.zeros(50, 2))
    assert torch.equal(constant.input_scale, torch.ones(3))
    torch.testing.assert_close(constant.target_scale, torch.tensor([0.05, 1.0]))


def rows(count: int = 400) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, 0] > 0


def test_a_head_is_believed_where_it_beats_the_rate_of_ends() -> None:
    inputs, ended = rows()
    for sharpness, believed in ((3.0, True), (0.05, False), (-3.0, False)):
        supported, why = judge_ends(ends_where_positive(sharpness), inputs, ended)
        assert supported is believed
        assert why.startswith(f"{int(ended.sum())} public terminations")
    few = ended & (ended.cumsum(0) <= 19)
    some = few | ~ended
    assert not judge_ends(ends_where_positive(3.0), inputs[some], few[some])[0]


def test_without_its_head_a_model_moves_and_pays_as_before_and_never_ends() -> None:
    model = ends_where_positive(3.0)
    bare = model.with_ends("none")
    inputs, _ = rows(64)
    with_head, alone = (one.predict(inputs[:, :1], inputs[:, 1:]) for one in (model, bare))
    torch.testing.assert_close(with_head[:2], alone[:2])
    assert alone[2] is None
    assert bare.with_ends("none") is bare
    assert model.with_ends(None) is model
    assert model.with_ends("none").termination == "none", "as the policy's rollouts used it"


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
    with pytest.raises(PipelineError, match=r"nobody was asked"):
        StartModel.load(tmp_path, CPU)
