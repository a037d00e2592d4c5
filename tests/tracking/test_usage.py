"""What a stage used of its machine is logged, and tells nothing of the private rows."""

import subprocess
import sys
from pathlib import Path

import pytest

from primorl.tracking.usage import Usage

ROOT = Path(__file__).parents[2]
MEMORY = "system/max_memory_mib"


class Metrics(dict[str, float]):
    """A log that remembers metrics."""

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        self[name] = value


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Usage, "_has_read_private", False)


def logged(stage: str) -> Metrics:
    run = Metrics()
    Usage(stage).log(run)  # type: ignore[arg-type]
    return run


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say how much memory was held")
def test_memory_is_logged_where_nothing_private_was_read() -> None:
    assert 10 < logged("optimize_policy")[MEMORY] < 100_000
    assert MEMORY in logged("evaluate")


@pytest.mark.parametrize("stage", ["train_model", "clone_behaviour", "evaluate_private", "online", "ingest"])
def test_memory_is_not_logged_once_this_process_read_private_rows(stage: str) -> None:
    """A sweep runs the stages of a trial in one process, whose peak is that of the private training."""
    assert logged(stage).keys() == {"system/cpu_seconds"}
    assert logged("evaluate").keys() == {"system/cpu_seconds"}


def test_processor_time_is_the_stages_own() -> None:
    sum(range(10_000_000))
    assert logged("evaluate")["system/cpu_seconds"] < 0.1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_process_that_started_this_one_does_not_count() -> None:
    """Twin: what `getrusage` says of the same process does count it, on Linux."""
    child = (
        "import resource; from primorl.tracking.usage import _most_memory; "
        "print(_most_memory(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)"
    )
    parent = f"import os, sys; x = bytearray(300 << 20); os.execv(sys.executable, [sys.executable, '-c', {child!r}])"
    shown = subprocess.run([sys.executable, "-c", parent], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    own, inherited = map(float, shown.split())
    assert own < 200 < 300 < inherited
