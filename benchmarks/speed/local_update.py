"""A private round beside the slow loop that judges it, and beside bare batched products, its limit.

python -m benchmarks.speed.local_update [--threads 1]

What is timed is the whole round: reading and shuffling the cohort, local training and clipping, the
sum, the noise. The limit is as many `torch.bmm` of the same shapes as the local training needs
(forward, error, gradient) and nothing else, in portions of the size that suits it best. The loop
gets its batches ready made, and is timed once, on 30 units at most.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.machine import interleaved, row, write
from benchmarks.speed.fixed_round import FixedRound
from primorl.engine.local_update import Kernel, LocalBatches, read_batches
from primorl.model.numerics import flatten
from primorl.privacy.mechanism.clipping import EnsembleClip
from tests.engine.reference import reference_sum

_LOOP_UNITS = 30  # the loop's time is that of so many units, times what is left
_PORTIONS = (2, 4, 8, 16, 32, 256)  # units of a batch of bare products
SIZES = [
    FixedRound(members=3, width=64, transitions=200, cohort=30),
    FixedRound(members=3, width=64, transitions=200, cohort=300),
    FixedRound(members=5, width=128, transitions=1000, cohort=30),
    FixedRound(members=5, width=128, transitions=1000, cohort=300),
    FixedRound(members=1, width=0, transitions=20, cohort=50_000),
    FixedRound(members=1, width=0, transitions=64, cohort=10_000),
]


def main() -> None:
    """Check that both agree, time them, keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    command = f"python -m benchmarks.speed.local_update --threads {threads}"
    rows = [made for size in SIZES for made in measured(size, command)]
    write("local_update" if threads == 1 else f"local_update_{threads}_threads", rows)


def measured(size: FixedRound, command: str) -> list[dict[str, object]]:
    """The round beside the loop, and beside bare products."""
    source, mechanism, weights = size.source(), size.mechanism, size.weights
    looped = min(size.cohort, _LOOP_UNITS)
    loop = check(size, fresh_batches(size, looped)) * size.cohort / looped
    rounds = size.rounds(source)

    def ours() -> object:
        return mechanism.release(rounds.sum(flatten(weights)))

    works: list[Callable[[], object]] = [ours, *(bare(size, portion) for portion in _PORTIONS)]
    taken, *products = interleaved(works, 5)
    counted = "" if looped == size.cohort else f" ({looped} units, times {size.cohort / looped:g})"
    peers = {
        "the loop": (
            loop,
            f"per-trajectory, per-member autograd loop (tests/engine/reference.py){counted}",
        ),
        "bare products": (min(products), "torch.bmm of the same shapes, nothing else"),
    }
    return [
        row(command, f"private round, {size.name}: {what}", taken, peer, name, peer / taken, "s")
        for what, (peer, name) in peers.items()
    ]


def fresh_batches(size: FixedRound, units: int) -> LocalBatches:
    """Of the first ``units``, in a fresh order."""
    device = size.normaliser.input_mean.device
    batches = read_batches(
        size.source(), torch.arange(units), size.local, size.mechanism.entropy, device
    )
    return batches.standardise(size.normaliser)


def check(size: FixedRound, batches: LocalBatches) -> float:
    """Seconds of the loop on ``batches``, whose sum must be the kernel's."""
    assert isinstance(size.mechanism.clip, EnsembleClip)
    fast = Kernel(size.shape, size.local, size.mechanism.clip, torch.device(size.device)).sum(
        size.weights, batches
    )
    slow: list[Tensor] = []
    weights = tuple(part.cpu() for part in size.weights)
    copied = LocalBatches(
        *(part.cpu() for part in (batches.inputs, batches.targets, batches.weights))
    )

    def loop() -> None:
        slow[:] = reference_sum(weights, copied, size.shape, size.local, size.clipping_norm, "flat")

    (seconds,) = interleaved([loop], 1, warm=False)
    for ours, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(
            ours.cpu(), theirs, rtol=0, atol=1e-4 * float(theirs.abs().max())
        )
    return seconds


def bare(size: FixedRound, portion: int) -> Callable[[], None]:
    """The products of a round: forward, error and gradient of every layer, step and portion of
    units.
    """
    steps = -(-size.transitions // size.batch)

    def portions() -> list[int]:
        full, rest = divmod(size.cohort, portion)
        return [portion] * full + [rest] * (rest > 0)

    buffers = {units: _Buffers(size, units * size.members) for units in set(portions())}

    def work() -> None:
        for units in portions():
            for _ in range(steps):
                buffers[units].step()

    return work


class _Buffers:
    def __init__(self, size: FixedRound, pairs: int) -> None:
        layers, device = size.shape.layers, size.device
        self._weights = [torch.randn(pairs, i, o, device=device) for i, o in layers]
        self._below = [torch.randn(pairs, size.batch, i, device=device) for i, _ in layers]
        self._above = [torch.randn(pairs, size.batch, o, device=device) for _, o in layers]
        self._outputs = [torch.empty_like(above) for above in self._above]
        self._errors = [torch.empty_like(below) for below in self._below]
        self._gradients = [torch.empty_like(weights) for weights in self._weights]

    def step(self) -> None:
        for below, weights, outputs in zip(self._below, self._weights, self._outputs, strict=True):
            torch.bmm(below, weights, out=outputs)
        for i in reversed(range(len(self._weights))):
            if i:
                torch.bmm(self._above[i], self._weights[i].mT, out=self._errors[i])
            torch.bmm(self._below[i].mT, self._above[i], out=self._gradients[i])


if __name__ == "__main__":
    main()
