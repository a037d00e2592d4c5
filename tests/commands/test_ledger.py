"""``primorl ledger`` shows what was spent, finds what was tampered with, and makes nothing just to look.

A ledger that was deleted, cut or exchanged is noticed by what the project's files name, and repaired by one command.
"""

import json
import math
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting import dp_event

from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import compose, training_event
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.chain import Chain, Record
from primorl.privacy.ledger.ledger import Ledger, Version
from primorl.privacy.together import joint_event
from primorl.project import dvc
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.setup.accounts import dataset_version, project_ledger
from primorl.trajectories.identity.membership import DIGEST_BYTES
from primorl.trajectories.storage.manifest import Manifest
from tests.commands.charging import EVENT, charged, data, partitioned, settings
from tests.commands.conftest import Call
from tests.privacy.ledger.ledgers import DELTA, GAUSSIAN, adaptive, execute, request, version
from tests.trajectories.builders import snapshot

HEAD, DATABASE = Path(".primorl/ledger.head"), Path(".primorl/ledger.db")
STATEMENT, PARTITIONS = Path("models/dynamics/privacy.json"), Path("data/partitions")
READING = (("ledger", "show"), ("ledger", "verify"), ("ledger", "export", "out.jsonl"), ("ledger", "show", "--json"))
VERIFY, REPAIR, ACCEPT = ("ledger", "verify"), ("ledger", "repair"), ("ledger", "repair", "--accept-loss")


@pytest.fixture
def ledger() -> Ledger:
    """Three charges on shared units, of which one was aborted and one is open, and one on others."""
    ledger = project_ledger(settings())
    first = ledger.reserve(request(version("ab"), training_event(0.1, 20.0, 150)), None)
    ledger.commit(first.id)
    second = ledger.reserve(request(version("bc"), dataset="pendulum-2"), None)
    ledger.abort(second.id, "diverged")
    ledger.reserve(request(version("xy"), dataset="cartpole"), None)
    ledger.reserve(request(version("ab")), None)
    return ledger


def shown(primorl: Call, *words: str) -> list[dict[str, Any]]:
    status, out, _ = primorl("ledger", "show", "--json", *words)
    assert status == 0
    entries: list[dict[str, Any]] = json.loads(out, parse_constant=pytest.fail)
    return entries


def test_an_empty_ledger_says_so_and_nothing_is_created(primorl: Call) -> None:
    settings()
    for words in (*READING[:3], ("ledger", "show", "--dataset", "pendulum")):
        assert primorl(*words) == (0, "the ledger is empty: nothing was charged yet\n", "")
    assert shown(primorl) == []
    assert {entry.name for entry in Path().iterdir()} == {"params.yaml", "datasets"}


def test_json_holds_every_charge_and_the_running_total(ledger: Ledger, primorl: Call) -> None:
    """Also while the settings of a run are half edited; only the ledger's own keys must be right."""
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    raw["privacy"] |= {"target_epsilon": 0.5, "noise_multiplier": 4.6, "rounds": "many"}
    Path("params.yaml").write_text(yaml.safe_dump(raw | {"dynamics": None}), encoding="utf-8")
    assert primorl("check")[2].startswith("error: params.yaml: ")
    entries = shown(primorl)
    first, second, third, fourth = entries
    assert {
        *("id", "sequence", "dataset", "dataset_fingerprint", "unit", "units", "stage", "state", "epsilon", "delta"),
        *("event", "time", "git_commit", "mlflow_run", "epsilon_total"),
    } <= first.keys()
    assert [entry["sequence"] for entry in entries] == [2, 5, 8, 9]
    assert [entry["state"] for entry in entries] == ["committed", "aborted", "reserved", "reserved"]
    assert [entry["dataset"] for entry in entries] == ["pendulum", "pendulum-2", "cartpole", "pendulum"]
    events = [event_from_json(entry["event"]) for entry in entries]
    for entry, event in zip(entries, events, strict=True):
        assert entry["epsilon"] == compose([event], DELTA).epsilon_pld
    for entry, together in ((first, [0]), (second, [0, 1]), (third, [2]), (fourth, [0, 1, 3])):
        assert entry["epsilon_total"] == pytest.approx(total_of([events[i] for i in together], DELTA).epsilon)
        assert entry["delta_total"] == DELTA
    assert [entry["id"] for entry in shown(primorl, "--dataset", "cartpole")] == [third["id"]]
    ledger.reserve(request(version("ab"), dp_event.NonPrivateDpEvent()), None)
    *before, last = shown(primorl)
    assert last["epsilon"] is last["epsilon_total"] is None
    assert all(math.isfinite(entry["epsilon_total"]) for entry in before)
    assert "  spent: no finite ε: a run without a guarantee, or on another kind of unit" in primorl("ledger", "show")[1]
    Path("params.yaml").write_text(yaml.safe_dump(raw | {"ledger": {"url": 3}}), encoding="utf-8")
    assert primorl("ledger", "show")[2].startswith("error: params.yaml: ledger.url")


