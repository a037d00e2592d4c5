"""Work is paid for once: whoever asks again, from wherever, is given the result, told where it is, or refused."""

import json
import multiprocessing
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
import torch

from primorl.privacy.ledger import charges, checkpoint
from primorl.privacy.ledger.checkpoint import write_checkpoint
from primorl.privacy.ledger.ledger import Ledger, new_charge_id
from primorl.privacy.ledger.requests import Refused
from primorl.project.errors import PipelineError
from primorl.project.files import locked
from tests.privacy.ledger.interrupted import (
    DATA,
    ONE_RUN,
    KilledError,
    Place,
    Running,
    dying_in,
    judge,
    killed_in_round,
    refusal,
)
from tests.privacy.ledger.ledgers import SECRET, execute, opened, request

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def place(ledger_url: str, tmp_path: Path) -> Place:
    return Place(ledger_url, tmp_path)


@pytest.fixture
def one_file(tmp_path: Path) -> Place:
    return Place(f"sqlite:///{tmp_path}/ledger.db", tmp_path)


# Twice at once


def at_once(*places: Place) -> list[str]:
    """All work at the same moment; what each said at the end."""
    together, said = FORK.Barrier(len(places)), FORK.Queue()

    def run(place: Place) -> None:
        together.wait(60)
        try:
            place.work()
            said.put("done")
        except Exception as refused:
            said.put(str(refused))

    processes = [FORK.Process(target=run, args=(place,)) for place in places]
    for process in processes:
        process.start()
    outcomes = [said.get(timeout=60) for _ in places]
    for process in processes:
        process.join()
    return outcomes


def test_of_equal_runs_at_once_on_one_machine_one_pays(one_file: Place) -> None:
    """The others are refused in one line, or come later and are given its result."""
    for said in at_once(*[one_file] * 5):
        assert said == "done" or "another process" in said, said
    judge(one_file)
    assert one_file.released == [1, 2, 3]


class Meeting(Ledger):
    """The worst moment: every process has decided on the same head before the first one writes."""

    together: Barrier
    waits = True

    def _append(self, contents: Sequence[Mapping[str, Any]], *rest: Any) -> bool:
        if self.waits:
            self.waits = False
            self.together.wait(60)
        return super()._append(contents, *rest)


