"""Invent anaesthesias of people with several operations each, as a recorder of an operating room
would keep them.

    python examples/invented_cases.py                         # writes examples/cases/: 3,000
    patients, 6,000 cases python examples/invented_cases.py --patients 50 --out DIR
    python examples/invented_cases.py --judge models/policy   # what a case truly earns, today and
    under that policy

``clinical_data.csv`` says whose each case is; every case has a file of its own, with seconds since
its beginning and a column for each track. A track has a value in some rows only. The simulator is
`anesthesim` (extra medical): a patient's pharmacokinetics are drawn once and hold for all of their
operations. Nobody real is in it, and nothing learned from it is advice on dosing.

The rate of propofol is set at irregular times: after half a minute to a minute and a half where the
depth of anaesthesia (BIS) is out of 40 to 60, else after two to five minutes. Every case has a
proportional controller of its own.
"""

import argparse
import csv
import gzip
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.tracks_to_log import BIS, CE, CP, RATE, score
from primorl.simulators.environments import make

FOLDER = Path(__file__).resolve().parent / "cases"
STEP = 30  # seconds of a step of the simulator
STEPS = 200
FASTEST = 200.0  # micrograms per kg and minute

Dose = Callable[[np.ndarray, int, np.random.Generator], float]
"""From plasma, effect site, BIS, rate so far and minute, and the seconds since the last decision,
to a rate.
"""


def main() -> None:
    """Invent the cases, or judge policies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patients", type=int, default=3000)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument(
        "--judge", nargs="+", metavar="FOLDER", help="write no case, but judge these policies"
    )
    arguments = parser.parse_args()
    if arguments.judge:
        return judge(arguments.judge)
    invent(arguments.patients, arguments.out)


def invent(patients: int, folder: Path) -> None:
    """Write one to three cases of each patient."""
    folder.mkdir(parents=True, exist_ok=True)
    env, case = make("anesthesim:anesthesim/PropofolControl-v0"), 0
    with (folder / "clinical_data.csv").open("w", encoding="utf-8", newline="") as file:
        about = csv.writer(file)
        about.writerow(["caseid", "subjectid", "casestart", "caseend"])
        for patient, seeds in enumerate(np.random.SeedSequence(0).spawn(patients), start=1):
            generator = np.random.default_rng(seeds)
            person = int(generator.integers(2**31))
            for _ in range(int(generator.integers(1, 4))):
                case += 1
                rows = anaesthesia(env, person, generator, controller(generator))
                about.writerow([case, patient, 0, rows[-1][0]])
                with gzip.open(
                    folder / f"{case}.csv.gz", "wt", encoding="utf-8", newline="", compresslevel=3
                ) as tracks:
                    writer = csv.writer(tracks)
                    writer.writerow(["Time", CP, CE, BIS, RATE])
                    writer.writerows(rows)


def controller(generator: np.random.Generator) -> Dose:
    """Today's practice: one of many who dose in proportion to the error, with a hand of
    their own.
    """
    base, gain, noise = (generator.uniform(*span) for span in ((0, 200), (0, 8), (0, 60)))
    return lambda seen, since, drawn: float(base + gain * (seen[2] - 50) + noise * drawn.normal())


def anaesthesia(
    env: Any, person: int, generator: np.random.Generator, dose: Dose
) -> list[list[object]]:
    """The rows of one case: BIS in every row, concentrations every minute, the rate where it was
    set.
    """
    observation, _ = env.reset(seed=person)
    # the same person, another day
    env.unwrapped._rng = np.random.default_rng(generator.integers(2**31))
    rows: list[list[object]] = []
    rate, wait, since, ended = 0.0, 0, 0, False
    for step in range(STEPS + 1):
        seen = np.array([*observation[:3], rate, step * STEP / 60])
        decided: object = ""
        ended = ended or step == STEPS
        if wait == 0 and not ended:
            rate = float(np.clip(dose(seen, since * STEP, generator), 0, FASTEST))
            decided = f"{rate:.2f}"
            steady = 40 <= observation[2] <= 60
            wait = since = int(generator.integers(4, 11) if steady else generator.integers(1, 4))
        drug = (
            [f"{value:.3f}" for value in observation[:2]]
            if step % 2 == 0 or decided or ended
            else ["", ""]
        )
        rows.append([step * STEP, *drug, f"{observation[2]:.1f}", decided])
        if ended:
            break
        observation, _, ended, _, _ = env.step([rate])
        wait -= 1
    return rows


def judge(folders: Sequence[str], cases: int = 6000) -> None:
    """Print the true mean return of a case under today's practice and under each policy, with its
    standard error.
    """
    import primorl

    def of(folder: str) -> Callable[[np.random.Generator], Dose]:
        policy = primorl.load_policy(folder, against_advice=True)
        return lambda _: lambda seen, since, drawn: np.asarray(policy.act([*seen, since])).item()

    env = make("anesthesim:anesthesim/PropofolControl-v0")
    for name, led in {"today": controller, **{folder: of(folder) for folder in folders}}.items():
        returns = []
        for seeds in np.random.SeedSequence(1).spawn(cases):
            generator = np.random.default_rng(seeds)
            rows = anaesthesia(env, int(generator.integers(2**31)), generator, led(generator))
            returns.append(sum(score(float(str(row[3]))) for row in rows[1:]) * STEP / 60)
        print(f"{name}: {np.mean(returns):.2f} ± {np.std(returns) / cases**0.5:.2f}")


if __name__ == "__main__":
    main()
