"""The figures that only a GPU can make: a private round and SAC, each checked first and then held against its limit.

python -m benchmarks.gpu [--bandwidth 4.8 --teraflops 67]

The limits are computed before anything runs, from what the work must move and multiply and from the given figures of
the machine (an H200's by default: HBM3e in TB/s, float32 without tensor cores in TFLOP/s); beside them stand the same
limits from a copy and a batched product timed here. Without a GPU it ends with an error.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks import sac
from benchmarks.fixed_round import BATCH, FixedRound
from benchmarks.local_update import bare
from benchmarks.machine import write
from pipeline.dynamics.captured import SumOfUpdates
from pipeline.dynamics.cohort import local_batches
from pipeline.dynamics.local_update import LocalBatches, sum_of_updates
from tests.dynamics.reference import reference_sum

ROUND = FixedRound(members=5, width=128, transitions=1000, cohort=300, device="cuda")
CHECKED = FixedRound(members=3, width=64, transitions=200, cohort=9, device="cuda")
ROUND_SECONDS, UPDATES = 0.025, 900.0  # what is asked of an H200
# A step reads a layer's weights forward and back, moves the update (read, write), takes its norm (read), scales it
# (read, write) and adds it to where it began (read, write).
_PASSES = 9
_ACTIVATION_PASSES = 9  # written and read forward, read for the gradient; the error written, read twice, and scaled


def main() -> None:
    """Compute the limits, check, time, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", type=float, default=4.8, help="of the GPU's memory, TB/s")
    parser.add_argument("--teraflops", type=float, default=67.0, help="of float32 products, TFLOP/s")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: benchmarks.gpu: torch sees no GPU; run it on a machine with one", file=sys.stderr)
        sys.exit(1)
    moved, multiplied = traffic(ROUND), arithmetic(ROUND)
    limit = max(moved / arguments.bandwidth / 1e12, multiplied / arguments.teraflops / 1e12)
    print(
        f"limit computed beforehand: {moved / 1e9:.1f} GB, {multiplied / 1e9:.0f} GFLOP: {limit * 1e3:.1f} ms a round"
    )
    check(CHECKED)
    print("checked: eager and captured, the GPU's sums are the reference's")
    rows = round_rows(limit)
    rows += update_rows()
    write("gpu", rows)


def traffic(size: FixedRound) -> float:
    """Bytes that the local steps of a round move to and from memory if no cache helps."""
    pairs, steps = size.cohort * size.members, -(-size.transitions // BATCH)
    weights = sum((inputs + 1) * outputs for inputs, outputs in size.shape.layers)
    activations = BATCH * sum(size.shape.hidden)
    return 4.0 * pairs * steps * (_PASSES * weights + _ACTIVATION_PASSES * activations)


def arithmetic(size: FixedRound) -> float:
    """Floating-point operations of its products: forward, error (but for the first layer) and gradient."""
    pairs, steps = size.cohort * size.members, -(-size.transitions // BATCH)
    products = sum(inputs * outputs * (3 if i else 2) for i, (inputs, outputs) in enumerate(size.shape.layers))
    return 2.0 * BATCH * pairs * steps * products


def check(size: FixedRound) -> None:
    """The sums on the GPU, plain, captured and replayed with other rows and weights, against the slow loop's.

    Raises:
        AssertionError: they differ.
    """
    captured = SumOfUpdates(size.shape, size.local, size.plan.clip)
    for seed in range(3):
        batches = fresh_batches(size)
        weights = tuple(w.cuda() for w in size.shape.initial_weights(seed))
        on_cpu = LocalBatches(batches.inputs.cpu(), batches.targets.cpu(), batches.weights.cpu())
        slow = reference_sum(
            tuple(w.cpu() for w in weights), on_cpu, size.shape, size.local, size.clipping_norm, "flat"
        )
        plain = sum_of_updates(weights, batches, size.shape, size.local, size.plan.clip)
        for found in (plain, captured(weights, batches)):
            for ours, theirs in zip(found, slow, strict=True):
                torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=1e-4 * float(theirs.abs().max()))


def fresh_batches(size: FixedRound) -> LocalBatches:
    """Of all units, in a fresh order."""
    return local_batches(
        size.source(),
        torch.arange(size.cohort),
        size.normaliser,
        batch_size=BATCH,
        epochs=1,
        max_transitions=None,
        entropy=size.plan.entropy,
    )


def round_rows(limit: float) -> list[dict[str, object]]:
    """The whole round, its local training alone, captured and not, and the limits."""
    source, plan, weights, batches = ROUND.source(), ROUND.plan, ROUND.weights, fresh_batches(ROUND)
    captured = SumOfUpdates(ROUND.shape, ROUND.local, plan.clip)
    many = replace(plan, rounds=1 << 20)
    with ROUND.rounds(source) as rounds:
        whole = seconds(lambda: many.release(rounds.sum(weights)))
    alone = seconds(lambda: captured(weights, batches))
    eager = seconds(lambda: sum_of_updates(weights, batches, ROUND.shape, ROUND.local, plan.clip))
    products = seconds(bare(ROUND, ROUND.cohort))
    big = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(big)
    copied = 2 * big.nbytes / seconds(lambda: target.copy_(big))
    peers = [
        ("whole round, read ahead", whole, "what is asked of an H200", ROUND_SECONDS),
        ("whole round, read ahead", whole, "the limit computed beforehand", limit),
        ("whole round, read ahead", whole, f"its bytes at a copy's {copied / 1e12:.2f} TB/s", traffic(ROUND) / copied),
        ("local training, captured", alone, "the same, kernel by kernel", eager),
        ("local training, captured", alone, "torch.bmm of the same shapes, kernel by kernel", products),
    ]
    return [row(f"{ROUND.name}: {what}", ours, peer, name, "s", peer / ours) for what, ours, name, peer in peers]


def update_rows() -> list[dict[str, object]]:
    """SAC's updates a second at 256×256, batch 256, and its arithmetic's share of what products reach."""
    rows = []
    for name, (observations, actions) in sac.SIZES.items():
        work = sac.ours(observations, actions, 256, device=torch.device("cuda"))
        rate = 1000 / seconds(lambda work=work: work(1000), repeats=5)  # type: ignore[misc]
        what = f"SAC updates, 256x256, batch 256, {name} sizes ({observations} + {actions})"
        rows.append(row(what, rate, UPDATES, "what is asked of an H200", "1/s", rate / UPDATES))
    return rows


def seconds(work: Callable[[], object], repeats: int = 20) -> float:
    """Median wall time, the GPU waited for; the first three calls, which capture, are left out."""
    times = []
    for _ in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times[3:])[repeats // 2]


def row(what: str, ours: float, peer: float, peer_name: str, unit: str, ratio: float) -> dict[str, object]:
    """One line of the results."""
    return {
        "what": what,
        "ours": ours,
        "peer": peer,
        "peer_name": peer_name,
        "ratio": ratio,
        "unit": unit,
        "machine": f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}",
        "command": "python -m benchmarks.gpu",
    }


if __name__ == "__main__":
    main()
