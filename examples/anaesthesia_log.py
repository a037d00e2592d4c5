"""Simulate anaesthesias, each led by a controller of its own, as the log that
`datasets/propofol.yaml` reads.

python examples/anaesthesia_log.py --patients 5000      # needs the extra medical

Rate = base + gain · (BIS - 50) + noise, in micrograms per kg and minute. Base, gain and the noise's
standard deviation are drawn once for each patient, and make good and bad care. Pharmacokinetics are
the simulator's to draw.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from primorl.simulators.environments import make

FILE = Path("examples/anaesthesia-log/log.parquet")
SEEN = ["plasma", "effect", "bis", "error", "last_rate", "time"]
BASE, GAIN, NOISE = (0.0, 200.0), (0.0, 8.0), (0.0, 60.0)


def simulate(patients: int, seed: int = 0) -> pa.Table:
    """Simulate patients; return a row for each half minute."""
    env = make("anesthesim:anesthesim/PropofolControl-v0")
    names = ["patient", "step", *SEEN, "rate", "reward", "terminated", "truncated"]
    names += [f"next_{name}" for name in SEEN]
    rows = []
    for patient, seeds in enumerate(np.random.SeedSequence(seed).spawn(patients)):
        rng = np.random.default_rng(seeds)
        base, gain, noise = (rng.uniform(*span) for span in (BASE, GAIN, NOISE))
        seen, _ = env.reset(seed=int(rng.integers(2**31)))
        step, ended = 0, False
        while not ended:
            rate = np.array([base + gain * seen[3] + noise * rng.normal()], np.float32).clip(0, 200)
            after, reward, terminated, truncated, _ = env.step(rate)
            ends = [bool(terminated), bool(truncated)]
            rows.append([patient, step, *seen, rate[0], float(reward), *ends, *after])
            seen, step, ended = after, step + 1, any(ends)
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return pa.table({name: np.array(values) for name, values in columns})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patients", type=int, default=5000)
    arguments = parser.parse_args()
    FILE.parent.mkdir(exist_ok=True)
    pq.write_table(simulate(arguments.patients), FILE)
