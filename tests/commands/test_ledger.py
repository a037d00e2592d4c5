"""``primorl ledger`` shows what was spent, finds what was tampered with, and makes nothing just to look.

A ledger that was deleted, cut or exchanged is noticed by what the project's files name, and repaired by one command.
"""

import json
import math
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting import dp_event

from primorl.base import dvc
from primorl.base.errors import PipelineError
from primorl.base.files import read_json, write_json
from primorl.config.params import Params
from primorl.data.identity.membership import DIGEST_BYTES
from primorl.data.storage.schema import Manifest
from primorl.paid.accounts import dataset_version, project_ledger
from primorl.privacy.accounting.epsilon import compose, training_event
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.composition import joint_event
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.chain import Chain, Record
from primorl.privacy.ledger.ledger import Ledger
from tests.commands.charging import EVENT, charged, data, partitioned, settings
from tests.commands.conftest import Call
from tests.data.builders import snapshot
from tests.privacy.ledger.ledgers import DELTA, adaptive, execute, request, version

HEAD, DATABASE = Path(".primorl/ledger.head"), Path(".primorl/ledger.db")
STATEMENT, PARTITIONS = Path("models/dynamics/privacy.json"), Path("data/partitions")
SHOW, VERIFY, REPAIR = ("ledger", "show"), ("ledger", "verify"), ("ledger", "repair")
READING, ACCEPT = (
    (SHOW, VERIFY, ("ledger", "export", "out.jsonl"), (*SHOW, "--json")),
    (*REPAIR, "--accept-loss"),
)


@pytest.fixture
def ledger() -> Ledger:
    """Three charges on shared units, of which one was aborted and one is open, and one on others."""
    ledger = project_ledger(settings())
    first = ledger.reserve(request(version("ab"), training_event(0.1, 20.0, 150)), None)
    ledger.commit(first.id)
    ledger.abort(ledger.reserve(request(version("bc"), dataset="pendulum-2"), None).id, "diverged")
    ledger.reserve(request(version("xy"), dataset="cartpole"), None)
    ledger.reserve(request(version("ab")), None)
    return ledger


