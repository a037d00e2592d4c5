"""Two real processes release what one does, to the last bit, and the first sends released things
only.
"""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from primorl.base.errors import PipelineError
from primorl.engine.shards import Processes, join_answers
from primorl.engine.training import train
from primorl.model.numerics import flatten
from tests.engine import shard
from tests.projects import ROOT


@pytest.fixture(scope="module")
def together() -> dict[str, Any]:
    """What two processes released."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [sys.executable, *torchrun, "-m", "tests.engine.shard"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_two_processes_release_what_one_does(together: dict[str, Any]) -> None:
    """The twin: the units of the first process alone."""
    alone = train(shard.setup(0, 1), shard.shard(0, 1), None)
    assert flatten(alone.weights).tolist() == together["weights"]
    assert join_answers(alone.answers).tolist() == together["answers"]
    part = train(shard.setup(0, 2), shard.shard(0, 2), None, group=Alone())  # type: ignore[arg-type]
    assert flatten(part.weights).tolist() != together["weights"]


def test_the_first_process_sends_released_things_only(together: dict[str, Any]) -> None:
    assert together["sent"] > 40
    assert together["released"]


class Alone:
    """Two processes of which the second adds nothing."""

    rank, ranks = 0, 2

    def ask(self, *request: Any, **released: Any) -> None:
        """Nobody is there to ask."""

    def total(self, own: torch.Tensor) -> torch.Tensor:
        """Return the own sum."""
        return own


def test_units_that_nobody_or_two_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Processes.__new__(Processes)
    for held, others in (([0, 2], [0, 1, 0, 1]), ([0, 1], [0, 1, 1, 1]), ([0], [0, 1, 0, 1])):
        whole = torch.tensor(others)
        monkeypatch.setattr(group, "total", lambda own, rest=whole: own + rest)
        if held == [0, 2]:
            group.check_coverage(4, torch.tensor(held))
            continue
        with pytest.raises(PipelineError, match="data/partitions"):
            group.check_coverage(4, torch.tensor(held))
