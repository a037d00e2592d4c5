from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from primorl.base.errors import PipelineError
from primorl.policy.exported import DeterministicPolicy, save

LOW, HIGH = torch.tensor([-0.3, 1.7]), torch.tensor([0.1, 900.1])


def policy(seed: int) -> DeterministicPolicy:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(1, 16, 3), (1, 1, 16), (1, 8, 16), (1, 1, 8), (1, 2, 8), (1, 1, 2)]
    layers = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    return DeterministicPolicy(
        layers, torch.tensor([1.0, 0.0, -1.0]), torch.tensor([1.0, 2.0, 0.5]), LOW, HIGH
    )


EPOCHS = [policy(seed) for seed in range(4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, EPOCHS, variant="private", environment=None)
    return tmp_path


def test_a_saved_policy_acts_as_before(folder: Path) -> None:
    observation = torch.randn(4, 30, 3, generator=torch.Generator().manual_seed(9))
    assert torch.equal(
        DeterministicPolicy.load(folder).act(observation[3:]), EPOCHS[3].act(observation[3:])
    )
    far = EPOCHS[0].act(1e30 * observation[:1])
    assert bool(((far >= LOW) & (far <= HIGH)).all()), "rounding steps over no bound"
    epochs = DeterministicPolicy.load(folder, "epochs.safetensors")
    assert (epochs.policies, epochs.observation_size, epochs.action_size) == (4, 3, 2)
    for i, alone in enumerate(EPOCHS):
        torch.testing.assert_close(epochs.act(observation)[i], alone.act(observation[i : i + 1])[0])


def rewritten(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def break_it(file: Path) -> None:
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)

    return break_it


BREAKAGES: dict[str, Callable[[Path], object]] = {
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:-50]),
    "another shape": rewritten(lambda t: t.update({"layers.1.weight": torch.zeros(1, 8, 15)})),
    "a layer less": rewritten(lambda t: t.pop("layers.1.weight")),
    "not a number": rewritten(lambda t: t["layers.0.bias"].fill_(torch.nan)),
}


@pytest.mark.parametrize("breakage", BREAKAGES.values(), ids=BREAKAGES)
def test_broken_weights_are_named_in_one_line(
    folder: Path, breakage: Callable[[Path], object]
) -> None:
    breakage(folder / "policy.safetensors")
    with pytest.raises(PipelineError, match=r"^[^\n]*policy.safetensors: not a policy[^\n]*$"):
        DeterministicPolicy.load(folder)
