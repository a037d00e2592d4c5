"""A checkpoint is whole or refused, and holds nothing but what was released."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from primorl.base.errors import PipelineError
from primorl.engine.training import TrainingState
from primorl.privacy.ledger.checkpoint import read_checkpoint, write_checkpoint

VECTORS = ("weights", "velocity", "average", "best")
PARAMETERS = 12


@pytest.fixture
def state() -> TrainingState:
    answers = {
        "normaliser": torch.randn(7, 40, dtype=torch.float64),
        "starts": torch.randn(9, dtype=torch.float64),
    }
    vectors = {name: torch.randn(PARAMETERS) for name in VECTORS}
    counts: dict[str, Any] = {"mass": 0.3, "best_loss": 1.25, "since_best": 1}
    return TrainingState(
        **vectors, **counts, done=11, started=13, asked=len(answers), answers=answers
    )


def write(file: Path, state: TrainingState) -> None:
    write_checkpoint(file, state, charge="c", saves=2)


def read(file: Path, charge: str = "c") -> tuple[TrainingState, int]:
    return read_checkpoint(file, TrainingState.restore, charge)


def test_it_comes_back_as_it_was(state: TrainingState, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "c.safetensors"
    for each in (
        TrainingState(*[torch.zeros(PARAMETERS)] * 4),
        state,
        dataclasses.replace(state, finished=True),
    ):
        write(file, each)
        found, saves = read(file)
        ours, theirs = each.tensors(), found.tensors()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert each.facts() == found.facts()
        assert saves == 2
    assert [entry.name for entry in file.parent.iterdir()] == ["c.safetensors"]


def test_it_holds_what_was_released_and_nothing_else(state: TrainingState, tmp_path: Path) -> None:
    write(tmp_path / "c", state)
    raw = (tmp_path / "c").read_bytes()[32:]
    tensors = load(raw)
    assert {name.partition(".")[0] for name in tensors} == {*VECTORS, "answers"}
    assert {name for name in tensors if name.startswith("answers.")} == {
        "answers.normaliser",
        "answers.starts",
    }
    assert sum(t.numel() for t in tensors.values()) == 4 * PARAMETERS + 7 * 40 + 9
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert set(header["__metadata__"]) == {"checkpoint"}
    about = json.loads(header["__metadata__"]["checkpoint"])
    assert set(about) == {"charge", "saves", "facts"}
    counts = {"mass", "best_loss", "since_best", "done", "started", "finished"}
    assert set(about["facts"]) == counts | {
        "asked",
        "engine",
        "settings",
    }


@pytest.mark.parametrize("damage", ["bit", "short", "empty", "pickle", "another charge"])
def test_a_damaged_or_foreign_one_is_named_and_refused(
    state: TrainingState, tmp_path: Path, damage: str
) -> None:
    file = tmp_path / "c.safetensors"
    write(file, state)
    raw = bytearray(file.read_bytes())
    if damage == "bit":
        raw[len(raw) // 2] ^= 1
    file.write_bytes(
        {"short": raw[:-7], "empty": b"", "pickle": b"\x80\x04K\x01."}.get(damage, raw)
    )
    charge = "d" if damage == "another charge" else "c"
    with pytest.raises(
        PipelineError,
        match=r"c\.safetensors: not a checkpoint of this run, or damaged; its charge s",
    ):
        read(file, charge)
