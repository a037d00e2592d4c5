"""Compare exact discrete Gaussian noise with named generators on one thread.

python -m benchmarks.speed.noise [--count 4000000]

Seconds are those of the thread's own processor time, so that other work on the machine does not
count.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.machine import row, write
from primorl.privacy.mechanism.sampling import SystemEntropy, discrete_gaussian

REPEATS = 15
_COMMAND = "python -m benchmarks.speed.noise"


def main() -> None:
    """Time all in one run and keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=4_000_000)
    count = parser.parse_args().count
    torch.set_num_threads(1)
    generator = np.random.default_rng()
    entropy = SystemEntropy()
    peers: dict[str, Callable[[int], object]] = {
        "torch.randn, float64 (one draw, not cryptographic)": lambda n: torch.randn(
            n, dtype=torch.float64
        ),
        "numpy Generator.standard_normal (one draw, not cryptographic)": generator.standard_normal,
    }
    ours = count / seconds(lambda: discrete_gaussian(entropy, count, 2.0**27), REPEATS)
    rows: list[dict[str, object]] = []
    for name, draw in peers.items():
        peer = count / seconds(lambda draw=draw: draw(count), REPEATS)  # type: ignore[misc]
        what = f"{count} draws of a discrete Gaussian, from a cipher"
        rows.append(row(_COMMAND, what, ours, peer, name, ours / peer, "draws/s"))
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


if __name__ == "__main__":
    main()
