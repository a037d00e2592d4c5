"""What a stage used of its machine is logged, and tells nothing of the private rows."""

from pathlib import Path

import pytest

from primorl.tracking import Usage

CPU, MEMORY = "system/cpu_seconds", "system/max_memory_mib"


class Metrics(dict[str, float]):
    """A log that remembers metrics."""

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        self[name] = value


def logged(stage: str) -> Metrics:
    run = Metrics()
    Usage(stage).log(run)  # type: ignore[arg-type]
    return run


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say how much memory was held")
@pytest.mark.parametrize("stage", ["train_model", "clone_behaviour", "evaluate_private", "online", "ingest"])
def test_memory_is_not_logged_once_this_process_read_private_rows(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep runs the stages of a trial in one process, whose peak is that of the private training."""
    monkeypatch.setattr(Usage, "_has_read_private", False)
    sum(range(10_000_000))
    before = logged("evaluate")
    assert before[CPU] < 0.1, "of the stage alone"
    assert 10 < before[MEMORY] < 100_000
    assert logged(stage).keys() == {CPU}
    assert logged("evaluate").keys() == {CPU}
