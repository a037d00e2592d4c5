"""``primorl data``: what it shows is public, and what it sends goes only where somebody said."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from primorl.commands import main as cli
from primorl.trajectories.description import describe
from primorl.trajectories.ingestion import ingest
from primorl.trajectories.partitioning import partition
from tests.trajectories.builders import entry, episode, write_raw


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def partitioned(public_fraction: float, termination: str = "none") -> None:
    write_raw(Path("raw"), [episode(4 + i % 3, seed=i, terminated=termination == "learned") for i in range(20)])
    ingest(Path("raw"), Path("data/trajectories"), "small", entry(termination=termination))
    partition(Path("data/trajectories"), Path("data/partitions"), public_fraction=public_fraction, salt="salt")


def test_it_says_what_is_declared_and_what_the_public_split_holds(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partitioned(0.4)
    assert cli.main(["data", "describe", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["dataset"] == "small"
    assert about["public"]["trajectories"] == about["public_units"]
    assert about["private_units"] + about["public_units"] == 20
    assert about["schema"]["observation"].startswith("fixed_size_list")
    assert about["public"]["return"]["5%"] <= about["public"]["return"]["50%"] <= about["public"]["return"]["95%"]
    assert cli.main(["data", "describe", "--figure", "seen.png"]) == 0
    text = capsys.readouterr().out
    assert about["dataset_fingerprint"] in text
    assert f"{about['private_units']} private, {about['public_units']} public" in text
    rows = [line.split() for line in text.splitlines()]
    header = rows.index(["dimension", "declared", "public", "min", "max", "mean", "std"])
    assert [row[0] for row in rows[header + 1 : header + 5]] == [*about["observation_names"], *about["action_names"]]
    assert f"{about['public']['observation']['max'][0]:.4g}" in rows[header + 1]
    assert Path("seen.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("termination", "said"), [("none", False), ("learned", True)])
def test_it_helps_to_tell_terminated_from_truncated(
    project: Path, capsys: pytest.CaptureFixture[str], termination: str, said: bool
) -> None:
    """Only where the model is to learn when episodes end, and more so if all of them terminate."""
    partitioned(0.4, termination)
    assert cli.main(["data", "describe"]) == 0
    text = capsys.readouterr().out
    assert ("A discharge, a cut or a time limit is truncated" in text) is said
    assert ("every public trajectory terminates" in text) is said


def test_nothing_private_is_opened(project: Path) -> None:
    """With the private side gone, and with every other dataset before the split, it says the very same."""
    partitioned(0.4)
    before, rows = describe(Path("data/partitions"))
    assert rows is not None
    for folder in ("data/partitions/private", "data/trajectories", "raw"):
        Path(folder).rename(f"{folder}-elsewhere")
    Path("data/partitions/units.bin").unlink()
    after, same = describe(Path("data/partitions"))
    assert after == before
    assert same is not None
    assert np.array_equal(same.observation, rows.observation)


def test_without_a_public_split_nothing_is_said_of_any_row(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partitioned(0)
    assert cli.main(["data", "describe", "--figure", "seen.png"]) == 0
    said = capsys.readouterr().out
    assert "public split: none, and nothing may be said of the private one" in said
    assert "no figure" in said
    assert not Path("seen.png").exists()


def test_before_the_split_it_says_what_to_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "describe"]) == 1
    assert capsys.readouterr().err == "error: data/partitions/manifest.json: not there; run `dvc repro partition`\n"


PIPELINE = """
stages:
  make:
    cmd: mkdir private && echo rows > private/rows && echo weights > released
    outs:
      - private: {push: false}
      - released
"""


def test_private_outputs_go_to_the_remote_that_is_named_and_to_no_other(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real DVC, real remotes: what `dvc push` leaves at home is sent by name alone, and comes back."""

    def dvc(*words: str) -> None:
        subprocess.run(["dvc", *words], check=True, capture_output=True)

    dvc("init", "--no-scm")
    Path("dvc.yaml").write_text(PIPELINE)
    Path("params.yaml").write_text("a: 1\n")
    dvc("repro")
    dvc("remote", "add", "-d", "shared", "../shared")
    dvc("remote", "add", "vault", "vault-of-the-clinic")
    dvc("push")
    assert contents(project.parent / "shared") == {b"weights\n"}

    assert cli.main(["data", "push", "--remote", "elsewhere"]) == 1
    assert "found 'elsewhere', allowed are the project's DVC remotes: shared, vault" in capsys.readouterr().err
    assert cli.main(["data", "push", "--remote", "vault"]) == 0
    assert capsys.readouterr().out == "private: on remote vault\n"
    assert b"rows\n" in contents(project / ".dvc/vault-of-the-clinic") | contents(project / "vault-of-the-clinic")
    assert contents(project.parent / "shared") == {b"weights\n"}
    assert not list(Path(".dvc/tmp").glob(".push*"))


def contents(folder: Path) -> set[bytes]:
    return {file.read_bytes() for file in folder.rglob("*") if file.is_file()}
