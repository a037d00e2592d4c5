"""A ledger in the hands of somebody who may read it and nothing else."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from primorl.commands import main as cli
from tests.commands.charging import charged, settings
from tests.pipeline.training_project import write_partitions
from tests.trajectories.builders import episode, snapshot


def as_auditor(action: Callable[[], int]) -> int:
    """Do something in a process without the rights of this user, if it is root, whom no mode holds back."""
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setegid(65534)
                os.seteuid(65534)
            os._exit(action())
        except BaseException as wrong:
            print(repr(wrong), flush=True)
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that other users can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="primorl-auditor-"))
    folder.chmod(0o755)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(folder)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(folder)


def test_who_may_only_read_can_verify_show_and_plan(outside: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As an auditor has it. Nothing is created: no file, no lock, no journal."""
    chosen = settings(outside)
    write_partitions([episode(5, i) for i in range(6)], [episode(5, 100 + i) for i in range(2)])
    charged(chosen)
    for path in [*outside.rglob("*"), outside]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = snapshot(outside)

    def denied() -> int:
        try:
            Path(".primorl/probe").touch()
        except PermissionError:
            return 7
        return 0

    assert as_auditor(denied) == 7, "the twin: this process really may not write"
    for words in (("ledger", "verify"), ("ledger", "show"), ("ledger", "show", "--json"), ("plan",)):
        assert as_auditor(partial(cli.main, words)) == 0, capfd.readouterr()
    out = capfd.readouterr().out
    assert "the ledger is whole: 3 records" in out
    assert "1 charge(s)" in out
    assert snapshot(outside) == before
