"""Training's progress on disk: what a killed run is taken up from. Holds released things only."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from primorl.dynamics.ensemble import Architecture, Weights
from primorl.project.errors import PipelineError
from primorl.project.files import finite, replaced_file
from primorl.training.public_evaluation import PublicEvaluation
from primorl.training.state import TENSORS, TrainingState

_KEY = "progress"
_ANSWERS = "answers."
_DIGEST = 32


def write(path: Path, state: TrainingState, charge: str) -> None:
    """Replace the checkpoint at ``path``: whole, and on the disk when this returns.

    Its content: a SHA-256 of the rest, then a safetensors file of the tensors, the queries' answers among them, with
    the counts, the evaluations and ``charge`` (which charge of the ledger paid) in its header. No generator state,
    nothing about a unit.
    """
    # One vector each: a file of two dozen small tensors takes twice the time, and every round writes one.
    tensors = {name: torch.cat([w.detach().flatten() for w in getattr(state, name)]).cpu() for name in TENSORS}
    tensors |= {f"{_ANSWERS}{name}": answer.detach().cpu().clone() for name, answer in state.answers.items()}
    content = save(tensors, {_KEY: json.dumps(_counts(state) | {"charge": charge}, allow_nan=False)})
    with replaced_file(path) as fresh:
        fresh.write_bytes(hashlib.sha256(content).digest() + content)


def read(path: Path, shape: Architecture, charge: str) -> TrainingState:
    """Read what `write` wrote; executes nothing from the file.

    Raises:
        PipelineError: the checkpoint is damaged, or is not one of ``shape`` and ``charge``.
    """
    raw = path.read_bytes()
    try:
        digest, content = raw[:_DIGEST], raw[_DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            raise ValueError
        size = int.from_bytes(content[:8], "little")
        counts = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][_KEY])
        if counts.pop("charge") != charge:
            raise ValueError
        tensors = load(content)
        parts: dict[str, Any] = {name: _part(tensors, name, shape) for name in TENSORS}
        answers = {name.removeprefix(_ANSWERS): part for name, part in tensors.items() if name.startswith(_ANSWERS)}
        return _progress(parts | {"answers": answers}, counts)
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError):
        raise PipelineError(
            f"{path}: not a checkpoint of this run, or damaged; delete it to train anew, which spends as much again"
        ) from None


def _part(tensors: dict[str, Any], name: str, shape: Architecture) -> Weights:
    sizes = [size for i, o in shape.layers for size in ((shape.members, i, o), (shape.members, 1, o))]
    lengths = [math.prod(size) for size in sizes]
    if tensors[name].shape != (sum(lengths),):
        raise ValueError
    return tuple(part.clone().view(size) for part, size in zip(tensors[name].split(lengths), sizes, strict=True))


def _counts(state: TrainingState) -> dict[str, Any]:
    plain = {key: value for key, value in vars(state).items() if key not in (*TENSORS, "answers")}
    evaluations = [[each.round, finite(each.loss), [finite(e) for e in each.error]] for each in state.evaluations]
    return plain | {"best_loss": finite(state.best_loss), "evaluations": evaluations}


def _progress(parts: dict[str, Any], counts: dict[str, Any]) -> TrainingState:
    evaluations = tuple(
        PublicEvaluation(at, _number(loss), tuple(map(_number, error))) for at, loss, error in counts["evaluations"]
    )
    return TrainingState(**counts | parts | {"evaluations": evaluations, "best_loss": _number(counts["best_loss"])})


def _number(value: float | None) -> float:
    return math.inf if value is None else value