def test_equal_runs_that_decide_on_the_same_past_do_not_both_pay(place: Place) -> None:
    opened(place.url, place.folder).close()
    together, granted = FORK.Barrier(4), FORK.Queue()

    def run() -> None:
        ledger = Meeting.open(place.url, secret=SECRET, anchor=place.folder / "ledger.head")
        ledger.together = together
        try:
            granted.put(ledger.reserve(request(DATA), None, new_charge_id()).id)
        except Refused:
            granted.put(None)

    processes = [FORK.Process(target=run) for _ in range(4)]
    for process in processes:
        process.start()
    found = [granted.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert len([charge for charge in found if charge]) == 1
    assert len(place.charged) == 1


def test_other_work_beside_it_and_after_an_abort_is_paid_for(one_file: Place) -> None:
    with closing(opened(one_file.url, one_file.folder)) as ledger:
        first = ledger.reserve(request(DATA), None, new_charge_id())
        ledger.reserve(request(DATA, identity="another"), None, new_charge_id())
        with pytest.raises(Refused, match=f"charge {first.id} of .* set privacy.draw"):
            ledger.reserve(request(DATA), None, new_charge_id())
        ledger.abort(first.id, "its answers are lost")
        ledger.reserve(request(DATA), None, new_charge_id())
        ledger.reserve(request(DATA), None)  # work that no checkpoint carries on may be repeated


def test_work_in_progress_is_left_to_its_process(one_file: Place) -> None:
    killed_in_round(one_file, 2)
    (charge,) = one_file.charged
    with locked(one_file.checkpoint.with_suffix(".lock")):
        said = refusal(one_file)
    assert f"another process works on charge {charge.id} of {charge.time}" in said
    assert "wait for it; to pay for another draw of the noise, set privacy.draw" in said
    judge(one_file)


def test_who_waits_is_given_what_the_other_paid_for(one_file: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of a sweep that have the same model: one pays, and the others restore it."""
    monkeypatch.setenv(charges.WAIT, "1")
    monkeypatch.setattr(charges, "_SECONDS_BETWEEN_LOOKS", 0.01)
    killed_in_round(one_file, 2)
    looks, other = [], ExitStack()

    def meanwhile(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            other.close()

    with pytest.MonkeyPatch.context() as patched, other:
        patched.setattr("time.sleep", meanwhile)
        assert other.enter_context(locked(one_file.checkpoint.with_suffix(".lock")))
        one_file.work()
    assert looks == [0.01, 0.01]
    judge(one_file)
    assert at_once(*[replace(one_file, folder=one_file.folder)] * 3) == ["done"] * 3
    assert len(one_file.charged) == 1


def test_the_lock_of_an_identity_comes_before_any_charge(one_file: Place) -> None:
    one_file.work(identity="another")
    seen: list[str] = []

    def second(*_: Any, **__: Any) -> None:
        seen.append(refusal(one_file))
        raise KilledError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(charges, "write_checkpoint", second)
        with pytest.raises(KilledError):
            one_file.work()
    assert "another process is about to pay for exactly this result; wait for it" in seen[0]
    assert len(one_file.charged) == 1
    assert not list(one_file.checkpoints.glob("identity-*"))


def test_a_checkpoint_that_is_elsewhere_is_not_paid_for_again(one_file: Place) -> None:
    """Deleted, or on another machine. Brought here, it goes on; asked for another draw, that is paid for."""
    killed_in_round(one_file, 2)
    here = replace(one_file, machine="another")
    said = refusal(here)
    assert re.search("not there, and charge [0-9a-f]{16} of .* pays for exactly this result; go on where", said)
    assert len(one_file.charged) == 1
    here.checkpoints.mkdir(exist_ok=True)
    one_file.checkpoint.rename(here.checkpoints / one_file.checkpoint.name)
    judge(here)
    assert one_file.released == [1, 3]


# Copies


def test_an_old_copy_runs_nothing_and_the_newest_one_still_does(one_file: Place) -> None:
    """Put back from a backup, after a kill and without a resumption in between."""
    copies = []

    def backed_up(round_: int) -> None:
        copies.append(one_file.checkpoint.read_bytes())
        dying_in(3)(round_)

    with pytest.raises(KilledError):
        one_file.work(backed_up)
    assert one_file.released == [1, 2]
    for copy in copies[:2]:
        one_file.checkpoint.write_bytes(copy)
        assert "an old copy, and charge" in refusal(one_file)
        assert one_file.released == [1, 2]
    one_file.checkpoint.write_bytes(copies[2])
    judge(one_file)
    assert one_file.released == [1, 2], "the third was announced, and died"


def test_a_copy_from_before_the_queries_is_old(one_file: Place) -> None:
    """Saves count, not rounds: who asked may not ask again, although no round has started."""
    with (
        closing(opened(one_file.url, one_file.folder)) as ledger,
        charges.pay_or_resume(
            ledger, request(DATA), ONE_RUN, one_file.checkpoints, Running(torch.zeros(2)), Running.restore
        ) as payment,
    ):
        copy = one_file.checkpoint.read_bytes()
        assert payment.state is not None
        payment.save_checkpoint(payment.state)
    one_file.checkpoint.write_bytes(copy)
    assert "an old copy" in refusal(one_file)


def test_of_several_copies_at_most_one_goes_on(place: Place) -> None:
    killed_in_round(place, 2)
    machines = [replace(place, machine=f"machine{number}") for number in range(4)]
    for machine in machines:
        machine.checkpoints.mkdir()
        (machine.checkpoints / place.checkpoint.name).write_bytes(place.checkpoint.read_bytes())
    outcomes = at_once(*machines)
    assert outcomes.count("done") == 1
    assert place.released == [1, 3]
    for said in set(outcomes) - {"done"}:
        assert "an old copy, and charge" in said


def test_a_copy_that_resumes_stops_the_living_original(one_file: Place) -> None:
    """On another machine, where the original's lock is not seen."""
    other = replace(one_file, machine="another")

    def copied(round_: int) -> None:
        if round_ == 1:
            other.checkpoints.mkdir()
            (other.checkpoints / one_file.checkpoint.name).write_bytes(one_file.checkpoint.read_bytes())
            with pytest.raises(KilledError):
                other.work(dying_in(3))

    with pytest.raises(PipelineError, match=r"another process has resumed it from a copy .* this one stops before"):
        one_file.work(copied)
    assert one_file.released == [2, 1], "what was announced before; nothing after"
    assert "an old copy" in refusal(one_file)
    judge(other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE ledger_progress SET saves = 0", "was edited"),
        ("UPDATE ledger_progress SET owner = 'me'", "was edited"),
        ("DELETE FROM ledger_progress", "was removed"),
    ],
)
def test_progress_that_somebody_changed_lets_nothing_run(one_file: Place, change: str, said: str) -> None:
    copies: list[bytes] = []
    with pytest.raises(KilledError):
        one_file.work(lambda round_: (copies.append(one_file.checkpoint.read_bytes()), dying_in(3)(round_)))  # type: ignore[func-returns-value]
    one_file.checkpoint.write_bytes(copies[1])
    execute(one_file.url, change)
    assert f"ledger_progress: the row of charge {one_file.checkpoint.stem} {said}" in refusal(one_file)
    assert one_file.released == [1, 2]


# Checkpoints and ledgers of before


def as_before(file: Path, resumed: int) -> None:
    """Write a checkpoint as it was written before resumptions had tokens."""
    found = checkpoint.read_checkpoint(file, Running.restore, file.stem)
    with pytest.MonkeyPatch.context() as patched:
        dumps = json.dumps

        def old(header: dict[str, Any], **options: Any) -> str:
            assert set(header) == {"charge", "tokens", "saves", "facts"}
            return dumps({"charge": header["charge"], "resumed": resumed, "facts": header["facts"]}, **options)

        patched.setattr(checkpoint.json, "dumps", old)
        write_checkpoint(file, found.state, charge=file.stem)


_append = Ledger._append


def _unmarked(self: Ledger, contents: Any, rosters: Any, mark: object = None) -> bool:
    return _append(self, [{**each, "marked": False} if "marked" in each else each for each in contents], rosters)


@pytest.mark.parametrize("resumed", [0, 2])
def test_a_run_of_the_version_before_is_gone_on_with(one_file: Place, resumed: int) -> None:
    """No token, no progress, and resumptions that were counted. A copy of it is refused as before."""
    with pytest.MonkeyPatch.context() as before:
        before.setattr(Ledger, "_append", _unmarked)
        killed_in_round(one_file, 2)
    as_before(one_file.checkpoint, resumed)
    execute(one_file.url, "DROP TABLE ledger_progress")
    with closing(opened(one_file.url, one_file.folder)) as ledger:
        for _ in range(resumed):
            ledger.charges()
            assert ledger._append([{"kind": "taken", "charge": one_file.checkpoint.stem, "time": "then"}], {})
    copy = one_file.checkpoint.read_bytes()
    killed_in_round(one_file, 3)
    newest = one_file.checkpoint.read_bytes()
    one_file.checkpoint.write_bytes(copy)
    assert "an old copy" in refusal(one_file)
    one_file.checkpoint.write_bytes(newest)
    judge(one_file)
    assert one_file.released == [1]


def test_an_old_copy_of_the_version_before_is_refused(one_file: Place) -> None:
    killed_in_round(one_file, 2)
    as_before(one_file.checkpoint, 1)
    assert "an old copy" in refusal(one_file)


def test_without_its_row_of_progress_no_checkpoint_is_believed(one_file: Place) -> None:
    """The row comes with the reservation; without it, the first checkpoint put back would run every round again."""
    killed_in_round(one_file, 1)
    execute(one_file.url, "DELETE FROM ledger_progress")
    assert "the row of charge" in refusal(one_file)
    with closing(opened(one_file.url, one_file.folder)) as ledger, pytest.raises(PipelineError, match="was removed"):
        ledger.verify()


def test_a_first_checkpoint_put_back_after_its_row_is_gone_is_refused(one_file: Place) -> None:
    """It was saved once, so its own count tells nothing; that the row is gone does."""
    with closing(opened(one_file.url, one_file.folder)) as ledger:
        charge = ledger.reserve(request(DATA), None, new_charge_id())
        assert ledger.progress.claim(charge.id, "somebody", 0) is not None
        execute(one_file.url, "DELETE FROM ledger_progress")
        with pytest.raises(PipelineError, match="was removed"):
            ledger.progress.claim(charge.id, "somebody else", 0)
