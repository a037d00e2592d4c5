"""Where a private round's time goes, operation by operation, on one thread.

python -m benchmarks.speed.profile_round

The profiler's own time falls on every operation alike, so shares are what to read.
"""

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.machine import machine, write
from benchmarks.speed.fixed_round import FixedRound

SIZES = [
    FixedRound(members=3, width=64, transitions=200, cohort=300),
    FixedRound(members=5, width=128, transitions=1000, cohort=30),
]
_SHOWN, _REPEATS = 12, 5


def main() -> None:
    """Profile both rounds and keep the largest shares."""
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for size in SIZES:
        rounds, plan, weights = size.rounds(size.source()), size.plan, size.weights
        plan.release(rounds.sum(weights))
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for _ in range(_REPEATS):
                plan.release(rounds.sum(weights))
        found = sorted(profiled.key_averages(), key=lambda event: -event.self_cpu_time_total)
        whole = sum(event.self_cpu_time_total for event in found)
        for event in found[:_SHOWN]:
            rows.append(
                {
                    "what": f"{size.name}: {event.key}, {event.count // _REPEATS} calls",
                    "ours": event.self_cpu_time_total / _REPEATS / 1e6,
                    "peer": whole / _REPEATS / 1e6,
                    "peer_name": "the whole round",
                    "ratio": event.self_cpu_time_total / whole,
                    "unit": "s",
                    "machine": machine(),
                    "command": "python -m benchmarks.speed.profile_round",
                }
            )
    write("profile_round", rows)


if __name__ == "__main__":
    main()
