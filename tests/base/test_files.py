"""Outputs are replaced whole or not at all, whatever the moment of a kill; what killed processes
left is deleted; JSON files and records are read strictly; real DVC is asked what changed.
"""

import fcntl
import json
import math
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, TextIO

import numpy as np
import pytest
from safetensors.numpy import save_file

from primorl.base import PipelineError, files
from primorl.base.dvc import Status, advise, hint, show_dvc
from primorl.base.files import (
    check_writable,
    finite,
    locked,
    read_json,
    refuse_readable,
    replaced_directory,
    replaced_file,
    sweep_leftovers,
    write_json,
)
from primorl.base.processes import place_among_processes
from primorl.base.records import Hexadecimal, Line, Within, read_record, record, write_record
from primorl.base.reporting import exit_status
from tests.data.builders import snapshot


def replace_by(target: Path, text: str, error: BaseException | None = None) -> None:
    with replaced_directory(target) as fresh:
        (fresh / "file").write_text(text)
        if error is not None:
            raise error


def content(folder: Path) -> dict[str, str]:
    """Every file below ``folder``, leftovers of exchanges included."""
    return {name: body.decode() for name, body in snapshot(folder).items()}


def test_a_directory_is_replaced_whole_with_the_permissions_the_user_chose(project: Path) -> None:
    target, mask = project / "deep" / "target", 0o027
    previous = os.umask(mask)
    try:
        replace_by(target, "first")
        with replaced_directory(project / "model") as fresh:
            save_file({"weights": np.zeros(2)}, fresh / "hidden.safetensors")  # with mode 0600
        assert os.umask(mask) == mask
    finally:
        os.umask(previous)
    assert stat.S_IMODE(target.stat().st_mode) == 0o777 & ~mask
    hidden = project / "model/hidden.safetensors"
    assert stat.S_IMODE(hidden.stat().st_mode) == 0o666 & ~mask
    shutil.rmtree(project / "model")
    (target / "stale").write_text("of the first")
    (target / "file").chmod(0o444)  # as in DVC's cache
    replace_by(target, "second")
    assert [entry.name for entry in target.parent.iterdir()] == ["target"]
    for error in (ValueError(), KeyboardInterrupt()):
        for output in (target, project / "none"):
            with pytest.raises(type(error)):
                replace_by(output, "never", error)
    assert content(project) == {"deep/target/file": "second"}


def test_a_file_is_replaced_whole_or_not_at_all(project: Path) -> None:
    """A link into a cache is not written through."""
    target, error = project / "target.txt", KeyboardInterrupt()
    (project / "cached").write_text("cached")
    target.symlink_to(project / "cached")
    with replaced_file(target) as fresh:
        fresh.write_text("whole")
    with suppress(KeyboardInterrupt), replaced_file(target) as fresh:
        fresh.write_text("half")
        raise error
    assert content(project) == {"cached": "cached", "target.txt": "whole"}


def test_what_a_killed_process_left_is_swept_and_what_others_write_stays(project: Path) -> None:
    """What a living process or another machine writes stays."""
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    data = project / "data"

    def left(parent: Path, process: int) -> Path:
        path = parent / f".raw.new-{files.HOST}-{process}-x"
        path.mkdir(parents=True)
        (path / "rows").write_text("private")
        return path

    gone = [left(project / parent, killed.pid) for parent in files.PARENTS]
    stays = [left(data, os.getpid()), data / ".raw.new-0badcafe-1-x"]
    stays[1].mkdir()
    gone.append(data / f".one.csv.new-{files.HOST}-{killed.pid}-x")
    gone[-1].write_text("private")
    assert set(sweep_leftovers(project)) == {*gone}
    assert all(path.exists() for path in stays)


