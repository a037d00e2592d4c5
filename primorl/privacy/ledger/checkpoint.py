"""Checkpoints: the state of a mechanism between two releases, on disk, so that a killed run can
resume.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from primorl.base import PipelineError
from primorl.base.files import replaced_file

_KEY = "checkpoint"
_DIGEST = 32


class State(Protocol):
    """Base of the states of a mechanism between releases: frozen dataclasses of tensors and plain
    values.

    It holds only released values, so it may be written to disk. ``started`` and ``finished`` are
    fields with a default, or properties.
    """

    OTHER: ClassVar[str] = "another version of the code"
    """What differs where two states of the same settings are not ``about`` the same."""
    about: str = ""
    """Digest of what the work rests on beside its identity: a resumed state has the same."""

    @property
    def started(self) -> int:
        """Number of releases that began, or may have begun.

        They are spent, even if their result was lost.
        """

    @property
    def finished(self) -> bool:
        """Whether no release is left to make."""

    @property
    def lost(self) -> bool:
        """Whether the state lacks a release that the charge pays for only once, so that the run
        cannot resume; others are drawn again, or left out.
        """
        return False

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to write, by name: the fields that are tensors."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def facts(self) -> dict[str, Any]:
        """Return everything else, as strict JSON: the other fields."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, Tensor)}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> Self:
        """Rebuild the state.

        Raises:
            ValueError, KeyError, TypeError: they are of no such state.
        """
        return cls(**tensors, **facts)


S = TypeVar("S", bound=State)


def write_checkpoint(path: Path, state: State, *, charge: str, saves: int = 0) -> None:
    """Replace the checkpoint at ``path`` atomically. It is on the disk when this returns.

    The file: a SHA-256 of the rest, then a safetensors file with the state's tensors. Its header
    holds the facts, the id of the charge that paid, and ``saves``. No generator state, nothing
    about a unit.
    """
    # Copies: safetensors refuses tensors that share memory.
    form, tensors = torch.contiguous_format, state.tensors().items()
    copies = {name: each.detach().cpu().clone(memory_format=form) for name, each in tensors}
    header = {"charge": charge, "saves": saves, "facts": state.facts()}
    content = save(copies, {_KEY: json.dumps(header, allow_nan=False)})
    with replaced_file(path) as fresh:
        fresh.write_bytes(hashlib.sha256(content).digest() + content)


def read_checkpoint(path: Path, kind: type[S], charge: str, remedy: str = "") -> tuple[S, int]:
    """Read a file of `write_checkpoint`: the state, and the number of saves under this charge
    (`Progress`). Executes nothing from the file.

    Args:
        path: of the file.
        kind: of the state.
        charge: that the file must be of.
        remedy: end of the message where it is damaged.

    Raises:
        PipelineError: the checkpoint is damaged, belongs to another charge, or was written by
            another version of the code: it does not fit ``kind``.
    """
    try:
        content, header = _content(path)
        if header["charge"] != charge:
            raise ValueError
        tensors, facts, saves = load(content), header["facts"], int(header["saves"])
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError):
        raise PipelineError(
            f"{path}: no checkpoint of this run, or damaged; its charge stays spent{remedy}"
        ) from None
    try:
        return kind.restore(tensors, facts), saves
    except (ValueError, KeyError, TypeError):  # it is whole: its digest is right
        raise PipelineError(
            f"{path}: written by another version of the code; go on with that version; its charge "
            f"stays spent{remedy}"
        ) from None


def has_begun(path: Path) -> bool:
    """Tell whether a release was announced in the checkpoint at ``path``; True if the file cannot
    be read.
    """
    try:
        _, header = _content(path)
        return bool(header["saves"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return True


def _content(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the safetensors file in a checkpoint, and its header.

    Raise an error if the file is damaged.
    """
    raw = path.read_bytes()
    digest, content = raw[:_DIGEST], raw[_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError
    size = int.from_bytes(content[:8], "little")
    return content, json.loads(json.loads(content[8 : 8 + size])["__metadata__"][_KEY])
