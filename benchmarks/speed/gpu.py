"""The figures that only a GPU can make: a private round and SAC, each checked first and then held against its limit.

python -m benchmarks.speed.gpu [--bandwidth 4.8 --teraflops 67]

The limits are computed before anything runs, from what the work must move and multiply and from the given figures of
the machine (an H200's by default: HBM3e in TB/s, float32 without tensor cores in TFLOP/s); beside the round's stand
its bytes at the speed of a copy, and batched products, timed here. Without a GPU it ends with an error.
"""

import argparse
import sys
from collections.abc import Callable

import torch

from benchmarks.machine import write
from benchmarks.speed import sac
from benchmarks.speed.fixed_round import BATCH, FixedRound
from benchmarks.speed.gpu_checks import actor_and_critic, check_sums, check_updates, fresh_batches
from benchmarks.speed.local_update import bare
from primorl.training.cuda_graph import SumOfUpdates
from primorl.training.local_update import sum_of_updates

ROUND = FixedRound(members=5, width=128, transitions=1000, cohort=300, device="cuda")
CHECKED = FixedRound(members=3, width=64, transitions=200, cohort=9, device="cuda")
ALSO_CHECKED = FixedRound(members=3, width=64, transitions=100, cohort=6, device="cuda")
HIDDEN = 256
ROUND_SECONDS, UPDATES = 0.025, 900.0  # what is asked of an H200
# A step reads a layer's weights forward and back, moves the update (read, write), takes its norm (read), scales it
# (read, write), and adds it to where it began (read, write). The first layer carries no error back.
_PASSES, _OF_FIRST_LAYER = 9, 8
# Of a hidden layer: the product written, read by SiLU, its signal written, read forward and for the gradient; the error
# written, scaled by SiLU's slope (two read, one written), read for the gradient and (not of the first) carried back.
_ACTIVATION_PASSES, _OF_FIRST_HIDDEN = 11, 10
# Forward, back, Adam (parameters, gradient and two moments read, all but the gradient written), the gradient written;
# a critic is looked at and asked for a slope once more, and read by its target, which is read forward and moved.
_ACTOR_PASSES, _CRITIC_PASSES, _TARGET_PASSES = 10, 13, 3


