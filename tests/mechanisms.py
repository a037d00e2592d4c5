"""The law of noise, entropy that repeats itself, and calls that are watched."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from primorl.privacy.mechanism.mechanism import Mechanism


def releasing(change: Callable[[Mechanism, Tensor], Tensor]) -> type[Mechanism]:
    """A mechanism that adds what ``change`` makes of its noise, in released units, to the exact
    sum.
    """

    class Changed(Mechanism):
        def release(self, total: Tensor) -> Tensor:
            noise = super().release(torch.zeros_like(total)).double()
            return (total / self.expected_cohort + change(self, noise)).float()

    return Changed


HalfTheNoise = releasing(lambda mechanism, noise: noise / 2)


def is_noise_of(values: Tensor, standard_deviation: float) -> bool:
    """Whether the sum of squares is within the central 1 - 1e-6 of its law."""
    ratio = float(values.double().square().sum()) / standard_deviation**2
    return bool(chi2.ppf(5e-7, len(values)) < ratio < chi2.ppf(1 - 5e-7, len(values)))


class KilledError(BaseException):
    """Stands for a kill: no handler sees it, and nothing after it runs."""


class SeededEntropy:
    """Reproducible bytes for tests. Everything made with it is void as a private release.

    Attributes:
        drawn: the last bytes.
    """

    seeded, drawn = True, b""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def fill(self, buffer: memoryview) -> None:
        """Overwrite ``buffer`` with the next bytes of the seeded stream."""
        self.drawn = buffer[:] = self._generator.bytes(len(buffer))


def watch(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, before: Callable[..., object]
) -> None:
    """Have ``before`` called with what each call of a function is given."""
    call = getattr(owner, name)

    def watched(*given: Any, **named: Any) -> Any:
        before(*given, **named)
        return call(*given, **named)

    monkeypatch.setattr(owner, name, watched)
