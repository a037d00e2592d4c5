"""A ledger that was deleted, cut or exchanged is noticed by what the project's files name, and repaired by one command.

Every test here failed, or could not be written, while an empty ``.primorl`` meant "nothing was charged yet".
"""

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import compose
from primorl.privacy.accounting.events import event_to_json
from primorl.privacy.together import joint_event
from primorl.project import dvc
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.setup.accounts import dataset_version, project_ledger
from primorl.trajectories.identity.membership import DIGEST_BYTES
from primorl.trajectories.storage.manifest import Manifest
from tests.commands.charging import EVENT, charged, data, partitioned, settings
from tests.commands.conftest import Call
from tests.privacy.ledger.ledgers import DELTA, adaptive, execute, request, version
from tests.trajectories.builders import snapshot

HEAD, DATABASE, STATEMENT = (
    Path(".primorl/ledger.head"),
    Path(".primorl/ledger.db"),
    Path("models/dynamics/privacy.json"),
)
PARTITIONS = Path("data/partitions")
READING = (("ledger", "show"), ("ledger", "show", "--json"), ("ledger", "verify"), ("ledger", "export", "out.jsonl"))
VERIFY, REPAIR, ACCEPT = ("ledger", "verify"), ("ledger", "repair"), ("ledger", "repair", "--accept-loss")


@pytest.fixture
def project() -> Params:
    partitioned()
    return settings()


def forget_ledger() -> None:
    for file in Path(".primorl").glob("ledger*"):
        file.unlink()


def spent(params: Params) -> float:
    with closing(project_ledger(params)) as ledger:
        ledger.verify()
        return ledger.account(data()).epsilon(DELTA)


@pytest.mark.parametrize("lost", [".primorl", ".primorl/ledger.db and head", "rows and head"])
def test_a_model_names_what_a_deleted_ledger_lacks(project: Params, primorl: Call, lost: str) -> None:
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
        status, out, err = primorl(*words)
        assert status == 1
        assert "nothing was charged yet" not in out
        assert f"models/policy/privacy.json: charge {charge} is not in the ledger" in out + err
        assert "primorl ledger repair" in out + err
    with pytest.raises(PipelineError, match=f"charge {charge} is not in the ledger"):
        project_ledger(project)
    assert snapshot(Path()) == before, "to look creates nothing, and to be refused does not either"
    Path("models/policy/privacy.json").write_text('{"charge": ', encoding="utf-8")
    with pytest.raises(PipelineError, match="so nobody can tell which charge it names; bring models/policy back"):
        project_ledger(project)


@pytest.mark.parametrize("cached", [True, False])
def test_the_lock_file_alone_names_it_too(
    project: Params, monkeypatch: pytest.MonkeyPatch, primorl: Call, cached: bool
) -> None:
    """``dvc.lock`` has a run of train_model, whose model DVC has deleted to run the stage again."""
    monkeypatch.setattr(dvc, "_cache", lambda: Path(".dvc/cache").absolute())  # to ask DVC takes a second
    charge = charged(project)
    outs = [{"path": "models/dynamics", "md5": "aa" + "0" * 30 + ".dir"}]
    Path("dvc.lock").write_text(yaml.safe_dump({"stages": {"train_model": {"cmd": "x", "outs": outs}}}))
    if cached:
        listed, content = (Path(".dvc/cache/files/md5", name) for name in (f"aa/{'0' * 30}.dir", f"bb/{'1' * 30}"))
        for file in (listed, content):
            file.parent.mkdir(parents=True)
        listed.write_text(json.dumps([{"md5": "bb" + "1" * 30, "relpath": "privacy.json"}]))
        shutil.copy(STATEMENT, content)
    shutil.rmtree("models")
    project_ledger(project).close()  # the twin: the ledger has it
    forget_ledger()
    with pytest.raises(PipelineError) as refused:
        project_ledger(project)
    named = f"dvc.lock (models/dynamics/privacy.json): charge {charge} is not in the ledger"
    assert str(refused.value).startswith(named if cached else "dvc.lock: train_model has run, and its charge is not")
    assert primorl(*VERIFY)[0] == 1
    if cached:
        assert primorl(*REPAIR)[0] == 0
        assert spent(project) == compose([EVENT], DELTA).epsilon_pld
    else:
        assert primorl(*REPAIR)[0] == 1
        assert primorl(*ACCEPT)[0] == 0
        project_ledger(project).close()


def test_a_repair_records_again_what_the_models_name(project: Params, primorl: Call) -> None:
    """Of a policy of model and clone both charges, each as what it was. Twin: a head that knows more stops it."""
    names = ("dynamics", "behaviour")
    clone, model = (charged(project, name=name) for name in reversed(names))
    parts = [read_json(Path("models") / name / "privacy.json") | {"what": f"models/{name}"} for name in names]
    joint = {"event": event_to_json(joint_event([part["event"] for part in parts])), "epsilon": 9.0, "charge": None}
    kept = [{key: part[key] for key in ("what", "charge", "event", "epsilon")} for part in parts]
    shutil.rmtree("models")
    write_json(Path("models/policy/privacy.json"), parts[0] | joint | {"mechanisms": kept})
    before = spent(project)
    for file in Path(".primorl").glob("ledger.db*"):
        file.unlink()
    here = snapshot(Path())
    assert "ledger repair --accept-loss" in primorl(*REPAIR)[2]
    assert snapshot(Path()) == here
    head = HEAD.read_bytes()
    status, out, err = primorl(*ACCEPT)
    assert (status, err) == (0, "")
    (kept,) = Path(".primorl").glob("ledger.head.before-*")
    assert kept.read_bytes() == head
    lines = [line for line in out.splitlines() if line.startswith(("models/policy", "  it"))]
    told, again = "models/policy/privacy.json (models/{}): charge {} is not in the ledger (ε 0.", "  it can be recorded"
    starts = (told.format("behaviour", clone), again, told.format("dynamics", model), again)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    assert {f"recorded again: charge {charge}" for charge in (clone, model)} <= set(out.splitlines())
    assert spent(project) == before
    assert primorl(*VERIFY)[:2] == (0, "the ledger is whole: 4 records\n")
    assert primorl(*REPAIR)[1].splitlines()[-1].startswith("nothing to repair")
    with closing(project_ledger(project)) as ledger:
        found = [(charge.id, charge.state, charge.stage, charge.identity) for charge in ledger.charges()]
    assert sorted(found) == sorted((charge, "reserved", "repair", "") for charge in (clone, model))
    charged(project)
    assert spent(project) == adaptive(*[EVENT] * 3)


