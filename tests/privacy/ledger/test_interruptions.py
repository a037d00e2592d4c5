"""Wherever paid work is interrupted, the next run goes on with the same charge, and no round runs
twice.
"""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.privacy.crash_schedules import PLANTED, first_caught, simulate
from primorl.base.errors import PipelineError
from tests.privacy.ledger import postgresql
from tests.privacy.ledger.interrupted import ROUNDS, Place, interrupted, judge

KILL = signal.SIGKILL
SIGNALS = [signal.SIGTERM, KILL] * 600  # one and the other by turns
MOMENTS = 31  # of an undisturbed run: the next one is beyond its end
_MEMORY = Path("/dev/shm")  # a kill needs no disk that syncs


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else tmp_path) as name:
        yield Path(name)


def new_place(tmp_path: Path, name: object) -> Place:
    (folder := tmp_path / str(name)).mkdir()
    return Place(f"sqlite:///{folder}/ledger.db", folder)


def test_an_interruption_at_any_write_loses_nothing(quick: Path) -> None:
    for at in range(1, MOMENTS):
        place = new_place(quick, at)
        assert interrupted(place, at, SIGNALS[at]), at
        judge(place)
    assert not interrupted(new_place(quick, "whole"), MOMENTS, KILL), "moments were left out"


def test_no_schedule_of_crashes_breaks_a_promise(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(quick)  # a schedule leaves the working directory where its world is
    for seed in range(60):
        simulate(seed, quick / "world")


@pytest.mark.parametrize("name", ["number-one-behind", "fsync-dropped"])
def test_a_fault_is_noticed_in_a_few_schedules(
    quick: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(quick)
    (fault,) = (each for each in PLANTED if each.name == name)
    assert first_caught(fault, quick / "world", 50) > 0


def test_postgresql_may_be_stopped_in_mid_run(tmp_path: Path) -> None:
    with postgresql.server() as server:
        place = Place(server.new_url(), tmp_path)
        with pytest.raises(PipelineError, match="cannot be used: OperationalError"):
            place.work(lambda round_: server.stop() if round_ == 1 else None)
        assert place.released == [1], "the server was away when the second round was announced"
        assert "cannot be used: OperationalError" in place.refusal()
        server.start()
        judge(place)
        assert place.released == [1, ROUNDS]
