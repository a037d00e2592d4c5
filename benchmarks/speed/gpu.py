"""Private rounds of networks and linear heads, and SAC's updates, on a GPU and on this machine's
CPU.

The sum of a network's round is checked first; `tests/engine/test_gpu.py` checks the others.

python -m benchmarks.speed.gpu

A round stands beside the CPU, `torch.bmm` of the same shapes, and the bytes that its local steps
move at the speed of a copy: memory is the limit of a round. Without a GPU it ends with an error.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.machine import machine, row, write
from benchmarks.speed import sac
from benchmarks.speed.fixed_round import BATCH, FixedRound
from benchmarks.speed.local_update import bare, check, fresh_batches
from primorl.model.numerics import flatten

ROUND = FixedRound(members=5, width=128, transitions=1000, cohort=300, device="cuda")
CHECKED = FixedRound(members=3, width=64, transitions=200, cohort=9, device="cuda")
HEADS = [
    FixedRound(members=1, width=0, transitions=rows, cohort=cohort, device="cuda")
    for cohort, rows in ((10_000, 64), (1_000_000, 20))
]
HIDDEN = 256
_COMMAND = "python -m benchmarks.speed.gpu"
# Of weights, a step reads forward and back, moves the update (read, write), takes its norm (read),
# scales it (read, write) and adds it to the start (read, write). Of a hidden layer it writes the
# product, reads it for SiLU, writes the signal, reads it forward and for the gradient; it writes
# the error, scales it (two reads, a write), reads it twice.
_WEIGHT_PASSES, _ACTIVATION_PASSES = 9, 11


def main() -> None:
    """Check, time, keep."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    if not torch.cuda.is_available():
        print(
            "error: benchmarks.speed.gpu: torch sees no GPU; run it on a machine with one",
            file=sys.stderr,
        )
        sys.exit(1)
    check(CHECKED, fresh_batches(CHECKED, CHECKED.cohort))
    print("checked: the sum of updates is the slow loop's")
    here = {"machine": f"{torch.cuda.get_device_name()}; {machine()}; CUDA {torch.version.cuda}"}
    write("gpu", [made | here for made in [*round_rows(), *update_rows()]])


def traffic(size: FixedRound) -> float:
    """Bytes that the local steps of a round move to and from memory if no cache helps; at most a
    few per cent more.
    """
    pairs, steps = size.cohort * size.members, -(-size.transitions // BATCH)
    weights = _WEIGHT_PASSES * size.shape.parameters // size.members
    activations = _ACTIVATION_PASSES * BATCH * sum(size.shape.hidden)
    return 4.0 * pairs * steps * (weights + activations)


def round_rows() -> list[dict[str, object]]:
    """Whole rounds beside their limits."""

    def rounds(size: FixedRound) -> Callable[[], object]:
        mechanism, weights = size.mechanism, flatten(size.weights)
        mine = size.rounds(size.source())
        return lambda: mechanism.release(mine.sum(weights))

    taken = seconds(rounds(ROUND))
    big = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(big)
    copied = 2 * big.nbytes / seconds(lambda: target.copy_(big))
    peers = {
        "the same on the CPU": seconds(rounds(replace(ROUND, device="cpu")), repeats=3),
        "torch.bmm of the same shapes": seconds(bare(ROUND, ROUND.cohort)),
        f"its {traffic(ROUND) / 1e9:.3g} GB at a copy's {copied / 1e12:.2f} TB/s": traffic(ROUND)
        / copied,
    }
    what = f"private round, {ROUND.name}"
    rows = [
        row(_COMMAND, what, taken, peer, name, peer / taken, "s") for name, peer in peers.items()
    ]
    for size in HEADS:
        taken, peer = seconds(rounds(size)), seconds(rounds(replace(size, device="cpu")), repeats=3)
        what = f"private round of linear heads, {size.name}"
        rows.append(row(_COMMAND, what, taken, peer, "the same on the CPU", peer / taken, "s"))
    return rows


def update_rows() -> list[dict[str, object]]:
    """SAC's updates a second, drawing the batch included."""
    rows = []
    for name, sizes in sac.SIZES.items():
        rates = [
            count / seconds(lambda work=work, count=count: work(count), repeats=3)  # type: ignore[misc]
            for work, count in (
                (sac.ours(*sizes, HIDDEN, device=torch.device("cuda")), 500),
                (sac.ours(*sizes, HIDDEN), 50),
                (sac.ours(*sizes, HIDDEN, sac.SEEDS, device=torch.device("cuda")), 500),
            )
        ]
        what = f"SAC updates, 256x256, batch 256, {name} sizes ({sizes[0]} + {sizes[1]})"
        rows.append(
            row(
                _COMMAND,
                what,
                rates[0],
                rates[1],
                "the same on the CPU",
                rates[0] / rates[1],
                "1/s",
            )
        )
        what = f"SAC updates of {len(sac.SEEDS)} seeds together, {name} sizes"
        rows.append(row(_COMMAND, what, rates[2], rates[0], "one seed", rates[2] / rates[0], "1/s"))
    return rows


def seconds(work: Callable[[], object], repeats: int = 10) -> float:
    """Median time of ``repeats`` calls, the GPU waited for, after two to warm up."""
    times = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return float(sorted(times[2:])[repeats // 2])


if __name__ == "__main__":
    main()
