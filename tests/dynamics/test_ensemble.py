"""What is saved is what is loaded; the normaliser survives rare jumps; files that lie are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.project.errors import PipelineError

CPU = torch.device("cpu")


@pytest.fixture
def ensemble(shape: Architecture) -> GaussianEnsemble:
    normaliser = Normaliser(torch.randn(4), torch.rand(4) + 0.5, torch.randn(4), torch.rand(4) + 0.5)
    low, high = torch.tensor([-1.0, -1.0, -torch.inf]), torch.tensor([1.0, 1.0, torch.inf])
    bounds = Bounds(low, high, torch.tensor([-2.0]), torch.tensor([2.0]), -16.0, 0.0)
    return GaussianEnsemble(shape, shape.initial_weights(1), normaliser, bounds)


def test_round_trip(ensemble: GaussianEnsemble, tmp_path: Path) -> None:
    ensemble.save(tmp_path, environment="Pendulum-v1", variant="private", rounds=3)
    loaded = GaussianEnsemble.load(tmp_path, CPU)
    assert loaded.architecture == ensemble.architecture
    observation, action = torch.randn(7, 3), torch.randn(7, 1)
    (*ours, ends), (*theirs, _) = loaded.predict(observation, action), ensemble.predict(observation, action)
    assert ends is None
    for mine, original in zip(ours, theirs, strict=True):
        assert torch.equal(mine, original)
    assert torch.equal(loaded.bounds.observation_high, ensemble.bounds.observation_high)


def test_prediction_is_in_the_datas_units(ensemble: GaussianEnsemble) -> None:
    """An ensemble of zeros predicts the targets' centre, and its spread within the log-variance bounds."""
    zeros = tuple(torch.zeros_like(w) for w in ensemble.weights)
    flat = GaussianEnsemble(ensemble.architecture, zeros, ensemble.normaliser, ensemble.bounds)
    mean, std, _ = flat.predict(torch.randn(5, 3), torch.randn(5, 1))
    assert mean.shape == std.shape == (3, 5, 4)
    torch.testing.assert_close(mean, ensemble.normaliser.target_mean.expand(3, 5, 4))
    assert torch.all(std > 0)
    assert torch.all(std <= ensemble.normaliser.target_scale * 1.3)


def test_a_learned_termination_is_saved_with_its_head(ensemble: GaussianEnsemble, tmp_path: Path) -> None:
    """The head's output is one more of the last layer, and begins at a probability of 1% whatever the input."""
    shape = replace(ensemble.architecture, learned_termination=True)
    learned = replace(ensemble, architecture=shape, weights=shape.initial_weights(1), termination="learned")
    learned.save(tmp_path, environment=None, variant="private", rounds=3)
    loaded = GaussianEnsemble.load(tmp_path, CPU)
    assert (loaded.termination, loaded.architecture) == ("learned", shape)
    mean, std, ends = loaded.predict(torch.randn(7, 3), torch.randn(7, 1))
    assert mean.shape == std.shape == (3, 7, 4)
    torch.testing.assert_close(ends, torch.full((3, 7), 0.01))
    assert sum(w.numel() for w in loaded.weights) == shape.parameters
    assert shape.parameters == ensemble.architecture.parameters + 3 * 13


def test_a_rule_and_discrete_actions_are_saved_by_name(ensemble: GaussianEnsemble, tmp_path: Path) -> None:
    ruled = replace(ensemble, termination="hopper", bounds=replace(ensemble.bounds, discrete_actions=True))
    ruled.save(tmp_path, environment=None, variant="private", rounds=3)
    loaded = GaussianEnsemble.load(tmp_path, CPU)
    assert (loaded.termination, loaded.bounds.discrete_actions) == ("hopper", True)


def test_one_member_predicts_what_it_predicts_among_others(ensemble: GaussianEnsemble) -> None:
    observation, action = torch.randn(7, 3), torch.randn(7, 1)
    everyone, alone = (model.predict(observation, action) for model in (ensemble, ensemble.member(2)))
    for all_members, one in zip(everyone[:2], alone[:2], strict=True):
        torch.testing.assert_close(one, all_members[2:])


def rename_the_rule(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"termination": "os.system"}))


def claim_a_head(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"termination": "learned"}))


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def lie_about_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"members": 5}))


def drop_a_key(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["hidden"]
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (truncate, "not a dynamics model"),
        (lie_about_size, r"layers.0.weight has shape \(3, 4, 16\), config.json says \(5, 4, 16\)"),
        (drop_a_key, "config.json: not as declared: hidden .missing."),
        (rename_the_rule, "not a dynamics model"),
        (claim_a_head, r"layers.2.weight has shape \(3, 12, 8\), config.json says \(3, 12, 9\)"),
        (lambda folder: (folder / "config.json").unlink(), "config.json: not there"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: not JSON"),
    ],
)
def test_broken_files_are_refused_in_one_line(
    ensemble: GaussianEnsemble,
    tmp_path: Path,
    damage,  # type: ignore[no-untyped-def]
    says: str,
) -> None:
    ensemble.save(tmp_path, environment=None, variant="private", rounds=3)
    damage(tmp_path)
    with pytest.raises(PipelineError, match=says) as refused:
        GaussianEnsemble.load(tmp_path, CPU)
    assert "\n" not in str(refused.value)


def test_target_scale_withstands_rare_jumps() -> None:
    """One transition in a hundred jumps a hundred times as far: the usual spread still sets the scale."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(10_000, 2, generator=generator)
    targets[::100, 0] *= 100
    normaliser = Normaliser.from_public(torch.randn(10_000, 3, generator=generator), targets)
    assert 0.9 < float(normaliser.target_scale[0]) < 1.1
    assert float(targets[:, 0].std()) > 5  # the standard deviation would not have done


def test_constant_columns_are_left_alone() -> None:
    normaliser = Normaliser.from_public(torch.ones(50, 3), torch.zeros(50, 2))
    assert torch.equal(normaliser.input_scale, torch.ones(3))
    torch.testing.assert_close(normaliser.target_scale, torch.tensor([0.05, 1.0]))


def test_a_counters_noise_is_small_beside_its_range() -> None:
    """It moves alike in every step: with a scale of 1 a model's least variance would be a random walk through it."""
    left = torch.arange(20).flip(0).repeat(50) / 20
    inputs = torch.stack((left, torch.randn(1000)), dim=1)
    targets = torch.stack((torch.full((1000,), -0.05), torch.randn(1000), torch.randn(1000)), dim=1)
    scale = Normaliser.from_public(inputs, targets).target_scale
    torch.testing.assert_close(scale[0], 0.05 * left.std())
    assert scale[1:].min() > 0.8, "the twin: what varies keeps its own scale"


def test_sparse_targets_fall_back_to_the_standard_deviation() -> None:
    """A reward given once in twenty steps has a 90% quantile of zero."""
    targets = torch.zeros(1000, 1)
    targets[::20] = 1.0
    normaliser = Normaliser.from_public(torch.randn(1000, 2), targets)
    torch.testing.assert_close(normaliser.target_scale, targets.std(0))


def test_initial_weights_are_the_seeds() -> None:
    shape = Architecture(3, 1, 2, (8,), -10.0, 0.5)
    for ours, theirs in zip(shape.initial_weights(1), shape.initial_weights(1), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(shape.initial_weights(1)[0], shape.initial_weights(2)[0])
    assert sum(w.numel() for w in shape.initial_weights(0)) == shape.parameters
