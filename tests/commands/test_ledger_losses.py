"""A ledger that was deleted, cut or exchanged is noticed by what the project's files name, and repaired by one command.

Every test here failed, or could not be written, while an empty ``.primorl`` meant "nothing was charged yet".
"""

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import compose
from primorl.privacy.accounting.events import event_to_json
from primorl.privacy.ledger.ledger import Version
from primorl.privacy.together import joint_event
from primorl.project import restoration
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.setup.accounts import dataset_version, project_ledger
from primorl.trajectories.identity.membership import DIGEST_BYTES
from primorl.trajectories.storage.manifest import Manifest
from tests.commands.charging import EVENT, charged, data, primorl, settings
from tests.pipeline.training_project import write_partitions
from tests.privacy.ledger.ledgers import DELTA, adaptive, execute, request, version
from tests.trajectories.builders import episode, snapshot

HEAD, DATABASE = Path(".primorl/ledger.head"), Path(".primorl/ledger.db")
READING = (("ledger", "show"), ("ledger", "show", "--json"), ("ledger", "verify"), ("ledger", "export", "out.jsonl"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """A project with partitions, as the working directory."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    chosen = settings(tmp_path)
    write_partitions([episode(5, i) for i in range(6)], [episode(5, 100 + i) for i in range(2)])
    return chosen


def forget_ledger() -> None:
    for file in Path(".primorl").glob("ledger*"):
        file.unlink()


def spent(params: Params) -> float:
    with closing(project_ledger(params)) as ledger:
        ledger.verify()
        return ledger.account(data()).epsilon(DELTA)


@pytest.mark.parametrize("lost", [".primorl", ".primorl/ledger.db and head", "rows and head"])
def test_a_model_names_what_a_deleted_ledger_lacks(
    project: Params, capsys: pytest.CaptureFixture[str], lost: str
) -> None:
    """Before: "nothing was charged yet", exit 0, and the next run began at zero."""
    charge = charged(project, name="policy")
    if lost == ".primorl":
        shutil.rmtree(".primorl")
    elif lost == "rows and head":
        execute(f"sqlite:///{DATABASE}", "DELETE FROM ledger_records", "DELETE FROM ledger_members")
        HEAD.unlink()
    else:
        forget_ledger()
    before = snapshot(Path())
    for words in (*READING, ("doctor",)):
        status, out, err = primorl(capsys, *words)
        assert status == 1
        assert "nothing was charged yet" not in out
        assert f"models/policy/privacy.json: charge {charge} is not in the ledger" in out + err
        assert "primorl ledger repair" in out + err
    with pytest.raises(PipelineError, match=f"charge {charge} is not in the ledger"):
        project_ledger(project)
    assert snapshot(Path()) == before, "to look creates nothing, and to be refused does not either"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Path:
    """DVC's cache, without asking DVC, which takes seconds."""
    folder = Path(".dvc/cache").absolute()
    monkeypatch.setattr(restoration, "_cache", lambda: folder)
    return folder / "files" / "md5"


def recorded(cache: Path, statement: dict[str, Any] | None) -> None:
    """``dvc.lock`` with a run of train_model, whose model DVC has deleted to run the stage again."""
    outs = [{"path": "models/dynamics", "md5": "aa" + "0" * 30 + ".dir"}]
    Path("dvc.lock").write_text(yaml.safe_dump({"stages": {"train_model": {"cmd": "x", "outs": outs}}}))
    shutil.rmtree("models", ignore_errors=True)
    if statement is not None:
        (cache / "aa").mkdir(parents=True)
        (cache / "bb").mkdir(parents=True)
        listed = [{"md5": "bb" + "1" * 30, "relpath": "privacy.json"}]
        (cache / "aa" / ("0" * 30 + ".dir")).write_text(json.dumps(listed))
        (cache / "bb" / ("1" * 30)).write_text(json.dumps(statement))


@pytest.mark.parametrize("cached", [True, False])
def test_the_lock_file_alone_names_it_too(
    project: Params, cache: Path, capsys: pytest.CaptureFixture[str], cached: bool
) -> None:
    charge = charged(project)
    statement = json.loads(Path("models/dynamics/privacy.json").read_text(encoding="utf-8"))
    recorded(cache, statement if cached else None)
    project_ledger(project).close()  # the twin: the ledger has it
    forget_ledger()
    with pytest.raises(PipelineError) as refused:
        project_ledger(project)
    named = f"dvc.lock (models/dynamics/privacy.json): charge {charge} is not in the ledger"
    assert str(refused.value).startswith(named if cached else "dvc.lock: train_model has run, and its charge is not")
    assert primorl(capsys, "ledger", "verify")[0] == 1
    if cached:
        assert primorl(capsys, "ledger", "repair")[0] == 0
        assert spent(project) == compose([EVENT], DELTA).epsilon_pld
    else:
        assert primorl(capsys, "ledger", "repair")[0] == 1
        assert primorl(capsys, "ledger", "repair", "--accept-loss")[0] == 0
        project_ledger(project).close()


def test_a_repair_records_again_what_the_models_name(project: Params, capsys: pytest.CaptureFixture[str]) -> None:
    charge = charged(project)
    before = spent(project)
    forget_ledger()
    status, out, err = primorl(capsys, "ledger", "repair")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "no ledger was begun here"
    assert lines[1].startswith(f"models/dynamics/privacy.json: charge {charge} is not in the ledger (ε ")
    assert lines[2] == "  it can be recorded again, as spent on the units of data/partitions"
    assert f"recorded again: charge {charge}" in lines
    assert spent(project) == before
    assert primorl(capsys, "ledger", "verify")[:2] == (0, "the ledger is whole: 3 records\n")
    assert primorl(capsys, "ledger", "repair")[1].splitlines()[-1].startswith("nothing to repair")
    with closing(project_ledger(project)) as ledger:
        (again,) = ledger.charges()
    assert (again.id, again.state, again.stage, again.identity) == (charge, "reserved", "repair", "")
    charged(project)
    assert spent(project) == adaptive(*[EVENT] * 2)


def test_a_database_that_is_gone_while_the_head_is_there_is_repaired_too(
    project: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twin: nothing is written before the loss is accepted."""
    charge = charged(project)
    before = spent(project)
    for file in Path(".primorl").glob("ledger.db*"):
        file.unlink()
    here = snapshot(Path())
    assert "ledger repair" in primorl(capsys, "ledger", "show")[2]
    status, out, err = primorl(capsys, "ledger", "repair")
    assert status == 1
    assert "ledger repair --accept-loss" in err
    assert snapshot(Path()) == here
    status, out, err = primorl(capsys, "ledger", "repair", "--accept-loss")
    assert (status, err) == (0, "")
    assert f"recorded again: charge {charge}" in out.splitlines()
    assert spent(project) == before


@pytest.mark.parametrize("named", [True, False])
def test_a_policy_of_model_and_clone_names_both_charges(
    project: Params, capsys: pytest.CaptureFixture[str], named: bool
) -> None:
    """Each is recorded again as what it was, not as both together. Twin: a statement that names none is not missed."""
    names = ("dynamics", "behaviour")
    charges = [charged(project, name=name) for name in names]
    parts = [read_json(Path("models") / name / "privacy.json") | {"what": f"models/{name}"} for name in names]
    joint = {"event": event_to_json(joint_event([part["event"] for part in parts])), "epsilon": 9.0, "charge": None}
    kept = [{key: part[key] for key in ("what", "charge", "event", "epsilon")} for part in parts]
    shutil.rmtree("models")
    write_json(Path("models/policy/privacy.json"), parts[1] | joint | {"mechanisms": kept if named else []})
    before = spent(project)
    forget_ledger()
    if not named:
        assert spent(project) == 0
        return
    with pytest.raises(PipelineError, match=f"charge {charges[1]} is not in the ledger; .*charge {charges[0]} is not"):
        project_ledger(project)
    status, out, _ = primorl(capsys, "ledger", "repair")
    assert status == 0
    assert f"models/policy/privacy.json (models/behaviour): charge {charges[1]} is not in the ledger (ε 0." in out
    assert spent(project) == before


def test_a_repair_that_the_ledger_would_refuse_writes_nothing(
    project: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, the head and the record of the repair were written already."""
    charged(project)
    forget_ledger()
    Path("models").rename("away")
    published = replace(version("pqr"), public=data().members)
    with closing(project_ledger(project)) as ledger:
        ledger.reserve(request(published, EVENT), None)
    Path("away").rename("models")
    before = snapshot(Path())
    status, _, err = primorl(capsys, "ledger", "repair")
    assert status == 1
    assert "the private split holds units that earlier runs used as public" in err
    assert snapshot(Path()) == before


def test_within_a_population_of_another_name_a_trajectory_has_three_digests(project: Params) -> None:
    """Before, a file with two of them passed, and was found out after the charge."""
    folder = Path("data/partitions")
    manifest = Manifest.load(folder / "manifest.json")
    other = replace(manifest, info=replace(manifest.info, population="people"))
    with pytest.raises(PipelineError, match=r"units\.bin: missing, or not of 6 units"):
        dataset_version(other, folder)
    for name, units in (("units.bin", manifest.private_units), ("public_units.bin", manifest.public_units)):
        (folder / name).write_bytes((folder / name).read_bytes() + bytes(DIGEST_BYTES * units))
    assert dataset_version(other, folder).units == 6
    with pytest.raises(PipelineError, match=r"units\.bin: missing, or not of 6 units"):
        dataset_version(manifest, folder)


@pytest.mark.parametrize("what", ["of other data", "of more charges than are named", "without an event"])
def test_what_cannot_be_recorded_again_is_refused_and_then_kept_on_record(
    project: Params, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    if what == "of more charges than are named":
        charged(project)
    charge = charged(project, version("pqr") if what == "of other data" else None)
    if what == "without an event":
        statement = json.loads(Path("models/dynamics/privacy.json").read_text(encoding="utf-8"))
        write_json(Path("models/dynamics/privacy.json"), {**statement, "event": {"type": "exec"}})
    forget_ledger()
    before = snapshot(Path())
    status, out, err = primorl(capsys, "ledger", "repair")
    assert status == 1
    assert err.count("\n") == 1
    assert "nothing was changed" in err
    assert "primorl ledger repair --accept-loss" in err
    assert f"charge {charge} is not in the ledger (ε 0." in out or f"charge {charge} is not in the ledger (ε 1." in out
    assert ("count 1 more charge(s)" in out) == (what == "of more charges than are named")
    assert snapshot(Path()) == before
    assert primorl(capsys, "ledger", "repair", "--accept-loss")[0] == 0
    assert primorl(capsys, "ledger", "verify")[0] == 0
    shown = primorl(capsys, "ledger", "show")[1]
    if what == "of more charges than are named":
        assert spent(project) == compose([EVENT], DELTA).epsilon_pld
    else:
        assert f"lost, and in none of these sums: charge {charge} (ε " in shown
        assert spent(project) == 0


def test_under_a_new_secret_charges_on_as_many_units_are_counted(
    project: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can tell any more whether they are the same people. To count too much is safe."""
    charge = charged(project)
    shutil.rmtree(".primorl")
    Path("data/partitions").rename("old")
    write_partitions([episode(5, i) for i in range(6)], [episode(5, 100 + i) for i in range(2)])
    manifest = json.loads(Path("data/partitions/manifest.json").read_text(encoding="utf-8"))
    write_json(Path("data/partitions/manifest.json"), manifest | {"dataset_fingerprint": "e" * 64})
    status, out, _ = primorl(capsys, "ledger", "repair")
    assert status == 1
    assert "with --accept-loss it is counted on them, as the number of units agrees" in out
    status, out, _ = primorl(capsys, "ledger", "repair", "--accept-loss")
    assert status == 0
    assert f"recorded again: charge {charge}" in out
    assert spent(project) == compose([EVENT], DELTA).epsilon_pld


def test_a_head_that_knows_more_is_kept_when_the_loss_is_accepted(
    project: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    charged(project)
    old = DATABASE.read_bytes()
    charged(project)
    DATABASE.write_bytes(old)
    head = HEAD.read_bytes()
    assert "missing, but" in primorl(capsys, "ledger", "verify")[2]
    status, out, _ = primorl(capsys, "ledger", "repair")
    assert (status, HEAD.read_bytes()) == (1, head)
    assert "ledger.head: knows of 5 records, of which the last 2 are lost: records" in out
    assert primorl(capsys, "ledger", "repair", "--accept-loss")[0] == 0
    (kept,) = Path(".primorl").glob("ledger.head.before-*")
    assert kept.read_bytes() == head
    assert primorl(capsys, "ledger", "verify")[0] == 0
    assert spent(project) == adaptive(*[EVENT] * 2)


def test_no_command_that_reads_heals_the_head(project: Params, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a missing one nor one that lags behind; and nothing else below .primorl changes."""
    charged(project)
    charged(project)
    behind = json.dumps({"sequence": 1, "hash": _hash_of(1)})
    commands = (*READING, ("doctor",), ("plan",), ("release", "out"))
    for head, status in ((behind, 0), (None, 1)):
        HEAD.unlink()
        if head is not None:
            HEAD.write_text(head, encoding="utf-8")
        before = snapshot(Path(".primorl"))
        for words in commands:
            found, out, err = primorl(capsys, *words)
            if words[0] == "ledger":
                assert found == status, err
                assert ("ledger.head: not there" in out + err) == (head is None)
        assert snapshot(Path(".primorl")) == before
    assert primorl(capsys, "ledger", "repair")[0] == 0
    assert primorl(capsys, "ledger", "verify")[0] == 0


def _hash_of(sequence: int) -> str:
    with closing(sqlite3.connect(DATABASE)) as database:
        rows = database.execute("SELECT hash FROM ledger_records WHERE sequence = ?", (sequence,))
        return str(rows.fetchone()[0])


def test_a_write_that_was_killed_is_undone_by_who_may_write(
    project: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite then needs its journal to read: with read access only it cannot, and says so by itself."""
    charged(project)
    copy = Path("copy")
    with closing(sqlite3.connect(DATABASE, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")  # so that the file itself is written before the commit
        writer.execute("BEGIN")
        for sequence in range(10, 400):
            writer.execute("INSERT INTO ledger_records VALUES (?, ?, 'x', 'y')", (sequence, "b" * 2000))
        shutil.copytree(".primorl", copy)  # as a kill would leave it
        writer.execute("ROLLBACK")
    assert (copy / "ledger.db-journal").exists()
    shutil.rmtree(".primorl")
    copy.rename(".primorl")
    assert primorl(capsys, "ledger", "verify")[:2] == (0, "the ledger is whole: 3 records\n")


def test_versions_of_one_fingerprint_are_told_apart(project: Params, capsys: pytest.CaptureFixture[str]) -> None:
    """Before, only the first of them was shown. They differ in their units, which were declared or split otherwise."""
    first = version("abc")
    second = Version(first.fingerprint, "patient", 2, version("xy").members)
    with closing(project_ledger(project)) as ledger:
        for each in (first, first, second):
            ledger.reserve(request(each, EVENT), None)
    out = primorl(capsys, "ledger", "show")[1]
    known = first.fingerprint[:12]
    summaries = [line for line in out.splitlines() if line.startswith("pendulum, version ")]
    day = summaries[0].partition("first charged ")[2][:10]
    assert summaries == [
        f"pendulum, version {known} (record 1, first charged {day}; 3 units: trajectory), 2 charge(s)",
        f"pendulum, version {known} (record 4, first charged {day}; 2 units: patient), 1 charge(s)",
    ]


def test_a_broken_statement_is_not_passed_over(project: Params) -> None:
    charged(project)
    Path("models/dynamics/privacy.json").write_text('{"charge": ', encoding="utf-8")
    with pytest.raises(PipelineError, match="so nobody can tell which charge it names; bring models/dynamics back"):
        project_ledger(project)


def test_a_lost_secret_is_named_before_another_one_is_made(project: Params, capsys: pytest.CaptureFixture[str]) -> None:
    """Both commands that the message names work."""
    charge = charged(project)
    Path(".primorl/secret").unlink()
    for words in (("ledger", "verify"), ("ledger", "repair"), ("ledger", "repair", "--accept-loss")):
        status, _, err = primorl(capsys, *words)
        assert status == 1
        assert f"move {DATABASE.absolute()} and {HEAD.absolute()} aside" in err
    with pytest.raises(PipelineError, match="secret: not there"):
        project_ledger(project)
    assert not Path(".primorl/secret").exists()
    DATABASE.rename("old.db")
    HEAD.rename("old.head")
    status, _, err = primorl(capsys, "ledger", "repair", "--accept-loss")
    assert status == 1
    assert "`dvc repro --force --single-item ingest partition` makes the partitions anew" in err
    Path("data/partitions").rename("old")
    write_partitions([episode(5, i) for i in range(6)], [episode(5, 100 + i) for i in range(2)])
    status, out, _ = primorl(capsys, "ledger", "repair", "--accept-loss")
    assert status == 0
    assert f"charge {charge} is not in the ledger" in out
    assert primorl(capsys, "ledger", "verify")[0] == 0