def main() -> None:
    """Compute the limits, check, time, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", type=float, default=4.8, help="of the GPU's memory, TB/s")
    parser.add_argument("--teraflops", type=float, default=67.0, help="of float32 products, TFLOP/s")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: benchmarks.speed.gpu: torch sees no GPU; run it on a machine with one", file=sys.stderr)
        sys.exit(1)
    speeds = (arguments.bandwidth * 1e12, arguments.teraflops * 1e12)
    limit = at_best("a round", traffic(ROUND), arithmetic(ROUND), *speeds)
    limits = {}
    for name, sizes in sac.SIZES.items():
        work = update_traffic(*sizes, HIDDEN), update_arithmetic(*sizes, HIDDEN, sac.BATCH)
        limits[name] = at_best(f"an update of SAC, {name} sizes", *work, *speeds)
    drift = check_sums(CHECKED, ALSO_CHECKED)
    print("checked: sums of two sizes in turn, plain and captured, are the slow loop's")
    print(f"with one unit less the sum of the others moves by {drift:.1e} C at most")
    for sizes in sac.SIZES.values():
        check_updates(*sizes, HIDDEN, torch.device("cuda"))
    print("checked: SAC's captured updates are the plain ones, and the plain ones' gradients autograd's")
    rows = round_rows(limit)
    rows += update_rows(limits)
    write("gpu", [*rows, row(f"{CHECKED.name}: drift of the others' sum with one unit less", drift, "C")])


def at_best(what: str, moved: float, multiplied: float, bandwidth: float, flops: float) -> float:
    """Seconds of ``moved`` bytes or of ``multiplied`` operations, whichever take longer; said before anything runs."""
    seconds = max(moved / bandwidth, multiplied / flops)
    print(f"limit of {what}: {moved / 1e9:.4g} GB, {multiplied / 1e9:.4g} GFLOP: {seconds * 1e3:.4g} ms")
    return seconds


def traffic(size: FixedRound) -> float:
    """Bytes that the local steps of a round move to and from memory if no cache helps.

    Left out, for a limit must not be too high: inputs and outputs, a few numbers a row, and what is done once a round,
    `EnsembleClip.finish` and the copy in float64.
    """
    pairs, steps = size.cohort * size.members, -(-size.transitions // BATCH)
    weights = sum(
        (_PASSES if i else _OF_FIRST_LAYER) * (inputs + 1) * outputs
        for i, (inputs, outputs) in enumerate(size.shape.layers)
    )
    activations = sum(
        (_ACTIVATION_PASSES if i else _OF_FIRST_HIDDEN) * BATCH * units for i, units in enumerate(size.shape.hidden)
    )
    return 4.0 * pairs * steps * (weights + activations)


def arithmetic(size: FixedRound) -> float:
    """Floating-point operations of its products: forward and gradient with biases, error but for the first layer."""
    pairs, steps = size.cohort * size.members, -(-size.transitions // BATCH)
    products = sum(
        2 * (inputs + 1) * outputs + (inputs * outputs if i else 0)
        for i, (inputs, outputs) in enumerate(size.shape.layers)
    )
    return 2.0 * BATCH * pairs * steps * products


def update_traffic(observations: int, actions: int, hidden: int) -> float:
    """Bytes of parameters, gradients and moments that an update of SAC moves if no cache helps; no activations."""
    actor, critic = (
        sum((inputs + 1) * outputs for inputs, outputs in layers)
        for layers in actor_and_critic(observations, actions, hidden)
    )
    return 4.0 * (_ACTOR_PASSES * actor + 2 * (_CRITIC_PASSES + _TARGET_PASSES) * critic)


def update_arithmetic(observations: int, actions: int, hidden: int, batch: int) -> float:
    """Floating-point operations of the products of an update of SAC.

    The actor: forward at s' and s, gradient, error. Each critic: its target forward, itself forward twice, gradient,
    error, and the slope on the action, which is an error carried one layer further.
    """
    actor, critic = (
        (sum(i * o for i, o in layers), sum(i * o for i, o in layers[1:]))
        for layers in actor_and_critic(observations, actions, hidden)
    )
    return 2.0 * batch * (3 * actor[0] + actor[1] + 2 * (4 * critic[0] + 2 * critic[1] + actions * hidden))


def round_rows(limit: float) -> list[dict[str, object]]:
    """The whole round, its local training alone, captured and not, and the limits."""
    source, plan, weights, batches = ROUND.source(), ROUND.plan, ROUND.weights, fresh_batches(ROUND)
    captured = SumOfUpdates(ROUND.shape, ROUND.local, plan.clip)
    with ROUND.rounds(source, read_ahead=True) as rounds:
        whole = seconds(lambda: plan.release(rounds.sum(weights)))
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
    return [row(f"{ROUND.name}: {what}", ours, "s", peer, name, peer / ours) for what, ours, name, peer in peers]


def update_rows(limits: dict[str, float]) -> list[dict[str, object]]:
    """SAC's updates a second, drawing the batch included, beside what is asked and the limits computed beforehand."""
    rows = []
    for name, (observations, actions) in sac.SIZES.items():
        work = sac.ours(observations, actions, HIDDEN, device=torch.device("cuda"))
        rate = 1000 / seconds(lambda work=work: work(1000), repeats=5)  # type: ignore[misc]
        what = f"SAC updates, 256x256, batch 256, {name} sizes ({observations} + {actions})"
        rows.append(row(what, rate, "1/s", UPDATES, "what is asked of an H200", rate / UPDATES))
        most = 1 / limits[name]
        rows.append(row(what, rate, "1/s", most, "the limit computed beforehand", rate / most))
    return rows


def seconds(work: Callable[[], object], repeats: int = 20) -> float:
    """Median wall time, the GPU waited for; the first three calls, which capture, are left out."""
    times = []
    for _ in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return float(sorted(times[3:])[repeats // 2])


def row(
    what: str,
    ours: float,
    unit: str,
    peer: float | None = None,
    peer_name: str | None = None,
    ratio: float | None = None,
) -> dict[str, object]:
    """One line of the results."""
    return {
        "what": what,
        "ours": ours,
        "peer": peer,
        "peer_name": peer_name,
        "ratio": ratio,
        "unit": unit,
        "machine": f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}",
        "command": "python -m benchmarks.speed.gpu",
    }


if __name__ == "__main__":
    main()
