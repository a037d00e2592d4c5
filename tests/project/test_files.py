import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from primorl.project import files
from primorl.project.files import home, replaced_directory, replaced_file, workspace

ROOT = Path(__file__).resolve().parents[2]


def fill(folder: Path, text: str) -> None:
    (folder / "file").write_text(text)


def replace_by(target: Path, text: str, error: BaseException | None = None) -> None:
    with replaced_directory(target) as fresh:
        fill(fresh, text)
        if error is not None:
            raise error


def content(folder: Path) -> dict[str, str]:
    """Every file below ``folder``, leftovers of exchanges included."""
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_stages_work_where_dvc_starts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a temporary copy ``DVC_ROOT`` names the project itself, whose outputs are not this experiment's to touch."""
    copy = tmp_path / ".dvc" / "tmp" / "exps" / "standalone" / "tmpabc"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert workspace() == copy.resolve()
    assert home() == tmp_path.resolve()
    monkeypatch.setenv("DVC_ROOT", "/srv/exps/project")
    assert home() == Path("/srv/exps/project"), "a folder named like DVC's copies is not one"


def test_a_directory_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    replace_by(target, "first")
    (target / "stale").write_text("of the first")
    (target / "file").chmod(0o444)  # as in DVC's cache
    replace_by(target, "second")
    assert content(tmp_path) == {"deep/target/file": "second"}
    assert [entry.name for entry in target.parent.iterdir()] == ["target"]


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt()])
def test_a_directory_that_fails_leaves_the_last_good_one(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        replace_by(tmp_path / "target", "never", error)
    assert list(tmp_path.iterdir()) == []
    replace_by(tmp_path / "target", "good")
    with pytest.raises(type(error)):
        replace_by(tmp_path / "target", "never", error)
    assert content(tmp_path) == {"target/file": "good"}


@pytest.mark.parametrize(("failing_move", "left"), [(1, "good"), (2, "good"), (3, "new")])
def test_an_exchange_that_breaks_between_its_moves_leaves_one_whole_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_move: int, left: str
) -> None:
    """Interrupted before its first or its second move, or after it."""
    monkeypatch.setattr(files, "_swap", lambda one, other: False)
    replace_by(tmp_path / "target", "good")
    move, moves = Path.replace, 0

    def breaking(source: Path, target: Path) -> Path:
        nonlocal moves
        moves += 1
        if moves == failing_move:
            raise KeyboardInterrupt
        moved = move(source, target)
        if moves == 2 and failing_move == 3:
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(Path, "replace", breaking)
    with pytest.raises(KeyboardInterrupt):
        replace_by(tmp_path / "target", "new")
    assert content(tmp_path) == {"target/file": left}


KILLED = """
import os, signal, sys
from pathlib import Path
from primorl.project import files
target, point, swap = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "swap"
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
if not swap:
    files._swap = lambda one, other: False
if point == "before the exchange":
    files._exchange = die
if point == "between the moves":
    move = Path.replace
    def replace(source, target):
        move(source, target)
        die()
    Path.replace = replace
if point == "after the exchange":
    files.shutil.rmtree = die
with files.replaced_directory(target) as fresh:
    (fresh / "file").write_text("new")
    if point == "while writing":
        die()
"""


@pytest.mark.parametrize(
    ("point", "swap", "left"),
    [
        ("while writing", "swap", "old"),
        ("before the exchange", "swap", "old"),
        ("after the exchange", "swap", "new"),
        ("between the moves", "moves", "old"),
        ("after the exchange", "moves", "new"),
    ],
)
def test_a_killed_process_leaves_one_whole_output_and_the_next_one_clears_up(
    tmp_path: Path, point: str, swap: str, left: str
) -> None:
    """Whatever the moment of the kill, the next start finds the old or the new output, and no stray private rows."""
    target = tmp_path / "target"
    replace_by(target, "old")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(target), point, swap], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    if swap == "swap":  # in one step: not even a moment without an output
        assert (target / "file").read_text() == left
    with pytest.raises(RuntimeError):
        replace_by(target, "never", RuntimeError())
    assert content(tmp_path) == {"target/file": left}
    assert [entry.name for entry in tmp_path.iterdir()] == ["target"]


def test_leftovers_of_the_living_and_of_other_machines_stay(tmp_path: Path) -> None:
    other = tmp_path / ".target.new-0badcafe-1-x"
    other.mkdir()
    with replaced_directory(tmp_path / "target") as first:
        with replaced_directory(tmp_path / "target") as second:
            fill(second, "second")
        fill(first, "first")
    assert content(tmp_path) == {"target/file": "first"}
    assert other.exists()


SPILLED = """
import os, signal, sys
from pathlib import Path
from primorl.project.files import scratch_directory
with scratch_directory(Path(sys.argv[1])) as scratch:
    (scratch / "rows").write_text("private")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_scratch_directory_is_gone_after_its_block_and_after_a_kill(tmp_path: Path) -> None:
    """Rows that wait there to be sorted are private; nobody looks for them."""
    target = tmp_path / "raw"
    replace_by(target, "raw")
    killed = subprocess.run([sys.executable, "-c", SPILLED, str(target)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    with files.scratch_directory(target) as scratch:
        fill(scratch, "private")
        assert scratch.parent == tmp_path
        assert {entry.name for entry in tmp_path.iterdir()} == {"raw", scratch.name}
    with pytest.raises(ZeroDivisionError), files.scratch_directory(target):
        _ = 1 / 0
    assert content(tmp_path) == {"raw/file": "raw"}


def test_a_new_directory_has_the_permissions_the_user_chose(tmp_path: Path) -> None:
    mask = 0o027
    previous = os.umask(mask)
    try:
        replace_by(tmp_path / "target", "x")
        assert os.umask(mask) == mask
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o777 & ~mask


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """Twin of a link into a cache, which is not written through."""
    target = tmp_path / "deep" / "target.txt"
    target.parent.mkdir()
    (tmp_path / "cached").write_text("cached")
    target.symlink_to(tmp_path / "cached")
    for text in ("first", "second"):
        with replaced_file(target) as fresh:
            fresh.write_text(text)
    assert content(tmp_path) == {"cached": "cached", "deep/target.txt": "second"}

    def fail() -> None:
        with replaced_file(target) as fresh:
            fresh.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert content(tmp_path) == {"cached": "cached", "deep/target.txt": "second"}
