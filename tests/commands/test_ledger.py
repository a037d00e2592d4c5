"""``primorl ledger`` shows what was spent, finds what was tampered with, and makes nothing just to look."""

import json
import math
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting import dp_event

from primorl.privacy.accounting.epsilon import compose, training_event
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.chain import Chain, Record
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.ledger.requests import Version
from primorl.project.errors import PipelineError
from primorl.setup.accounts import project_ledger
from tests.commands.charging import charged, partitioned, settings
from tests.commands.conftest import Call
from tests.privacy.ledger.ledgers import DELTA, GAUSSIAN, request, version
from tests.trajectories.builders import snapshot

READING = (("ledger", "show"), ("ledger", "verify"), ("ledger", "export", "out.jsonl"))


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
    for words in (*READING, ("ledger", "show", "--dataset", "pendulum")):
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
    assert lines[0].split() == ["rec.", "reserved", "dataset", "stage", "state", "ε", "δ", "charge"]
    assert [line.split()[0] for line in lines[1:6]] == ["2", "5", "8", "9", "11"]
    named, day = f"pendulum, version {first.fingerprint[:12]}", ledger.charges()[0].time[:10]
    start = lines.index(f"{named} (record 1, first charged {day}; 2 units: trajectory), 3 charge(s)")
    assert lines[start + 1 : start + 3] == [
        f"  spent: ε {at_most(total.epsilon, 4)} at δ 1e-05 ({at_most(total.epsilon_fixed, 4)} if all settings were "
        "fixed beforehand)",
        f"  budget: ε 2, left {left_of(2.0, total.epsilon)}",
    ]
    assert f"{named} (record 10, first charged {day}; 2 units: patient), 1 charge(s)" in lines
    assert sum(line.startswith("  spent") for line in lines) == 4
    settings(0.1)
    out = primorl("ledger", "show", "--dataset", "pendulum")[1]
    assert "  budget: ε 0.1, left 0\n" in out
    assert "cartpole" not in out
    settings()
    assert "  budget: none (privacy.budget.epsilon is null)\n" in primorl("ledger", "show")[1]
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
    for words in (*READING, ("ledger", "show", "--json")):
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
            for words in (*READING[:2], ("ledger", "show", "--json"), ("plan",)):
                status, out, err = primorl(*words)
                assert status == 0, err
                assert out
        assert snapshot(Path()) == before
        for path in [Path(), *Path().rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        monkeypatch.undo()
