"""A change of a log's files after they were collected stops `primorl check`."""

import os
import shutil
from pathlib import Path

import pytest

from pipeline import collect
from primorl.base.reporting import StageLog
from primorl.commands.main import main
from primorl.config.params import Params
from primorl.data.sources.logs import changed
from tests.projects import project_settings, write_settings

HEADER, ROW = (
    "patient,stay,time,glucose,insulin_on_board,meal,dose,reward\n",
    "{},1,{},7.5,0.1,none,0.2,-0.1\n",
)
FILES = Path("examples/insulin-log")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """A project whose log of two files was collected."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    FILES.mkdir(parents=True)
    Path(".primorl").mkdir(mode=0o700)
    for number in (1, 2):
        rows = "".join(
            ROW.format(patient, hour) for patient in (number, number + 2) for hour in range(3)
        )
        (FILES / f"log-{number}.csv").write_text(HEADER + rows, encoding="utf-8")
    params = write_settings(project_settings("csv-log") | {"dataset": "csv-log"})
    collect.body(params, StageLog())
    return params


def edit(file: Path) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace("7.5", "8.5"), encoding="utf-8")


def add(file: Path) -> None:
    file.with_name("log-3.csv").write_text(HEADER)


def touch(file: Path) -> None:
    os.utime(file, (1, 1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (edit, "1 of 2 files changed"),
        (Path.unlink, "1 of 2 files changed"),
        (add, "1 of 3 files changed"),
        (touch, None),
    ],
)
def test_what_changed_at_the_source_is_said_until_it_is_collected_again(
    project: Params,
    change: object,
    says: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Twin: a file that has only a new time."""
    assert callable(change)
    change(FILES / "log-1.csv")
    status = main(["check"])
    err = capsys.readouterr().err
    assert (status, "the source changed since it was collected" in err) == (
        (0, False) if says is None else (1, True)
    )
    assert (says or "") in err
    kept = shutil.copytree("data/raw", "kept")
    collect.body(project, StageLog())
    assert changed(project.dataset, project.chosen) is None
    shutil.rmtree("data/raw")
    shutil.copytree(kept, "data/raw")
    assert (changed(project.dataset, project.chosen) is None) == (says is None), (
        "an old copy that came back is old"
    )
    shutil.rmtree(FILES)
    assert changed(project.dataset, project.chosen) is None, (
        "a log that was moved away tells nothing"
    )
