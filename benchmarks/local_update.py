"""One private round's local updates: the batched kernel beside the slow per-trajectory loop.

python -m benchmarks.local_update [--threads 1] [--cohorts 30 300]
"""

import argparse

import torch

from benchmarks.machine import machine, seconds, write
from pipeline.dynamics.ensemble import Architecture
from pipeline.dynamics.local_update import LocalBatches, LocalTraining, sum_of_updates
from pipeline.privacy.clipping import EnsembleClip
from tests.dynamics.reference import reference_sum

CLIP, TRANSITIONS, BATCH, CHUNK = 0.5, 200, 16, 60


def main() -> None:
    """Time both on the same batches, check that they agree, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cohorts", type=int, nargs="+", default=[30, 300])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shape = Architecture(3, 1, 3, (64, 64), -10.0, 0.5)
    local = LocalTraining(learning_rate=0.01, batch_size=BATCH, epochs=1, weight_decay=0.0)
    clip = EnsembleClip(CLIP, "flat", shape.members, len(shape.layers))
    weights = shape.initial_weights(0)
    rows: list[dict[str, object]] = []
    for cohort in arguments.cohorts:
        generator = torch.Generator().manual_seed(cohort)
        full, rest = divmod(TRANSITIONS, BATCH)
        own = torch.full((full + 1, cohort, BATCH), 1 / BATCH)
        own[-1] = (torch.arange(BATCH) < rest) / rest
        inputs = torch.randn(full + 1, cohort, BATCH, shape.inputs, generator=generator)
        batches = LocalBatches(inputs, torch.sin(inputs), own)

        def ours(batches: LocalBatches = batches, cohort: int = cohort) -> list[torch.Tensor]:
            parts = [
                sum_of_updates(weights, _units(batches, slice(i, i + CHUNK)), shape, local, clip)
                for i in range(0, cohort, CHUNK)
            ]
            return [torch.stack(tensors).sum(0) for tensors in zip(*parts, strict=True)]

        def peer(batches: LocalBatches = batches) -> list[torch.Tensor]:
            return reference_sum(weights, batches, shape, local, CLIP, "flat")

        for fast, slow in zip(ours(), peer(), strict=True):
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-4 * float(slow.abs().max()))
        fast_seconds, slow_seconds = seconds(ours, 9), seconds(peer, 3)
        rows.append(
            {
                "what": f"local updates of a round, qK {cohort}, N 3, 2x64, T 200, B 16",
                "ours": fast_seconds,
                "peer": slow_seconds,
                "peer_name": "per-trajectory, per-member autograd loop (tests/dynamics/reference.py)",
                "ratio": slow_seconds / fast_seconds,
                "unit": "s",
                "machine": machine(),
                "command": f"python -m benchmarks.local_update --threads {arguments.threads}",
            }
        )
    write("local_update", rows)


def _units(batches: LocalBatches, units: slice) -> LocalBatches:
    return LocalBatches(batches.inputs[:, units], batches.targets[:, units], batches.weights[:, units])


if __name__ == "__main__":
    main()
