"""Two real processes release what one does, to the last bit, and the first sends released things
only.
"""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any, cast
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from primorl.base import PipelineError
from primorl.engine.settings import Execution
from primorl.engine.setup import TrainingSetup
from primorl.engine.shards import Processes, join_answers
from primorl.engine.training import TrainingState, serve, train
from primorl.model.numerics import flatten
from tests.engine.test_linear import Log, log_of, setup_of
from tests.mechanisms import SeededEntropy
from tests.projects import ROOT

UNITS = 13


def setup(rank: int, ranks: int) -> TrainingSetup:
    """Linear heads with all their queries, without noise, on coins that are the same in every
    process.
    """
    whole = setup_of(UNITS)
    mechanism = replace(whole.mechanism, sampling_probability=0.6, entropy=SeededEntropy(5))
    return replace(
        whole, mechanism=mechanism, execution=Execution(torch.device("cpu"), 1 << 20, rank, ranks)
    )


def shard(rank: int, ranks: int) -> Log:
    """The units that a process holds."""
    log = log_of(UNITS)
    return Log(log.inputs[rank::ranks], log.targets[rank::ranks])


def work(group: Processes) -> None:
    """Train, and print the release and what was sent."""
    source, own = shard(group.rank, group.ranks), setup(group.rank, group.ranks)
    group.check_coverage(UNITS, torch.arange(group.rank, UNITS, group.ranks))
    if group.rank:
        serve(group, own, source, None)
        return
    sent: list[Tensor] = []
    broadcast = dist.broadcast

    def spying(tensor: Tensor, src: int) -> None:
        sent.append(tensor.clone())
        broadcast(tensor, src)

    kept: list[TrainingState] = []
    with mock.patch.object(dist, "broadcast", spying):
        released = train(own, source, None, save_checkpoint=kept.append, group=group)
    known = [state.weights.double() for state in kept]
    known += [flatten(own.shrink(own.shape(state.average_weights()))).double() for state in kept]
    known += [join_answers(state.answers) for state in kept]
    vectors = [each for each in sent if each.dtype == torch.float64]
    of_released = all(any(_begins(one, each) for one in known) for each in vectors)
    answers = join_answers(released.answers).tolist()
    found = {"weights": flatten(released.weights).tolist(), "answers": answers}
    print(json.dumps(found | {"sent": len(vectors), "released": of_released}))


def _begins(whole: Tensor, part: Tensor) -> bool:
    return len(part) <= len(whole) and torch.equal(whole[: len(part)], part)


@pytest.fixture(scope="module")
def together() -> dict[str, Any]:
    """What two processes released."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [sys.executable, *torchrun, "-m", "tests.engine.test_shards"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_two_processes_release_what_one_does(together: dict[str, Any]) -> None:
    """The twin: the units of the first process alone."""
    alone = train(setup(0, 1), shard(0, 1), None)
    assert flatten(alone.weights).tolist() == together["weights"]
    assert join_answers(alone.answers).tolist() == together["answers"]
    part = train(setup(0, 2), shard(0, 2), None, group=cast(Processes, Alone()))
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


if __name__ == "__main__":
    with Processes() as everybody:
        work(everybody)