def shown(primorl: Call, *words: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(
        primorl(*SHOW, "--json", *words)[1], parse_constant=pytest.fail
    )
    return entries


def test_an_empty_ledger_says_so_and_nothing_is_created(primorl: Call) -> None:
    settings()
    for words in (*READING[:3], (*SHOW, "--dataset", "pendulum")):
        assert primorl(*words) == (0, "the ledger is empty: nothing was charged yet\n", "")
    assert shown(primorl) == []
    assert {entry.name for entry in Path().iterdir()} == {"params.yaml", "datasets"}


def test_every_charge_is_shown_with_the_running_total_and_what_is_left(
    ledger: Ledger, primorl: Call
) -> None:
    """Also while the settings of a run are half edited; only the ledger's own keys must be right."""
    total = ledger.account(version("ab")).total(DELTA)
    settings(2.0)
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8")) | {"dynamics": None}
    Path("params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert primorl("check")[2].startswith("error: params.yaml: ")
    first, second, third, fourth = entries = shown(primorl)
    assert {
        "dataset_fingerprint",
        "unit",
        "units",
        "stage",
        "delta",
        "time",
        "git_commit",
        "mlflow_run",
    } <= set(first)
    assert [entry["sequence"] for entry in entries] == [2, 5, 8, 9]
    assert [entry["state"] for entry in entries] == ["committed", "aborted", "reserved", "reserved"]
    events = [event_from_json(entry["event"]) for entry in entries]
    assert [entry["epsilon"] for entry in entries] == [
        compose([event], DELTA).epsilon_pld for event in events
    ]
    for entry, together in ((first, [0]), (second, [0, 1]), (third, [2]), (fourth, [0, 1, 3])):
        assert entry["epsilon_total"] == pytest.approx(
            total_of([events[i] for i in together], DELTA).epsilon
        )
    assert [entry["id"] for entry in shown(primorl, "--dataset", "cartpole")] == [third["id"]]
    table = primorl(*SHOW)[1]
    assert f"  spent: ε {at_most(total.epsilon, 4)} at δ 1e-05 " in table
    assert f"  budget: ε 2, left {left_of(2.0, total.epsilon)}\n" in table
    ledger.reserve(request(version("ab"), dp_event.NonPrivateDpEvent()), None)
    *before, last = shown(primorl)
    assert last["epsilon"] is last["epsilon_total"] is None
    assert all(math.isfinite(entry["epsilon_total"]) for entry in before)
    assert (
        "  spent: no finite ε: a run without a guarantee, or on another kind of unit"
        in primorl(*SHOW)[1]
    )


def test_the_records_alone_are_exported_and_the_first_broken_one_is_named(
    ledger: Ledger, primorl: Call
) -> None:
    assert primorl(*VERIFY) == (0, "the ledger is whole: 9 records\n", "")
    file = Path("out.jsonl")
    assert primorl(*READING[2]) == (0, "out.jsonl: 9 records\n", "")
    records = [Record(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    chain = Chain(Path(".primorl/secret").read_bytes(), "exported")
    assert [content["kind"] for content in chain.extend(records)].count("version") == 3
    assert version("ab").members.hex() not in file.read_text(encoding="utf-8")
    assert file.stat().st_mode & 0o777 == 0o600, "it is its owner's alone"
    file.unlink()
    with closing(sqlite3.connect(".primorl/ledger.db")) as database, database:
        database.execute(
            "UPDATE ledger_records SET body = replace(body, 'aborted', 'refunds') WHERE sequence = 6"
        )
    for words in READING:
        status, out, err = primorl(*words)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(
            f"error: ledger {Path('.primorl/ledger.db').absolute()}: record 6: its content"
        )
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
    with pytest.raises(
        PipelineError,
        match=r"record 1: missing, but .* \(or ledger\.url now names another ledger\)",
    ):
        project_ledger(chosen)
    (folder / ".primorl/ledger.head").unlink()
    with closing(project_ledger(chosen)) as begun:
        begun.reserve(request(version("ab")), None)
    assert (folder / "ledgers" / "own.db").exists(), "a relative path begins in the project"


def test_who_may_only_read_can_verify_show_and_plan(
    monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """As an auditor has it; root, whom no mode holds back, gives up its rights. Nothing is created, also no journal."""
    with (
        tempfile.TemporaryDirectory(prefix="primorl-auditor-") as outside,
        monkeypatch.context() as there,
    ):
        there.chdir(outside)  # which other users can reach
        chosen = settings()
        partitioned()
        charged(chosen)
        with closing(sqlite3.connect(DATABASE)) as database:
            ((first,),) = database.execute("SELECT hash FROM ledger_records WHERE sequence = 1")
        write_json(
            HEAD, {"sequence": 1, "hash": first}
        )  # lags behind, and no command that reads heals it
        before, reading = snapshot(Path()), (VERIFY, SHOW, (*SHOW, "--json"), ("plan",))
        assert [primorl(*words)[0] for words in reading[:3]] == [0, 0, 0]
        for path in [*Path().rglob("*"), Path()]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            if os.geteuid() == 0:
                os.setegid(65534)
                os.seteuid(65534)
            with pytest.raises(PermissionError):
                Path(".primorl/probe").touch()
            assert all(
                status == 0 and out for status, out, _ in (primorl(*words) for words in reading)
            )
        finally:
            os.seteuid(os.getuid())
            os.setegid(os.getgid())
        assert snapshot(Path()) == before
        for path in [Path(), *Path().rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture
def project() -> Params:
    partitioned()
    return settings()


def forget_ledger(pattern: str = "ledger*") -> None:
    for file in Path(".primorl").glob(pattern):
        file.unlink()


def forget_rows() -> None:
    execute(f"sqlite:///{DATABASE}", "DELETE FROM ledger_records", "DELETE FROM ledger_members")
    HEAD.unlink()


def spent(params: Params) -> float:
    with closing(project_ledger(params)) as ledger:
        ledger.verify()
        return ledger.account(data()).epsilon(DELTA)


@pytest.mark.parametrize("lose", [lambda: shutil.rmtree(".primorl"), forget_ledger, forget_rows])
def test_a_model_names_what_a_deleted_ledger_lacks(
    project: Params, primorl: Call, lose: Callable[[], None]
) -> None:
    """Before: "nothing was charged yet", exit 0, and the next run began at zero."""
    charge = charged(project, name="policy")
    lose()
    before = snapshot(Path())
    for words in READING:
        status, out, err = primorl(*words)
        assert (status, "nothing was charged yet" in out) == (1, False)
        for said in (
            f"models/policy/privacy.json: charge {charge} is not in the ledger",
            "primorl ledger repair",
        ):
            assert said in out + err
    with pytest.raises(PipelineError, match=f"charge {charge} is not in the ledger"):
        project_ledger(project)
    assert snapshot(Path()) == before, "to look creates nothing, and to be refused does not either"
    Path("models/policy/privacy.json").write_text('{"charge": ', encoding="utf-8")
    with pytest.raises(
        PipelineError, match="so nobody can tell which charge it names; bring models/policy back"
    ):
        project_ledger(project)


def test_a_lost_database_is_not_begun_again_where_its_head_is_there(project: Params) -> None:
    charged(project)
    DATABASE.unlink()
    with pytest.raises(PipelineError, match="record 1: missing"):
        project_ledger(project)
    assert not DATABASE.exists()


@pytest.mark.parametrize("cached", [True, False])
def test_the_lock_file_alone_names_it_too(
    project: Params, monkeypatch: pytest.MonkeyPatch, primorl: Call, cached: bool
) -> None:
    """``dvc.lock`` has a run of train_model, whose model DVC has deleted to run the stage again."""
    monkeypatch.setattr(
        dvc, "_cache", lambda: Path(".dvc/cache").absolute()
    )  # to ask DVC takes a second
    charge = charged(project)
    outs = [{"path": "models/dynamics", "md5": "aa" + "0" * 30 + ".dir"}]
    Path("dvc.lock").write_text(
        yaml.safe_dump({"stages": {"train_model": {"cmd": "x", "outs": outs}}})
    )
    if cached:
        cache = Path(".dvc/cache/files/md5")
        write_json(
            cache / f"aa/{'0' * 30}.dir", [{"md5": "bb" + "1" * 30, "relpath": "privacy.json"}]
        )
        write_json(cache / f"bb/{'1' * 30}", read_json(STATEMENT))
    shutil.rmtree("models")
    project_ledger(project).close()  # the twin: the ledger has it
    forget_ledger()
    named = f"dvc.lock (models/dynamics/privacy.json): charge {charge} is not in the ledger"
    with pytest.raises(
        PipelineError,
        match=re.escape(named) if cached else "train_model has run, and its charge is",
    ):
        project_ledger(project)
    assert primorl(*VERIFY)[0] == 1
    assert primorl(*REPAIR)[0] == (0 if cached else 1)
    assert primorl(*ACCEPT)[0] == 0
    assert spent(project) == (compose([EVENT], DELTA).epsilon_pld if cached else 0)


def test_a_repair_records_again_what_the_models_name(project: Params, primorl: Call) -> None:
    """Of a policy of model and clone both charges, each as what it was. Twin: a head that knows more stops it."""
    charges = {charged(project, name=name) for name in ("behaviour", "dynamics")}
    parts = [
        read_json(Path("models", name, "privacy.json")) | {"what": f"models/{name}"}
        for name in ("dynamics", "behaviour")
    ]
    joint = {
        "event": event_to_json(joint_event([part["event"] for part in parts])),
        "epsilon": 9.0,
        "charge": None,
    }
    kept = [{key: part[key] for key in ("what", "charge", "event", "epsilon")} for part in parts]
    shutil.rmtree("models")
    write_json(Path("models/policy/privacy.json"), parts[0] | joint | {"mechanisms": kept})
    before = spent(project)
    forget_ledger("ledger.db*")
    here, head = snapshot(Path()), HEAD.read_bytes()
    assert "ledger repair --accept-loss" in primorl(*REPAIR)[2]
    assert snapshot(Path()) == here
    status, out, err = primorl(*ACCEPT)
    assert (status, err) == (0, "")
    assert [file.read_bytes() for file in Path(".primorl").glob("ledger.head.before-*")] == [head]
    assert {f"recorded again: charge {charge}" for charge in charges} <= set(out.splitlines())
    assert spent(project) == before
    assert primorl(*VERIFY)[:2] == (0, "the ledger is whole: 4 records\n")
    assert primorl(*REPAIR)[1].splitlines()[-1].startswith("nothing to repair")
    with closing(project_ledger(project)) as ledger:
        found = {
            (charge.id, charge.state, charge.stage, charge.identity) for charge in ledger.charges()
        }
    assert found == {(charge, "reserved", "repair", "") for charge in charges}
    charged(project)
    assert spent(project) == adaptive(*[EVENT] * 3)


def test_a_repair_that_the_ledger_would_refuse_writes_nothing(
    project: Params, primorl: Call
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
    assert "the private split holds units that an earlier split made public" in primorl(*REPAIR)[2]
    assert snapshot(Path()) == before


def test_within_a_population_of_another_name_a_trajectory_has_three_digests(
    project: Params,
) -> None:
    """Before, a file with two of them passed, and was found out after the charge."""
    manifest = Manifest.load(PARTITIONS / "manifest.json")
    other = replace(manifest, info=replace(manifest.info, population="people"))
    wrong = r"units\.bin: missing, or not of 6 units"
    with pytest.raises(PipelineError, match=wrong):
        dataset_version(other, PARTITIONS)
    for name, units in (
        ("units.bin", manifest.private_units),
        ("public_units.bin", manifest.public_units),
    ):
        (PARTITIONS / name).write_bytes(
            (PARTITIONS / name).read_bytes() + bytes(DIGEST_BYTES * units)
        )
    assert dataset_version(other, PARTITIONS).units == 6
    with pytest.raises(PipelineError, match=wrong):
        dataset_version(manifest, PARTITIONS)


@pytest.mark.parametrize(
    "what", ["of other data", "of more charges than are named", "without an event"]
)
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
    assert (status, "nothing was changed" in err, "ledger repair --accept-loss" in err) == (
        1,
        True,
        True,
    )
    assert f"charge {charge} is not in the ledger (ε " in out
    assert ("count 1 more charge(s)" in out) == more
    assert ("counted on them, as the number of units agrees" in out) == (what == "of other data")
    assert snapshot(Path()) == before
    assert (primorl(*ACCEPT)[0], primorl(*VERIFY)[0]) == (0, 0)
    assert (f"lost, and in none of these sums: charge {charge} (ε " in primorl(*SHOW)[1]) is lost
    assert spent(project) == (0 if lost else compose([EVENT], DELTA).epsilon_pld)


def test_a_write_that_was_killed_is_undone_by_who_may_write(project: Params, primorl: Call) -> None:
    """SQLite then needs its journal to read: with read access only it cannot, and says so by itself."""
    charged(project)
    with closing(sqlite3.connect(DATABASE, isolation_level=None)) as writer:
        for statement in (
            "PRAGMA cache_size = 1",
            "BEGIN",
        ):  # so that the file itself is written before the commit
            writer.execute(statement)
        rows = [(sequence, "b" * 2000) for sequence in range(10, 400)]
        writer.executemany("INSERT INTO ledger_records VALUES (?, ?, 'x', 'y')", rows)
        shutil.copytree(".primorl", "killed")
    assert Path("killed/ledger.db-journal").exists()
    shutil.rmtree(".primorl")
    Path("killed").rename(".primorl")
    assert primorl(*VERIFY)[:2] == (0, "the ledger is whole: 3 records\n")


def test_a_lost_secret_is_named_before_another_one_is_made(project: Params, primorl: Call) -> None:
    charged(project)
    secret = Path(".primorl/secret")
    secret.unlink()
    for words in (VERIFY, REPAIR, ACCEPT):
        status, _, err = primorl(*words)
        assert (status, f"move {DATABASE.absolute()} and {HEAD.absolute()} aside" in err) == (
            1,
            True,
        )
    with pytest.raises(
        PipelineError, match="secret: not there, and without it the ledger cannot be read"
    ):
        project_ledger(project)
    assert not secret.exists()
    secret.write_bytes(b"n" * 32)
    assert "written under another secret than this project's .primorl/secret" in primorl(*SHOW)[2]
