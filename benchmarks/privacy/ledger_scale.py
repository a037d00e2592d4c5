"""The ledger with many charges and many people: ``python -m benchmarks.privacy.ledger_scale``.

300 charges, all different, on one version: wall time and processor time of the commands, each in a process of its own,
medians of five runs. Wall time depends on what else runs, processor time hardly. Then 20 versions of a million people,
of whom 0.5% change from one to the next: bytes in the database, time and memory of the accounts.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from benchmarks.machine import row, write
from benchmarks.privacy.crashes import CHANGES
from benchmarks.privacy.small_project import make
from primorl.config import params as params_module
from primorl.privacy.accounting.epsilon import training_event
from primorl.privacy.ledger.ledger import Budget, BudgetExceeded, Ledger, Request, Version
from primorl.setup.accounts import dataset_version, project_ledger
from primorl.trajectories.storage.manifest import Manifest
from tests.projects import write_settings

COMMAND = "python -m benchmarks.privacy.ledger_scale"
CHARGES, VERSIONS, PEOPLE, CHANGED = 300, 20, 1_000_000, 5_000
DELTA, MEGABYTE = 1e-5, 1e6
REPEATS = 5
LIMITS = {"ledger show": 3.0, "ledger show --json": 3.0, "plan": 2.0}  # seconds, as asked for


def main() -> None:
    """Measure both, print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=PEOPLE)
    people = parser.parse_args().people
    with tempfile.TemporaryDirectory(prefix="primorl-scale-") as name:
        rows = many_charges(Path(name) / "charges") + many_people(Path(name) / "people", people)
    write("ledger_scale", rows)


def many_charges(folder: Path) -> list[dict[str, object]]:
    """The rows of 300 different charges."""
    folder.mkdir()
    os.chdir(folder)
    content = make(folder, CHANGES)
    content["privacy"] |= {"target_epsilon": 1.0, "noise_multiplier": None, "delta": DELTA}
    write_settings(content, folder)
    params = params_module.load(folder / "params.yaml")
    version = dataset_version(Manifest.load(Path("data/partitions/manifest.json")), Path("data/partitions"))
    rows = timed("--help", "no charge", 0.4) + timed("plan", "no charge", 2.0)
    content["privacy"]["budget"] = {"epsilon": 2.0, "delta": DELTA}
    write_settings(content, folder)
    with closing(project_ledger(params)) as ledger:
        for number in range(CHARGES):
            ledger.reserve(request(version, number), None)
        started = time.perf_counter()
        with suppress(BudgetExceeded):
            ledger.reserve(request(version, CHARGES), Budget(0.1, DELTA))
        refusal = time.perf_counter() - started
    rows.append(row(COMMAND, f"a refusal after {CHARGES} charges", refusal, 3.0, "asked for", refusal / 3.0, "s"))
    for words, limit in LIMITS.items():
        rows += timed(words, f"{CHARGES} different charges", limit)
    return rows


def timed(words: str, beside: str, limit: float) -> list[dict[str, object]]:
    """The rows of a command of the project in the working directory, against seconds that were asked for."""
    wall, processor = np.median([command(words.split()) for _ in range(REPEATS)], axis=0).tolist()
    what = f"primorl {words}, {beside}"
    return [
        row(COMMAND, what, wall, limit, "asked for", wall / limit, "s"),
        row(COMMAND, f"{what}: processor time", processor, limit, "asked for", processor / limit, "s"),
    ]


def many_people(folder: Path, people: int) -> list[dict[str, object]]:
    """The rows of 20 versions of nearly the same people."""
    folder.mkdir()
    url, everybody = (
        f"sqlite:///{folder / 'ledger.db'}",
        np.random.default_rng(0).bytes(32 * (people + VERSIONS * CHANGED)),
    )
    with closing(opened(url, folder)) as ledger:
        for number in range(VERSIONS):
            members = everybody[32 * number * CHANGED :][: 32 * people]
            version = Version(f"{number:064x}", "trajectory", people, members)
            ledger.reserve(request(version, number), None)
    size = (folder / "ledger.db").stat().st_size / MEGABYTE
    child = os.fork()
    if child == 0:
        with closing(opened(url, folder)) as ledger:
            started = time.perf_counter()
            assert len([account.total(DELTA) for _, account in ledger.accounts().values()]) == VERSIONS
            (folder / "seconds").write_text(str(time.perf_counter() - started))
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    assert status == 0
    what = f"{VERSIONS} versions of {people:,} people"
    seconds, memory = float((folder / "seconds").read_text()), used.ru_maxrss / 1e6
    return [
        row(COMMAND, f"{what}: database", size, 100.0, "asked for", size / 100.0, "MB"),
        row(COMMAND, f"{what}: all accounts", seconds, 10.0, "asked for", seconds / 10.0, "s"),
        row(
            COMMAND,
            f"{what}: memory, libraries included",
            memory,
            1.5,
            "before",
            memory / 1.5,
            "GB",
        ),
    ]


def request(version: Version, number: int) -> Request:
    """A run of its own noise, so that no two are composed as one."""
    event = training_event(0.1, 60.0 + number / 10, 150)
    return Request(version, "small", "train_model", f"run {number}", event, DELTA, None, None)


def opened(url: str, folder: Path) -> Ledger:
    """A ledger of this benchmark."""
    return Ledger.open(url, secret=b"s" * 32, anchor=folder / "ledger.head")


def command(words: list[str]) -> tuple[float, float]:
    """Wall time and processor time of a command of the project in the working directory."""
    started, before = time.perf_counter(), os.times()
    program = "import sys; from primorl.commands.main import main; sys.exit(main())"
    subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True)
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return time.perf_counter() - started, used


if __name__ == "__main__":
    main()
