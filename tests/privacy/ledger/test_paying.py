"""Work is paid for once: whoever asks again, or at the same time, is given the result, told where
it is, or refused; wherever it is interrupted, the next run goes on, and no round runs twice.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.privacy.crash_schedules import PLANTED, first_caught, simulate
from primorl.base import Busy, PipelineError
from primorl.base.files import locked
from primorl.privacy.accounting.epsilon import compose
from primorl.privacy.ledger import charges, history, store
from primorl.privacy.ledger.charges import pay_or_resume
from primorl.privacy.ledger.checkpoint import State, write_checkpoint
from primorl.privacy.ledger.history import Budget, Charge, Refused
from primorl.privacy.ledger.ledger import new_charge_id
from primorl.privacy.ledger.store import Progress
from tests.mechanisms import KilledError, watch
from tests.privacy.ledger import ledgers, postgresql
from tests.privacy.ledger.ledgers import (
    DELTA,
    GAUSSIAN,
    Meeting,
    adaptive,
    at_once,
    execute,
    opened,
    request,
    version,
)

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
class Running(State):
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

    def work(self, each: Callable[[int], object] = lambda round_: None) -> None:
        wanted, begin = request(DATA), Running(torch.zeros(2))
        book = opened(self.url, self.folder)
        with pay_or_resume(book, wanted, ONE_RUN, self.checkpoints, begin) as payment:
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


def killed_in_round(place: Place, round_: int, before: Callable[[], object] = lambda: None) -> None:
    """``before`` is called before every round up to that one."""

    def each(now: int) -> None:
        before()
        if now == round_:
            raise KilledError

    with pytest.raises(KilledError):
        place.work(each)


def ends_well(body: Callable[[], object]) -> bool:
    """Run ``body`` in a process of its own."""
    child = ledgers.FORK.Process(target=body)
    child.start()
    child.join()
    return child.exitcode == 0


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

    return not ends_well(body)


def judge(place: Place) -> None:
    """Work to the end: one charge, under a budget for one, and no round twice."""
    assert ends_well(place.work), "the next run did not end well"
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


@pytest.fixture
def one_file(tmp_path: Path) -> Place:
    return Place(f"sqlite:///{tmp_path}/ledger.db", tmp_path)


def test_other_work_beside_it_is_paid_for(one_file: Place) -> None:
    ledger = opened(one_file.url, one_file.folder)
    first = ledger.reserve(request(DATA), None, new_charge_id())
    ledger.reserve(request(DATA, identity="another"), None, new_charge_id())
    with pytest.raises(Busy, match=f"charge {first.id} of .* set privacy.draw"):
        ledger.reserve(request(DATA), None, new_charge_id())
    ledger.reserve(request(DATA), None)  # work that no checkpoint carries on may be repeated


def test_who_waits_is_given_what_the_other_paid_for(
    one_file: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_round(one_file, 2)
    other = ExitStack()
    with pytest.MonkeyPatch.context() as patched, other:
        assert other.enter_context(locked(one_file.checkpoint.with_suffix(".lock")))
        (charge,) = one_file.charged
        assert f"another process works on charge {charge.id} of" in one_file.refusal()
        monkeypatch.setattr(charges, "home", lambda: Path("/project"))
        patched.setattr("time.sleep", lambda _: other.close())
        one_file.work()
    judge(one_file)


def test_what_is_resumed_is_on_the_disk_before_the_ledger_says_so(
    one_file: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may have died before the disk had it; a power cut would bring back the last."""
    killed_in_round(one_file, 2)
    done: list[object] = []
    monkeypatch.setattr(charges, "sync", done.append)
    watch(monkeypatch, Progress, "claim", lambda *_: done.append("claimed"))
    one_file.work()
    assert done == [one_file.checkpoints, "claimed"]


def test_a_checkpoint_that_is_elsewhere_is_not_paid_for_again(one_file: Place) -> None:
    killed_in_round(one_file, 2)
    here = replace(one_file, machine="another")
    assert "pays for exactly this result; go on" in here.refusal()
    assert len(one_file.charged) == 1
    here.checkpoints.mkdir(exist_ok=True)
    one_file.checkpoint.rename(here.checkpoints / one_file.checkpoint.name)
    judge(here)
    assert one_file.released == [1, 3]


