"""Cryptographic normals beside named generators on one thread, and the noise's share of a private round.

python -m benchmarks.speed.noise [--count 4000000]

Seconds are those of the thread's own processor time, so that other work on the machine does not count.
"""

import argparse
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from benchmarks.machine import row, write
from benchmarks.speed.fixed_round import FixedRound
from primorl.privacy.mechanism.entropy import SystemEntropy
from primorl.privacy.mechanism.noise import normals
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training.rounds import Rounds
from primorl.training.settings import CHUNK_BYTES, Execution

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
        "the implementation before: whole arrays at once": _whole_arrays,
        "torch.randn, float64 (one draw, not cryptographic)": lambda n: torch.randn(n, dtype=torch.float64),
        "numpy Generator.standard_normal (one draw, not cryptographic)": generator.standard_normal,
    }
    ours = count / seconds(lambda: normals(entropy, count), REPEATS)
    rows: list[dict[str, object]] = []
    for name, draw in peers.items():
        peer = count / seconds(lambda draw=draw: draw(count), REPEATS)  # type: ignore[misc]
        rows.append(
            row(_COMMAND, f"{count} normals, the sum of four draws each", ours, peer, name, ours / peer, "normals/s")
        )

    plan, work, total = _round()
    size = sum(part.numel() for part in total)
    noise, before = (seconds(draw, 50) for draw in (lambda: normals(entropy, size), lambda: _whole_arrays(size)))
    rows.append(
        row(_COMMAND, f"noise of one release, {size} parameters", noise, before, next(iter(peers)), before / noise, "s")
    )
    release, whole = seconds(lambda: plan.release(total), 50), seconds(work, 5)
    rows.append(
        row(
            _COMMAND,
            f"release of a round; ratio: its share of the round, K {UNITS}, q 0.1, N 3, 2x64, T {TRANSITIONS}, B 16",
            release,
            release + whole,
            "the whole round: cohort, batches, local updates, release",
            release / (release + whole),
            "s",
        )
    )
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


def _whole_arrays(count: int) -> Tensor:
    """Four Box-Muller draws over arrays as long as the answer: the slow reference."""
    pairs = (count + 1) // 2
    stream = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
    buffer = bytearray(64 * pairs)
    stream.update_into(bytes(64 * pairs), buffer)
    bits = torch.frombuffer(buffer, dtype=torch.int64)
    mantissa = bits.bitwise_right_shift(11).bitwise_and((1 << 53) - 1)
    uniform = (mantissa.double().add_(0.5) * 2.0**-53).clamp_(max=1 - 2.0**-53).view(2, 4, pairs)
    radius = uniform[0].log_().mul_(-2).sqrt_()
    angle = uniform[1].mul_(2 * math.pi)
    drawn = torch.cat(((radius * angle.cos()).sum(0), (radius * angle.sin()).sum(0)))
    return drawn[:count].div_(2)


def _round() -> tuple[Plan, Callable[[], list[Tensor]], list[Tensor]]:
    """The plan of a round of the default config's sizes, the round up to the sum, and that sum."""
    size = FixedRound(members=3, width=64, transitions=TRANSITIONS, cohort=UNITS, clipping_norm=0.35)
    plan, weights = replace(size.plan, sampler=PoissonSampler(0.1)), size.weights
    execution = Execution(torch.device("cpu"), CHUNK_BYTES["cpu"])
    setup = replace(size.setup(), plan=plan, execution=execution)
    rounds = Rounds(setup, size.source(), size.normaliser)

    def work() -> list[Tensor]:
        return rounds.sum(weights, last=True)

    return plan, work, work()


if __name__ == "__main__":
    main()
