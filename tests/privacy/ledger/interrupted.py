"""A paid mechanism that is interrupted wherever a test or a benchmark asks for it, and the
judgement afterwards.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.privacy.accounting.epsilon import compose
from primorl.privacy.ledger import charges, history, store
from primorl.privacy.ledger.charges import pay_or_resume
from primorl.privacy.ledger.checkpoint import DataclassState
from primorl.privacy.ledger.history import Budget, Charge
from tests.privacy.ledger.ledgers import DELTA, GAUSSIAN, opened, request, version

ROUNDS = 3
ONE_RUN = Budget(compose([GAUSSIAN], DELTA).epsilon_pld, DELTA)
DATA = version("abc")
_STORE: Any = store.Store
_WRITES = (
    (charges, "write_checkpoint"),
    (_STORE, "append"),
    (_STORE, "replace_progress"),
    (history.Anchor, "advance"),
)


@dataclass(frozen=True)
class Running(DataclassState):
    total: Tensor
    started: int = 0
    finished: bool = False


@dataclass(frozen=True)
class Place:
    """A ledger, and a machine's folder of checkpoints beside it."""

    url: str
    folder: Path
    machine: str = "checkpoints"

    @property
    def checkpoints(self) -> Path:
        return self.folder / self.machine

    @property
    def checkpoint(self) -> Path:
        (file,) = self.checkpoints.glob("*.safetensors")
        return file

    def work(
        self, each: Callable[[int], object] = lambda round_: None, identity: str = "identity"
    ) -> None:
        wanted, begin = request(DATA, identity=identity), Running(torch.zeros(2))
        with (
            closing(opened(self.url, self.folder)) as book,
            pay_or_resume(
                book, wanted, ONE_RUN, self.checkpoints, begin, Running.restore
            ) as payment,
        ):
            state = payment.state
            while not state.finished and state.started < ROUNDS:
                state = replace(state, started=state.started + 1)
                payment.save(state)
                each(state.started)
                self.release(state.started)
                state = replace(state, total=state.total + 1)
            payment.save(replace(state, finished=True))
            book.commit(payment.charge.id)

    def refusal(self) -> str:
        with pytest.raises(PipelineError, match=r"\A.*\Z") as refused:
            self.work()
        return str(refused.value)

    def copied_to(self, machine: str) -> "Place":
        other = replace(self, machine=machine)
        other.checkpoints.mkdir()
        (other.checkpoints / self.checkpoint.name).write_bytes(self.checkpoint.read_bytes())
        return other

    def release(self, round_: int) -> None:
        with (self.folder / "released").open("a") as file:
            file.write(f"{round_}\n")

    @property
    def released(self) -> list[int]:
        file = self.folder / "released"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    @property
    def charged(self) -> list[Charge]:
        book = opened(self.url, self.folder)
        book.verify()
        return book.charges()


class KilledError(BaseException):
    """Stands for a kill: no handler sees it."""


def killed_in_round(place: Place, round_: int, before: Callable[[], object] = lambda: None) -> None:
    """``before`` is called before every round up to that one."""

    def each(now: int) -> None:
        before()
        if now == round_:
            raise KilledError

    with pytest.raises(KilledError):
        place.work(each)


def in_fork(body: Callable[[], object]) -> int:
    """Run ``body`` in a forked process, silently; its exit status, negative for a signal, 3 for an
    exception.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            body()
            os._exit(0)
        finally:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def interrupted(place: Place, at: int, how: signal.Signals) -> bool:
    """Work until moment number ``at``, at which the signal arrives; SIGTERM is handled as stages
    do.

    A moment is before and after every call that writes. False if it ended before.
    """
    count = 0

    def moment() -> None:
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), how)

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            moment()
            result = call(*arguments, **named)
            moment()
            return result

        return watched

    def body() -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        for owner, name in _WRITES:
            setattr(owner, name, around(getattr(owner, name)))
        place.work()

    return in_fork(body) != 0


def judge(place: Place) -> None:
    """Work to the end: one charge, under a budget for one, and no round twice."""
    assert in_fork(place.work) == 0, "the next run did not end well"
    (charge,) = place.charged
    assert charge.state == "committed"
    assert sorted(set(place.released)) == sorted(place.released), "a round was released twice"
    assert len(place.released) <= ROUNDS
    # Beside it may lie one whose reservation was interrupted.
    file = place.checkpoints / f"{charge.id}.safetensors"
    before = file.read_bytes()
    place.work()
    assert len(place.charged) == 1
    assert file.read_bytes() == before
