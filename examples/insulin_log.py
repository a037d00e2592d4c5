"""Write the log that the entry `datasets/csv-log.yaml` reads: invented patients on insulin, as a
ward would log them.

python examples/insulin_log.py [--patients 1000]
python examples/insulin_log.py --meds                   # as MEDS, for datasets/insulin-meds.yaml
python examples/insulin_log.py --judge models/policy    # what a stay truly earns, today and under
that policy

Rows come in order of time, those of all patients together. Every patient has one to four stays,
numbered from 0. A stay is twelve hours, and its last row tells only what was observed then. In the
form of MEDS three of ten measurements of glucose are missing. Nobody real is in it.
"""

import argparse
import csv
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent / "insulin-log"
MEDS = FOLDER.with_name("insulin-meds")
HEADER = ["time", "patient", "stay", "glucose", "insulin_on_board", "meal", "dose", "reward"]
HOURS = 12
MEALS = {"none": 0.0, "snack": 1.5, "meal": 4.0}  # mmol/L that the next hour adds


def main() -> None:
    """Invent the patients and write one file for each year."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patients", type=int, default=1000)
    parser.add_argument(
        "--judge", nargs="+", metavar="FOLDER", help="write no log, but judge these policies"
    )
    parser.add_argument("--meds", action="store_true", help="write events, in a folder of its own")
    arguments = parser.parse_args()
    if arguments.judge:
        return _judge(arguments.judge)
    generator = np.random.default_rng(0)
    rows = [
        row
        for patient in range(arguments.patients)
        for stay in range(generator.integers(1, 5))
        for row in _stay(generator, patient, stay)
    ]
    if arguments.meds:
        return _write_meds(rows, generator)
    rows.sort(key=lambda row: row[0])
    FOLDER.mkdir(exist_ok=True)
    for year in sorted({row[0].year for row in rows}):
        with (FOLDER / f"{year}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(HEADER)
            writer.writerows(
                [[row[0].isoformat(), *row[1:]] for row in rows if row[0].year == year]
            )


def _write_meds(rows: list[list[Any]], generator: np.random.Generator) -> None:
    """Write the events behind the rows in the Medical Event Data Standard."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    events: list[tuple[int, datetime, str, float | None]] = []
    for number, (time, patient, stay, glucose, on_board, meal, dose, _) in enumerate(rows):
        first = number == 0 or rows[number - 1][1:3] != [patient, stay]
        if first:
            events.append((patient, time, "HOSPITAL_ADMISSION", None))
        if first or generator.random() < 0.7:
            events.append((patient, time, "LAB//GLUCOSE//mmol/L", glucose))
        events.append((patient, time, "INSULIN_ON_BOARD", on_board))
        if MEALS[meal]:
            events.append((patient, time, f"MEAL//{meal}", MEALS[meal]))
        if dose == "":
            events.append((patient, time, "HOSPITAL_DISCHARGE", None))
        else:
            events.append((patient, time + timedelta(minutes=1), "INSULIN", dose))
    events.sort(key=lambda event: event[:2])
    columns = zip(*events, strict=True)
    types = {
        "subject_id": pa.int64(),
        "time": pa.timestamp("us"),
        "code": pa.string(),
        "numeric_value": pa.float32(),
    }
    shard = MEDS / "data/train/0.parquet"
    shard.parent.mkdir(parents=True, exist_ok=True)
    made = {
        name: pa.array(column, kind)
        for (name, kind), column in zip(types.items(), columns, strict=True)
    }
    pq.write_table(pa.table(made), shard)


def _stay(generator: np.random.Generator, patient: int, stay: int) -> list[list[Any]]:
    """One stay: glucose falls with insulin on board and drifts home, and a meal lifts it."""
    start = datetime(2023, 1, 1, 7) + timedelta(days=180 * stay + int(generator.integers(180)))
    glucose, on_board = generator.uniform(5, 15), 0.0
    rows: list[list[Any]] = []
    for hour in range(HOURS + 1):
        meal = str(generator.choice(list(MEALS), p=[0.6, 0.2, 0.2]))
        observed = [
            start + timedelta(hours=hour),
            patient,
            stay,
            round(glucose, 2),
            round(on_board, 2),
            meal,
        ]
        if hour == HOURS:
            rows.append([*observed, "", ""])
            break
        dose = _usual_dose(generator, glucose, meal)
        glucose, on_board, reward = _after(generator, glucose, on_board, meal, dose)
        rows.append([*observed, round(dose, 3), round(reward, 4)])
    return rows


def _usual_dose(generator: np.random.Generator, glucose: float, meal: str) -> float:
    """What the ward gives today."""
    return float(np.clip(0.08 * (glucose - 6) + 0.1 * MEALS[meal] + generator.normal(0, 0.2), 0, 1))


def _after(
    generator: np.random.Generator, glucose: float, on_board: float, meal: str, dose: float
) -> tuple[float, float, float]:
    """Glucose and insulin on board after an hour, and the reward of that hour."""
    on_board = 0.6 * on_board + dose
    drift = 0.1 * (8 - glucose) + MEALS[meal] - 2.2 * on_board + generator.normal(0, 0.3)
    glucose = float(np.clip(glucose + drift, 2, 25))
    return glucose, on_board, -min(abs(glucose - 6) / 10, 1)


def _judge(folders: list[str], stays: int = 2000) -> None:
    """Print the true mean return of a stay under today's practice and under each policy, with its
    standard error.
    """
    import primorl

    names = list(MEALS)

    def of(folder: str) -> Callable[[np.random.Generator, float, float, str], float]:
        policy = primorl.load_policy(folder, against_advice=True)
        one_hot = np.eye(len(names))
        return lambda generator, glucose, on_board, meal: np.asarray(
            policy.act([glucose, on_board, *one_hot[names.index(meal)]])
        ).item()

    judged: dict[str, Callable[[np.random.Generator, float, float, str], float]] = {
        "today": lambda generator, glucose, on_board, meal: _usual_dose(generator, glucose, meal)
    }
    for name, dose in (judged | {folder: of(folder) for folder in folders}).items():
        generator, returns = np.random.default_rng(1), np.zeros(stays)
        for stay in range(stays):
            glucose, on_board = generator.uniform(5, 15), 0.0
            for _ in range(HOURS):
                meal = str(generator.choice(names, p=[0.6, 0.2, 0.2]))
                given = dose(generator, glucose, on_board, meal)
                glucose, on_board, reward = _after(generator, glucose, on_board, meal, given)
                returns[stay] += reward
        print(f"{name}: {returns.mean():.3f} ± {returns.std() / stays**0.5:.3f}")


if __name__ == "__main__":
    main()