def test_a_repair_that_the_ledger_would_refuse_writes_nothing(project: Params, primorl: Call) -> None:
    """Before, the head and the record of the repair were written already."""
    charged(project)
    forget_ledger()
    Path("models").rename("away")
    published = replace(version("pqr"), public=data().members)
    with closing(project_ledger(project)) as ledger:
        ledger.reserve(request(published, EVENT), None)
    Path("away").rename("models")
    before = snapshot(Path())
    status, _, err = primorl(*REPAIR)
    assert status == 1
    assert "the private split holds units that earlier runs used as public" in err
    assert snapshot(Path()) == before


def test_within_a_population_of_another_name_a_trajectory_has_three_digests(project: Params) -> None:
    """Before, a file with two of them passed, and was found out after the charge."""
    manifest = Manifest.load(PARTITIONS / "manifest.json")
    other = replace(manifest, info=replace(manifest.info, population="people"))
    wrong = r"units\.bin: missing, or not of 6 units"
    with pytest.raises(PipelineError, match=wrong):
        dataset_version(other, PARTITIONS)
    for name, units in (("units.bin", manifest.private_units), ("public_units.bin", manifest.public_units)):
        (PARTITIONS / name).write_bytes((PARTITIONS / name).read_bytes() + bytes(DIGEST_BYTES * units))
    assert dataset_version(other, PARTITIONS).units == 6
    with pytest.raises(PipelineError, match=wrong):
        dataset_version(manifest, PARTITIONS)


@pytest.mark.parametrize("what", ["of other data", "of more charges than are named", "without an event"])
def test_what_needs_a_decision_is_refused_and_then_counted_or_kept_on_record(
    project: Params, primorl: Call, what: str
) -> None:
    more, lost = what == "of more charges than are named", what == "without an event"
    if more:
        charged(project)
    charge = charged(project, version("pqrstu") if what == "of other data" else None)
    if lost:
        write_json(STATEMENT, read_json(STATEMENT) | {"event": {"type": "exec"}})
    forget_ledger()
    before = snapshot(Path())
    status, out, err = primorl(*REPAIR)
    assert (status, err.count("\n")) == (1, 1)
    assert "nothing was changed" in err
    assert "primorl ledger repair --accept-loss" in err
    assert f"charge {charge} is not in the ledger (ε 0." in out or f"charge {charge} is not in the ledger (ε 1." in out
    assert ("count 1 more charge(s)" in out) == more
    assert ("counted on them, as the number of units agrees" in out) == (what == "of other data")
    assert snapshot(Path()) == before
    assert primorl(*ACCEPT)[0] == 0
    assert primorl(*VERIFY)[0] == 0
    assert (f"lost, and in none of these sums: charge {charge} (ε " in primorl("ledger", "show")[1]) is lost
    assert spent(project) == (0 if lost else compose([EVENT], DELTA).epsilon_pld)


def test_no_command_that_reads_heals_the_head(project: Params, primorl: Call) -> None:
    """Neither a missing one nor one that lags behind; and nothing else below .primorl changes."""
    charged(project)
    with closing(sqlite3.connect(DATABASE)) as database:
        ((first,),) = database.execute("SELECT hash FROM ledger_records WHERE sequence = 1")
    behind = json.dumps({"sequence": 1, "hash": first})
    for head, status in ((behind, 0), (None, 1)):
        HEAD.unlink()
        if head is not None:
            HEAD.write_text(head, encoding="utf-8")
        before = snapshot(Path(".primorl"))
        for words in (*READING, ("doctor",), ("plan",), ("release", "out")):
            found, out, err = primorl(*words)
            if words[0] == "ledger":
                assert found == status, err
                assert ("ledger.head: not there" in out + err) == (head is None)
        assert snapshot(Path(".primorl")) == before
    assert primorl(*REPAIR)[0] == 0
    assert primorl(*VERIFY)[0] == 0


def test_a_write_that_was_killed_is_undone_by_who_may_write(project: Params, primorl: Call) -> None:
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
    assert primorl(*VERIFY)[:2] == (0, "the ledger is whole: 3 records\n")


def test_a_lost_secret_is_named_before_another_one_is_made(project: Params, primorl: Call) -> None:
    charged(project)
    secret = Path(".primorl/secret")
    secret.unlink()
    for words in (VERIFY, REPAIR, ACCEPT):
        status, _, err = primorl(*words)
        assert status == 1
        assert f"move {DATABASE.absolute()} and {HEAD.absolute()} aside" in err
    with pytest.raises(PipelineError, match="secret: not there, and without it the ledger cannot be read"):
        project_ledger(project)
    assert not secret.exists()
    secret.write_bytes(b"n" * 32)
    assert "written under another secret than this project's .primorl/secret" in primorl("ledger", "show")[2]
