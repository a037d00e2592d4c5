"""Mechanisms whose noise is not what they state, and calls that are watched."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from primorl.privacy.mechanism.mechanism import Mechanism


def releasing(change: Callable[[Mechanism, list[Tensor]], Sequence[Tensor]]) -> type[Mechanism]:
    """A mechanism that adds what ``change`` makes of its noise, in released units, to the exact
    sum.
    """

    class Changed(Mechanism):
        def release(self, total: Sequence[Tensor]) -> tuple[Tensor, ...]:
            noise = [
                part.double()
                for part in super().release([torch.zeros_like(part) for part in total])
            ]
            return tuple(
                (part / self.expected_cohort + own).float()
                for part, own in zip(total, change(self, noise), strict=True)
            )

    return Changed


HalfTheNoise = releasing(lambda mechanism, noise: [part / 2 for part in noise])


class SeededEntropy:
    """Reproducible bytes for tests. Everything made with it is void as a private release."""

    seeded = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def fill(self, buffer: memoryview) -> None:
        """Overwrite ``buffer`` with the next bytes of the seeded stream."""
        buffer[:] = self._generator.bytes(len(buffer))


def watch(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, before: Callable[..., object]
) -> None:
    """Have ``before`` called with what each call of a function is given."""
    call = getattr(owner, name)

    def watched(*given: Any, **named: Any) -> Any:
        before(*given, **named)
        return call(*given, **named)

    monkeypatch.setattr(owner, name, watched)