def test_a_lock_on_a_file_that_was_deleted_is_taken_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two processes would each hold the lock: one of the deleted file, one of the new."""
    file, flock = project / "x.lock", fcntl.flock
    deleted: list[bool] = []

    def deleting(handle: TextIO, how: int) -> None:
        if not deleted:
            file.unlink()
            deleted.append(True)
        flock(handle, how)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", deleting)
        with locked(file) as free, file.open("w") as other:
            assert free
            with pytest.raises(BlockingIOError):
                flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with locked(file) as first, locked(file) as second:
        assert (first, second) == (True, False)


def test_a_folder_that_refuses_files_or_lacks_the_space_is_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(project)._replace(free=3 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    check_writable([Path("models/dynamics"), project / "deep/er/file"], bytes_needed=3 << 20)
    assert list(project.iterdir()) == [], "nothing is left behind"
    with pytest.raises(PipelineError, match="found 3 MB free, this stage needs 4 MB"):
        check_writable([project / "x"], bytes_needed=(3 << 20) + 1)

    def refuse(*, dir: Path, **_: object) -> None:  # root may write everywhere
        raise PermissionError(13, "Permission denied", dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(PipelineError, match=r"^\S+: not writable [^\n]*$"):
        check_writable([Path("models/dynamics")])


HOMES = {  # working directory, DVC_ROOT, home; P has params.yaml
    "a project": ("P", None, "P"),
    "a stage of it": ("P", "P", "P"),
    "a folder below it": ("P/data", "P", "P"),
    "a stage of another project": ("P", "outer", "P"),
    "another project's experiment": ("P", "outer/.dvc/tmp/exps/tmp1", "P"),
    "a subfolder of a DVC project": ("outer/P", "outer", "outer/P"),
    "a temporary copy": ("P/.dvc/tmp/exps/standalone/tmp1", "P", "P"),
    "a queued copy": ("P/.dvc/tmp/exps/tmp1", "P/.dvc/tmp/exps/tmp1", "P"),
    "a copy of another project": ("P/.dvc/tmp/exps/tmp1", "outer", "P"),
    "a copy of a subfolder": ("outer/.dvc/tmp/exps/tmp1/P", "outer", "outer/P"),
    "a copy of DVC's subfolder": ("P/.dvc/tmp/exps/tmp1/P", "P", "P"),
    "a worktree": ("tree/P", None, "tree/P"),
    "a linked project": ("link", "link", "P"),
    "copies behind a link": ("far/.dvc/tmp/exps/tmp1", "far", "far"),
}


@pytest.mark.parametrize("where", HOMES)
def test_the_account_lies_in_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    start, root, expected = HOMES[where]
    for name in ("P", "outer/P", "tree/P", "far"):
        (project / name).mkdir(parents=True)
        (project / name / "params.yaml").touch()
    (project / "link").symlink_to("P")
    (project / "disk").mkdir()
    (project / "far/.dvc").mkdir()
    (project / "far/.dvc/tmp").symlink_to("../../disk")
    (project / start).mkdir(parents=True, exist_ok=True)
    if ".dvc" in start:
        (project / start / "params.yaml").touch()
    monkeypatch.chdir(project / start)
    if root is not None:
        monkeypatch.setenv("DVC_ROOT", str(project / root))
    assert files.home() == (project / expected).resolve()


def test_what_is_not_a_json_object_is_one_clear_error_that_quotes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "value.json"
    with pytest.raises(PipelineError, match="not there; run `primorl run`"):
        read_json(file)
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON"):
            write_json(file, {"deep": [{"number": number}]})
        assert finite(number) is None
    assert not file.exists()
    for raw in (b"{", b"\xff\xfe", b'{"epsilon": NaN}', b"[1]", b'{"secret": "PRIVATE-42"'):
        file.write_bytes(raw)
        with pytest.raises(PipelineError) as raised:
            read_json(file)
        assert str(raised.value).startswith(f"{file}: ")
        assert "PRIVATE" not in str(raised.value)


@record
class Part:
    name: Annotated[Line, "Its name."]


@record
class Whole:
    FORMAT: ClassVar[int] = 3

    count: Annotated[int, Within(ge=1), "How many."]
    share: Annotated[float | None, "A share."]
    parts: Annotated[tuple[Part, ...], "The parts."]
    digest: Annotated[Hexadecimal | None, "A digest."] = None


def test_a_record_comes_back_and_what_is_not_declared_is_refused_in_one_line(
    tmp_path: Path,
) -> None:
    file = tmp_path / "whole.json"
    whole = Whole(count=2, share=0.5, parts=(Part(name="a"), Part(name="b")))
    write_record(file, whole)
    assert read_record(file, Whole) == whole
    content = json.loads(file.read_text(encoding="utf-8"))
    assert list(content) == ["format", "count", "share", "parts"]
    for changes, key in (
        ({"format": 4}, r"whole.json: found format 4"),
        ({"count": 0}, "count"),
        ({"count": "2"}, "count"),
        ({"count": 2.5}, "count"),
        ({"parts": [{"name": "a", "age": 3}]}, r"parts\.0\.age \(unknown key\)"),
        ({"parts": [{"name": "two\nlines"}]}, r"parts\.0\.name"),
        ({"digest": "A" * 64}, "digest"),
        ({"\x1b[2Jok": 3}, r"\?\[2Jok \(unknown key\)"),
    ):
        refused(file, json.dumps(content | changes).encode(), key)
    refused(file, b'{"count": 2}', "found format 1, this version reads 3")
    refused(file, b'{"format": 3}', r"count \(missing\), parts \(missing\), share \(missing\)")
    refused(file, b"\xff\xfe", "not readable")
    file.unlink()
    with pytest.raises(PipelineError, match=r"whole.json: not there; run"):
        read_record(file, Whole)


def test_numbers_of_the_environment_are_whole_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers set them, also empty."""
    monkeypatch.delenv("RANK", raising=False)
    for given, expected in (("", 1), ("4", 4)):
        monkeypatch.setenv("WORLD_SIZE", given)
        assert place_among_processes() == (0, expected)
    for given in ("x", "-1"):
        monkeypatch.setenv("WORLD_SIZE", given)
        says = f"WORLD_SIZE: found '{given}' in the environment"
        with pytest.raises(PipelineError, match=says):
            place_among_processes()


