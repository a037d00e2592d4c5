"""Checkpoints: what a mechanism carries from one release to the next, on disk, so that a killed run can resume."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from primorl.project.errors import PipelineError
from primorl.project.files import replaced_file

_KEY = "checkpoint"
_DIGEST = 32


class State(Protocol):
    """State of a mechanism between releases. It holds released things only, so it may be written to disk."""

    @property
    def started(self) -> int:
        """Releases that began, or may have begun. They are spent, even if their result was lost."""

    @property
    def finished(self) -> bool:
        """Whether no release is left to make."""

    @property
    def lost(self) -> bool:
        """Whether the state lacks a release that the charge pays for only once, so that the run cannot resume."""

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors to write, by name."""

    def facts(self) -> Mapping[str, Any]:
        """Everything else, as strict JSON."""


class DataclassState:
    """Base of a `State` that is a frozen dataclass of tensors and plain values: it needs no code to be written.

    The subclass has the fields ``started`` and ``finished``.
    """

    lost: ClassVar[bool] = False

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def facts(self) -> dict[str, Any]:
        """The other fields."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, Tensor)}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> Self:
        """Rebuild the state."""
        return cls(**tensors, **facts)


S = TypeVar("S", bound=State)
Restore = Callable[[Mapping[str, Tensor], dict[str, Any]], S]
"""Rebuilds a state from its tensors and facts. Raises ValueError, KeyError or TypeError if they do not fit."""


@dataclass(frozen=True)
class Checkpoint(Generic[S]):
    """A state on disk.

    Attributes:
        state: what was written.
        resumed: how often a process resumed this run after another one died.
    """

    state: S
    resumed: int


def write_checkpoint(path: Path, state: State, *, charge: str, resumed: int) -> None:
    """Replace the checkpoint at ``path`` atomically. It is on the disk when this returns.

    The file: a SHA-256 of the rest, then a safetensors file with the state's tensors. Its header holds the facts, the
    id of the charge that paid, and ``resumed``. No generator state, nothing about a unit.
    """
    # Copies: safetensors refuses tensors that share memory.
    tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in state.tensors().items()
    }
    header = {"charge": charge, "resumed": resumed, "facts": dict(state.facts())}
    content = save(tensors, {_KEY: json.dumps(header, allow_nan=False)})
    with replaced_file(path) as fresh:
        fresh.write_bytes(hashlib.sha256(content).digest() + content)


def read_checkpoint(path: Path, restore: Restore[S], charge: str) -> Checkpoint[S]:
    """Read what `write_checkpoint` wrote. Executes nothing from the file.

    Raises:
        PipelineError: the checkpoint is damaged, belongs to another charge, or does not fit ``restore``.
    """
    raw = path.read_bytes()
    try:
        digest, content = raw[:_DIGEST], raw[_DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            raise ValueError
        size = int.from_bytes(content[:8], "little")
        header = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][_KEY])
        if header["charge"] != charge:
            raise ValueError
        return Checkpoint(restore(load(content), header["facts"]), int(header["resumed"]))
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError):
        raise PipelineError(
            f"{path}: not a checkpoint of this run, or damaged; delete it to start over, which spends as much again"
        ) from None
