"""Compare the bounds of the audit of the mechanism with the claim: ``python -m benchmarks.privacy.audits --repeats 5``.

The audit of the mechanism has the default run's q, T and C with the noise of ε 0.5, 1 and 3, as `primorl audit
mechanism` makes it. The same claims of a mechanism with half the noise must be refuted, and many smaller audits count
how often a bound passes a true claim.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.machine import row, write
from primorl.paid.audits import CONFIDENCE, MECHANISM_CANARIES
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.audits.bounds import LowerBound
from primorl.privacy.audits.canaries import audit_mechanism, enough_runs
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler

Q, ROUNDS, NORM, UNITS, DELTA = 0.1, 150, 0.35, 2940, 1e-5
SMALL = 4  # runs of a small audit


class HalfTheNoise(Plan):
    """Claims its ε with half the noise."""

    def release(self, total: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Half the noise of the plan, on the whole sum."""
        noise = super().release([part * 0 for part in total])
        pairs = zip(total, noise, strict=True)
        return tuple(
            (part / self.expected_cohort).to(added.dtype) + added / 2 for part, added in pairs
        )


def main() -> None:
    """Measure, print and keep the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="full audits of each claim")
    parser.add_argument("--small", type=int, default=40, help="small audits of each claim")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python -m benchmarks.privacy.audits --repeats {arguments.repeats} --small {arguments.small}"
    rows = []
    for epsilon in (0.5, 1.0, 3.0):
        sound = plan(Plan, epsilon)
        runs = enough_runs(sound, MECHANISM_CANARIES)
        started = time.process_time()
        found = [audit(sound, runs) for _ in range(arguments.repeats)]
        seconds = (time.process_time() - started) / arguments.repeats
        for number, bound in enumerate(found[0].bounds):
            values = sorted(each.bounds[number].epsilon for each in found)
            what = f"claim {found[0].claimed:.4g}, {bound.name}: median bound, claim, share; lowest {values[0]:.4g}"
            middle = statistics.median(values)
            share = middle / found[0].claimed
            rows.append(row(command, what, middle, found[0].claimed, "the claim", share, "epsilon"))
        rows.append(count(command, f"claim {epsilon:g}: audits with a bound above it", found))
        rows.append(
            row(
                command,
                f"claim {epsilon:g}: processor time of an audit",
                seconds,
                60.0,
                "a minute",
                seconds / 60,
                "s",
            )
        )
        broken = [audit(plan(HalfTheNoise, epsilon), runs)]
        rows.append(
            count(
                command, f"claim {epsilon:g}, half the noise: audits with a bound above it", broken
            )
        )
        small = [audit(sound, SMALL) for _ in range(arguments.small)]
        canaries = SMALL * MECHANISM_CANARIES
        rows.append(
            count(
                command,
                f"claim {epsilon:g}, {canaries} canaries: audits with a bound above it",
                small,
            )
        )
        write("audits", rows)


def plan(kind: type[Plan], epsilon: float) -> Plan:
    """The default run with the noise of ``epsilon``."""
    multiplier = solve_noise_multiplier(epsilon, DELTA, Q, ROUNDS)
    return kind(
        UNITS,
        "trajectory",
        PoissonSampler(Q),
        EnsembleClip(NORM, "flat", 3, 3),
        multiplier,
        ROUNDS,
        DELTA,
    )


def audit(audited: Plan, runs: int) -> LowerBound:
    """One audit, as the command makes it."""
    return audit_mechanism(audited, canaries=MECHANISM_CANARIES, runs=runs, confidence=CONFIDENCE)


def count(command: str, what: str, found: Sequence[LowerBound]) -> dict[str, object]:
    """How many of the audits refute the claim."""
    refuting = sum(each.refutes_the_claim for each in found)
    return row(command, what, refuting, len(found), "audits", refuting / len(found), "audits")


if __name__ == "__main__":
    main()
