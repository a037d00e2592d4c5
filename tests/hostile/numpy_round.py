"""PriMORL's Algorithm 2 for one round in NumPy and float64, written from its text; nothing of the
project is imported.

θ: per layer a matrix ``[N, in, out]`` and a bias ``[N, 1, out]``. A unit takes gradient steps on
its own batches from the released θ; after every step each member's distance from θ is clipped to
C/√N. The sum over the cohort is released.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MARGIN = 1 - 2.0**-14  # the documented hair below the bound


def sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


def softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


def gradients(theta: Sequence[Array], x: Array, y: Array, low: float, high: float) -> list[Array]:
    """Of the mean over rows of Σ ½((μ - y)² e^-v + v), v softly within (low, high), for one
    member.
    """
    signals, before = [x], []
    for weight, bias in zip(theta[0:-2:2], theta[1:-2:2], strict=True):
        before.append(signals[-1] @ weight + bias)
        signals.append(before[-1] * sigmoid(before[-1]))
    output = signals[-1] @ theta[-2] + theta[-1]
    size = y.shape[1]
    mean, raw = output[:, :size], output[:, size:]
    under = high - softplus(high - raw)
    v = low + softplus(under - low)
    miss = mean - y
    by_v = 0.5 * (1 - miss**2 * np.exp(-v))
    error = np.concatenate(
        (miss * np.exp(-v), by_v * sigmoid(under - low) * sigmoid(high - raw)), axis=1
    ) / len(x)
    found: list[Array] = []
    for layer in reversed(range(len(signals))):
        found = [signals[layer].T @ error, error.sum(0, keepdims=True), *found]
        if layer:
            s = sigmoid(before[layer - 1])
            error = (error @ theta[2 * layer].T) * (s + before[layer - 1] * s * (1 - s))
    return found


def update(
    theta: Sequence[Array],
    batches: Sequence[tuple[Array, Array]],
    settings: tuple[float, float, float, float],
    per_layer: bool = False,
) -> list[Array]:
    """Δ of one unit, shaped like ``theta``; settings: learning rate, C, and the bounds of the
    log-variance.
    """
    rate, norm, low, high = settings
    members = len(theta[0])
    parts = [[w[i] for w in theta] for i in range(members)]
    joint: list[list[Array]] = []
    for start in parts:
        moved = [np.zeros_like(w) for w in start]
        for x, y in batches:
            now = [w + m for w, m in zip(start, moved, strict=True)]
            step = gradients(now, x, y, low, high)
            moved = [m - rate * g for m, g in zip(moved, step, strict=True)]
            groups = [moved[i : i + 2] for i in range(0, len(moved), 2)] if per_layer else [moved]
            bound = norm * MARGIN / math.sqrt(members * len(groups))
            moved = []
            for group in groups:
                length = math.sqrt(sum(float((m**2).sum()) for m in group))
                moved += [m * min(1.0, bound / length) if length else m for m in group]
        joint.append(moved)
    return [np.stack([member[i] for member in joint]) for i in range(len(theta))]


def joiners(words: bytes, q: float) -> list[int]:
    """Who joins: unit u whose 64-bit coin lies below q·2^64."""
    return [
        u
        for u, coin in enumerate(np.frombuffer(words, "<u8"))
        if int(coin) < int(q * 2.0**64) or q >= 1
    ]