def test_an_old_copy_runs_nothing_and_the_newest_one_still_does(
    one_file: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it give the charge up while it waits for answers, which the newest one has."""
    copies: list[bytes] = []
    killed_in_round(one_file, 3, lambda: copies.append(one_file.checkpoint.read_bytes()))
    for copy in copies[:2]:
        one_file.checkpoint.write_bytes(copy)
        assert "an old copy, and charge" in one_file.refusal()
        with monkeypatch.context() as asking:
            asking.setattr(Running, "lost", True)
            assert "an old copy, and charge" in one_file.refusal()
        assert [charge.state for charge in one_file.charged] == ["reserved"]
        assert one_file.released == [1, 2]
    one_file.checkpoint.write_bytes(copies[2])
    judge(one_file)
    assert one_file.released == [1, 2], "the third was announced, and died"


def test_of_several_copies_at_most_one_goes_on(ledger_url: str, tmp_path: Path) -> None:
    place = Place(ledger_url, tmp_path)
    killed_in_round(place, 2)
    machines = [place.copied_to(f"machine{number}") for number in range(4)]
    outcomes = at_once(*(machine.work for machine in machines))
    assert outcomes.count(None) == 1
    assert place.released == [1, 3]
    told = (
        "an old copy, and charge",
        "another process has resumed it from a copy",
        "another process works on it",
    )
    assert all(any(each in said for each in told) for said in outcomes if said is not None)


def test_a_copy_that_resumes_stops_the_living_original(one_file: Place) -> None:
    def copied(round_: int) -> None:
        if round_ == 1:
            killed_in_round(one_file.copied_to("another"), 3)

    with pytest.raises(PipelineError, match="another process has resumed it from a copy"):
        one_file.work(copied)
    assert one_file.released == [2, 1], "what was announced before; nothing after"
    assert "an old copy" in one_file.refusal()
    judge(replace(one_file, machine="another"))


@pytest.mark.parametrize(
    "change", ["UPDATE {} SET saves = 0", "UPDATE {} SET owner = 'me'", "DELETE FROM {}"]
)
def test_progress_that_somebody_changed_lets_nothing_run(one_file: Place, change: str) -> None:
    killed_in_round(one_file, 2)
    execute(one_file.url, change.format("ledger_progress"))
    said = "was removed" if change.startswith("DELETE") else "was edited"
    charge = one_file.checkpoint.stem
    assert f"ledger_progress: the row of charge {charge} {said}" in one_file.refusal()
    assert one_file.released == [1]
    ledger = opened(one_file.url, one_file.folder)
    for use in (ledger.verify, lambda: ledger.progress.claim(charge, "somebody else", 0)):
        with pytest.raises(PipelineError, match=said):
            use()


@pytest.mark.parametrize("own", ["nothing", "begun", "finished"])
def test_work_under_a_charge_that_the_ledger_lost_stops_every_payment(
    one_file: Place, own: str
) -> None:
    """Also while its process lives, and of what was begun or paid for: its account would be too
    small.
    """
    if own == "begun":
        killed_in_round(one_file, 2)
    elif own == "finished":
        one_file.work()
    before = len(one_file.charged)
    file = one_file.checkpoints / f"{new_charge_id()}.safetensors"
    write_checkpoint(file, Running(torch.zeros(2)), charge=file.stem, saves=1)
    with locked(file.with_suffix(".lock")):
        assert f"{file.name}: work was done under charge {file.stem}" in one_file.refusal()
    file.write_bytes(b"damaged")
    assert "work was done under charge" in one_file.refusal()
    assert len(one_file.charged) == before
    file.unlink()
    judge(one_file)


PROCESSES = 6
BUDGET = Budget(adaptive(GAUSSIAN, GAUSSIAN, GAUSSIAN), DELTA)  # two are taken before the race
WANTED = request(DATA)


class Careless(Meeting):
    """The twin: who finds its place taken writes what it had decided in the next."""

    def _append(self, *arguments: Any) -> bool:
        while not super()._append(*arguments):
            self._refresh()
        return True


def granted(
    kind: type[Meeting], url: str, folder: Path, budget: Budget | None, paid: bool = False
) -> int:
    """How many processes get what all ask for; ``paid``: as work that is paid for once."""
    kind.together = ledgers.FORK.Barrier(PROCESSES)

    def run() -> bool:
        ledger = kind(url, secret=ledgers.SECRET, anchor=folder / "ledger.head")
        try:
            ledger.reserve(WANTED, budget, new_charge_id() if paid else None)
        except (Refused, Busy):
            return False
        return True

    answers = at_once(*[run] * PROCESSES)
    assert set(answers) <= {True, False}, answers
    return sum(answers)


def test_one_of_many_gets_the_last_of_a_budget(ledger_url: str, tmp_path: Path) -> None:
    ledger = opened(ledger_url, tmp_path)
    for _ in range(2):
        ledger.reserve(WANTED, BUDGET)
    assert granted(Meeting, ledger_url, tmp_path, BUDGET) == 1
    assert ledger.account(DATA).epsilon(DELTA) == BUDGET.epsilon
    assert ledger.verify() == 4
    larger = Budget(adaptive(*[GAUSSIAN] * 4), DELTA)
    assert granted(Careless, ledger_url, tmp_path, larger) == PROCESSES
    assert ledger.account(DATA).epsilon(DELTA) > larger.epsilon
    assert ledger.verify() == 4 + PROCESSES


def test_equal_runs_that_decide_on_the_same_past_do_not_both_pay(
    ledger_url: str, tmp_path: Path
) -> None:
    opened(ledger_url, tmp_path)
    assert granted(Meeting, ledger_url, tmp_path, None, paid=True) == 1
    assert len(opened(ledger_url, tmp_path).charges()) == 1


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
    for seed in range(20):
        simulate(seed, quick / "world")


@pytest.mark.parametrize("name", ["number-one-behind", "fsync-dropped", "lost-work-goes-unnoticed"])
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
