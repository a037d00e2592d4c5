"""Cryptographic normals beside named generators on one thread, and the noise's share of a private round.

python -m benchmarks.speed.noise [--count 4000000]

Seconds are those of the thread's own processor time, so that other work on the machine does not count.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import row, write
from benchmarks.speed.fixed_round import FixedRound
from primorl.privacy.mechanism.entropy import SystemEntropy
from primorl.privacy.mechanism.noise import normals
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training.rounds import Rounds

UNITS, TRANSITIONS = 2940, 200  # of the default dataset: private trajectories of Pendulum
REPEATS = 15
_COMMAND = "python -m benchmarks.speed.noise"


def main() -> None:
    """Time all in one run and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4_000_000)
    count = parser.parse_args().count
    torch.set_num_threads(1)
    generator = np.random.default_rng()
    entropy = SystemEntropy()
    peers: dict[str, Callable[[int], object]] = {
        "torch.randn, float64 (one draw, not cryptographic)": lambda n: torch.randn(n, dtype=torch.float64),
        "numpy Generator.standard_normal (one draw, not cryptographic)": generator.standard_normal,
    }
    ours = count / seconds(lambda: normals(entropy, count), REPEATS)
    rows: list[dict[str, object]] = []
    for name, draw in peers.items():
        peer = count / seconds(lambda draw=draw: draw(count), REPEATS)  # type: ignore[misc]
        what = f"{count} normals, the sum of four draws each"
        rows.append(row(_COMMAND, what, ours, peer, name, ours / peer, "normals/s"))

    plan, work, total = _round()
    release, rest = seconds(lambda: plan.release(total), 50), seconds(work, 5)
    whole = release + rest
    what = f"release of a round; ratio: its share of the round, K {UNITS}, q 0.1, N 3, 2x64, T {TRANSITIONS}, B 16"
    name = "the whole round: cohort, batches, local updates, release"
    rows.append(row(_COMMAND, what, release, whole, name, release / whole, "s"))
    write("noise", rows)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median processor time of ``repeats`` calls, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return sorted(times)[len(times) // 2]


def _round() -> tuple[Plan, Callable[[], list[Tensor]], list[Tensor]]:
    """The plan of a round of the default config's sizes, the round up to the sum, and that sum."""
    size = FixedRound(members=3, width=64, transitions=TRANSITIONS, cohort=UNITS, clipping_norm=0.35)
    plan, weights = replace(size.plan, sampler=PoissonSampler(0.1)), size.weights
    rounds = Rounds(replace(size.setup(), plan=plan), size.source(), size.normaliser)

    def work() -> list[Tensor]:
        return rounds.sum(weights)

    return plan, work, work()


if __name__ == "__main__":
    main()