def test_the_table_ends_with_what_is_spent_and_left(ledger: Ledger, primorl: Call) -> None:
    """By version: those of one fingerprint differ in their units, which were declared or split otherwise."""
    first = version("ab")
    total = ledger.account(first).total(DELTA)
    ledger.reserve(request(Version(first.fingerprint, "patient", 2, version("uv").members)), None)
    settings(2.0)
    lines = primorl("ledger", "show")[1].splitlines()
    assert [line.split()[0] for line in lines[:6]] == ["rec.", "2", "5", "8", "9", "11"]
    named, day = f"pendulum, version {first.fingerprint[:12]}", ledger.charges()[0].time[:10]
    start = lines.index(f"{named} (record 1, first charged {day}; 2 units: trajectory), 3 charge(s)")
    fixed = f"({at_most(total.epsilon_fixed, 4)} if all settings were fixed beforehand)"
    spent = [f"  spent: ε {at_most(total.epsilon, 4)} at δ 1e-05 {fixed}"]
    assert lines[start + 1 : start + 3] == [*spent, f"  budget: ε 2, left {left_of(2.0, total.epsilon)}"]
    assert f"{named} (record 10, first charged {day}; 2 units: patient), 1 charge(s)" in lines
    settings()
    out = primorl("ledger", "show", "--dataset", "pendulum")[1]
    assert "  budget: none (privacy.budget.epsilon is null)\n" in out
    assert "cartpole" not in out
    none = "nothing was charged for dataset 'nothing' yet\n"
    assert primorl("ledger", "show", "--dataset", "nothing")[1] == none


def test_the_records_alone_are_exported_and_the_first_broken_one_is_named(ledger: Ledger, primorl: Call) -> None:
    assert primorl("ledger", "verify") == (0, "the ledger is whole: 9 records\n", "")
    file = Path("out.jsonl")
    assert primorl("ledger", "export", "out.jsonl") == (0, "out.jsonl: 9 records\n", "")
    records = [Record(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    chain = Chain(Path(".primorl/secret").read_bytes(), "exported")
    assert [content["kind"] for content in chain.extend(records)].count("version") == 3
    assert version("ab").members.hex() not in file.read_text(encoding="utf-8")
    assert file.stat().st_mode & 0o777 == 0o600, "it is its owner's alone"
    file.unlink()
    with closing(sqlite3.connect(".primorl/ledger.db")) as database, database:
        database.execute("UPDATE ledger_records SET body = replace(body, 'aborted', 'refunds') WHERE sequence = 6")
    for words in READING:
        status, out, err = primorl(*words)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(f"error: ledger {Path('.primorl/ledger.db').absolute()}: record 6: its content")
    assert not file.exists()


def test_the_ledger_is_one_also_in_dvcs_temporary_copies(
    ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    copy = folder / ".dvc" / "tmp" / "exps" / "standalone" / "tmpabc"
    copy.mkdir(parents=True)
    shutil.copy("params.yaml", copy)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(copy))
    assert len(shown(primorl)) == 4
    chosen = settings(url="sqlite:///ledgers/own.db")
    with pytest.raises(PipelineError, match=r"record 1: missing, but .* \(or ledger\.url now names another ledger\)"):
        project_ledger(chosen)
    assert not (folder / "ledgers" / "own.db").exists()
    (folder / ".primorl/ledger.head").unlink()
    with closing(project_ledger(chosen)) as begun:
        begun.reserve(request(version("ab"), GAUSSIAN), None)
    assert (folder / "ledgers" / "own.db").exists(), "a relative path begins in the project"


def test_an_unusable_url_is_one_line_without_credentials(primorl: Call) -> None:
    project_ledger(settings()).close()  # makes the secret
    for url, says in (
        ("postgresql+psycopg://ana:hush@127.0.0.1:9/spending", "ledger postgresql://127.0.0.1:9/spending: cannot be "),
        ("ana:hush", "ledger.url: not a database's URL"),
    ):
        settings(url=url)
        status, _, err = primorl("ledger", "verify")
        assert (status, err.count("\n")) == (1, 1)
        assert err.startswith(f"error: {says}")
        assert "hush" not in err + primorl("ledger", "verify", "--debug")[2]


@contextmanager
def auditor() -> Iterator[None]:
    """Give up the rights of this user for the block, if it is root, whom no mode holds back."""
    if os.geteuid() == 0:
        os.setegid(65534)
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        os.setegid(os.getgid())


def test_who_may_only_read_can_verify_show_and_plan(monkeypatch: pytest.MonkeyPatch, primorl: Call) -> None:
    """As an auditor has it. Nothing is created: no file, no lock, no journal."""
    with tempfile.TemporaryDirectory(prefix="primorl-auditor-") as outside:  # which other users can reach
        monkeypatch.chdir(outside)
        chosen = settings()
        partitioned()
        charged(chosen)
        for path in [*Path().rglob("*"), Path()]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = snapshot(Path())
        with auditor():
            with pytest.raises(PermissionError):
                Path(".primorl/probe").touch()
            for words in (*READING[:2], *READING[3:], ("plan",)):
                status, out, err = primorl(*words)
                assert status == 0, err
                assert out
        assert snapshot(Path()) == before
        for path in [Path(), *Path().rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        monkeypatch.undo()


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