def test_an_error_of_dvc_names_the_remedy() -> None:
    for said, remedy in (
        ("'./dvc.lock' is invalid (possible merge conflicts).", "`git checkout HEAD -- dvc.lock`"),
        ("failed to run: python -m pipeline.train_model, exited with -9", "want of memory"),
        ("'dvc.lock' is busy, it is being blocked by", "a run of DVC is under way"),
    ):
        assert advise(said).startswith(said)
        assert remedy in advise(said)
    assert advise("anything else") == "anything else"


ANOTHER = {"params.yaml": {"dataset": "modified"}, "datasets/y.yaml": {"unit": "new"}}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"ingest": [{"changed deps": {"data/withdrawals": "modified"}}]}, True),
        ({"ingest": [{"changed deps": {"datasets/x.yaml": {"ingestion": "modified"}}}]}, True),
        ({"partition": [{"changed deps": {"data/consent/list.txt": "modified"}}]}, True),
        ({"ingest": ["changed command", {"changed deps": {"pipeline/x.py": "modified"}}]}, False),
        ({"ingest": [{"changed deps": {"data/withdrawals": "deleted"}}]}, False),  # a clone
        ({"report": [{"changed deps": {"datasets/x.yaml": "modified"}}]}, False),  # the card
        ({"partition": [{"changed deps": {"datasets/x.yaml": {"recipe": "new"}}}]}, False),
        ({"ingest": [{"changed deps": ANOTHER}]}, False),
        ({"ingest": [{"changed deps": ANOTHER | {"data/withdrawals": "modified"}}]}, True),
    ],
)
def test_what_people_entered_since_the_data_were_made_is_told_from_the_rest(
    answer: dict[str, Any], expected: bool
) -> None:
    status = Status()
    status._answer = answer
    assert status.has_other_people() is expected


def refused(file: Path, content: bytes, says: str) -> None:
    file.write_bytes(content)
    with pytest.raises(PipelineError, match=says) as refusal:
        read_record(file, Whole, "do this")
    assert "\n" not in str(refusal.value)
    assert str(file) in str(refusal.value)


PIPELINE = """
stages:
  make: {cmd: mkdir made && cp params.yaml made/single, params: [word], outs: [made]}
"""


@pytest.fixture
def with_dvc(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def dvc(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "dvc", *words], capture_output=True, check=True)


@pytest.mark.usefixtures("with_dvc")
def test_what_changed_and_what_is_gone_are_told() -> None:
    assert Status().changed_stages() == set(), "no DVC project"
    dvc("init", "--no-scm", "--quiet")
    Path("dvc.yaml").write_text(PIPELINE)
    Path("params.yaml").write_text("word: one\n")
    dvc("repro")
    assert (Status().changed_stages(), hint()) == (set(), None)
    Path("params.yaml").write_text("word: two\n")
    assert Status().changed_stages() == {"make"}
    shutil.rmtree("made")
    assert hint() == "missing: made; `dvc checkout` brings them back"
    Path(".dvc/tmp/rwlock").write_text("")  # as a kill may leave it
    with pytest.raises(PipelineError, match=r"rwlock.*if there is none, delete that file"):
        Status().changed_stages()
    Path(".dvc/tmp/rwlock").unlink()
    Path("dvc.lock").write_text("")  # as a full disk may leave it
    with pytest.raises(
        PipelineError, match=r"empty, damaged or of a merge: `git checkout HEAD -- dvc\.lock`"
    ):
        Status().changed_stages()
    for lock in ("", "stages: {make: 3}", "["):
        Path("dvc.lock").write_text(lock)
        assert hint() is None, "DVC reports it"


@pytest.mark.usefixtures("with_dvc")
def test_a_status_that_nobody_reads_ends_by_itself_and_leaves_no_lock() -> None:
    dvc("init", "--no-scm", "--quiet")
    Path("dvc.yaml").write_text(PIPELINE)
    leave = "from primorl.base.dvc import Status; Status(); raise KeyboardInterrupt"
    done = subprocess.run([sys.executable, "-c", leave], capture_output=True, text=True)
    assert "KeyboardInterrupt" in done.stderr
    assert Status().changed_stages() == {"make"}, "DVC refuses where it finds a lock"


@pytest.mark.parametrize("before", ["", "fit:  0/60 [00:00<?, ?round/s]"])
def test_what_dvc_says_of_a_kill_is_found_behind_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """A bar that did not end has no line end."""
    monkeypatch.chdir(tmp_path)
    said = "failed to reproduce 'train_model': failed to run, exited with -9"
    Path("dvc.py").write_text(f"print({before + 'ERROR: ' + said!r}); raise SystemExit(255)")
    with pytest.raises(PipelineError, match=r"^failed to reproduce .*what was paid for is resumed"):
        show_dvc("repro")


def test_a_project_in_a_folder_that_dvc_cannot_open_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project / os.fsdecode(b"donn\xe9es")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(PipelineError, match=r"donn\\xe9es: found a name that is not"):
        refuse_readable()


def test_a_warning_of_a_library_ends_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever PYTHONWARNINGS says; twin: pytest's own filter, which is no such option."""

    def work() -> None:
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("error")
        assert exit_status("x", work, debug=False) == 1
        monkeypatch.setattr(sys, "warnoptions", ["error::DeprecationWarning"])
        assert exit_status("x", work, debug=False) == 0
