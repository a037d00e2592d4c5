"""``primorl ledger`` shows what was spent, finds what was tampered with, and makes nothing just to
look.

A ledger that was deleted, cut or exchanged is noticed by what the project's files name.
"""

import json
import math
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import dp_event

from primorl.base import PipelineError
from primorl.base.files import write_json
from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import Training, compose, event_from_json
from primorl.privacy.accounting.rounding import at_most, rest_of
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.history import Budget
from primorl.privacy.ledger.ledger import Ledger
from primorl.work.data import open_to_charge
from tests.commands.charging import charged, partitioned, settings
from tests.commands.conftest import Call
from tests.data.builders import snapshot
from tests.privacy.ledger.ledgers import DELTA, execute, request, version

HEAD, DATABASE = Path(".primorl/ledger.head"), Path(".primorl/ledger.db")
STATEMENT, PARTITIONS = Path("models/dynamics/privacy.json"), Path("data/partitions")
SHOW, VERIFY = ("ledger", "show"), ("ledger", "verify")
READING = (SHOW, VERIFY, (*SHOW, "--json"))


@pytest.fixture
def ledger() -> Ledger:
    """Three charges on shared units, of which one is open, and one on others."""
    ledger = open_to_charge(settings())
    first = ledger.reserve(request(version("ab"), Training(0.1, 20.0, 150).event), None)
    ledger.commit(first.id)
    ledger.commit(ledger.reserve(request(version("bc"), dataset="pendulum-2"), None).id)
    ledger.reserve(request(version("xy"), dataset="cartpole"), None)
    ledger.reserve(request(version("ab")), None)
    return ledger


def shown(primorl: Call, *words: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(
        primorl(*SHOW, "--json", *words)[1], parse_constant=pytest.fail
    )
    return entries


def test_every_charge_is_shown_with_the_running_total_and_what_is_left(
    ledger: Ledger, primorl: Call
) -> None:
    total = ledger.account(version("ab")).epsilon(DELTA)
    settings(2.0)
    first, second, third, fourth = entries = shown(primorl)
    assert [entry["sequence"] for entry in entries] == [2, 5, 8, 9]
    assert [entry["state"] for entry in entries] == ["committed"] * 2 + ["reserved"] * 2
    events = [event_from_json(entry["event"]) for entry in entries]
    assert [entry["epsilon"] for entry in entries] == [
        compose([event], DELTA).epsilon_pld for event in events
    ]
    for entry, together in ((first, [0]), (second, [0, 1]), (third, [2]), (fourth, [0, 1, 3])):
        assert entry["epsilon_total"] == pytest.approx(
            total_of([events[i] for i in together], DELTA)
        )
    table = primorl(*SHOW)[1]
    assert f"  spent: ε {at_most(total)} at δ 1e-05" in table
    assert f"  budget: ε 2, {rest_of(2.0, total)}\n" in table
    ledger.reserve(request(version("ab"), dp_event.NonPrivateDpEvent()), None)
    *before, last = shown(primorl)
    assert last["epsilon"] is last["epsilon_total"] is None
    assert all(math.isfinite(entry["epsilon_total"]) for entry in before)
    assert "  spent: no finite ε: a run without a guarantee" in primorl(*SHOW)[1]


def test_whose_charges_count_is_said_of_each_version(primorl: Call) -> None:
    """Of a population of its own nothing is compared."""
    ledger = open_to_charge(settings())
    for marks, people in (("ab", "wards"), ("bcd", "wards"), ("xy", "cars"), ("bcde", "wards")):
        data = replace(version(marks), population=people)
        ledger.commit(ledger.reserve(request(data), None).id)
    table = primorl(*SHOW)[1]
    assert table.count("1 charge(s), and 2 on other versions, whose people are also in") == 3


def test_who_may_only_read_can_verify_and_show(
    monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """As an auditor has it; root, whom no mode holds back, gives up its rights.

    Nothing is created, also no journal.
    """
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
        # lags behind, and no command that reads heals it
        write_json(HEAD, {"sequence": 1, "hash": first})
        before = snapshot(Path())
        for path in [*Path().rglob("*"), Path()]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            if os.geteuid() == 0:
                os.setegid(65534)
                os.seteuid(65534)
            with pytest.raises(PermissionError):
                Path(".primorl/probe").touch()
            for words in READING:
                status, out, _ = primorl(*words)
                assert (status, bool(out)) == (0, True)
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
    tables = ("ledger_records", "ledger_members")
    execute(f"sqlite:///{DATABASE}", *(f"DELETE FROM {table}" for table in tables))
    HEAD.unlink()


@pytest.mark.parametrize("lose", [lambda: shutil.rmtree(".primorl"), forget_ledger, forget_rows])
def test_a_model_names_what_a_deleted_ledger_lacks(
    project: Params, primorl: Call, lose: Callable[[], None]
) -> None:
    charge = charged(project, name="policy")
    lose()
    before = snapshot(Path())
    for words in READING:
        status, out, err = primorl(*words)
        assert (status, "nothing was charged yet" in out) == (1, False)
        assert f"models/policy/privacy.json: charge {charge} is not in the ledger" in out + err
    with pytest.raises(PipelineError, match=f"charge {charge} is not in the ledger"):
        open_to_charge(project)
    assert snapshot(Path()) == before, "to look creates nothing, and to be refused does not either"
    Path("models/policy/privacy.json").write_text('{"charge": ', encoding="utf-8")
    with pytest.raises(PipelineError, match=r"models/policy/privacy\.json"):
        open_to_charge(project)


def test_a_lost_secret_is_named_before_another_one_is_made(project: Params, primorl: Call) -> None:
    charged(project)
    secret = Path(".primorl/secret")
    secret.unlink()
    with pytest.raises(PipelineError, match="secret: not there: needed by the ledger"):
        open_to_charge(project)
    assert not secret.exists()
    secret.write_bytes(b"n" * 32)
    assert ".primorl/secret is not that of this ledger" in primorl(*SHOW)[2]


def test_a_raised_budget_stays_visible(primorl: Call) -> None:
    ledger = open_to_charge(settings(90.0))
    for budget in (80.0, 80.0, 90.0):
        granted = ledger.reserve(request(version("ab")), Budget(budget, DELTA))
    raised = f"  budget raised from ε 80 to ε 90 on {granted.time[:10]} by {granted.by}\n"
    assert primorl(*SHOW)[1].count(raised) == 1
    assert "in params.yaml of this clone" not in primorl(*SHOW)[1]
    settings(95.0)
    assert "  budget raised from ε 90 to ε 95 in params.yaml of this clone\n" in primorl(*SHOW)[1]
    assert [each["budget"] for each in shown(primorl)] == [80.0, 80.0, 90.0]


def test_another_delta_is_another_budget(primorl: Call) -> None:
    """The same ε at a larger δ allows more."""
    ledger = open_to_charge(settings(90.0))
    for delta in (DELTA, 2 * DELTA):
        asked = replace(request(version("ab")), delta=delta)
        granted = ledger.reserve(asked, Budget(90.0, delta))
    changed = f"  budget raised from ε 90 at δ {DELTA} to ε 90 at δ {2 * DELTA} on "
    assert primorl(*SHOW)[1].count(f"{changed}{granted.time[:10]} by {granted.by}\n") == 1
    assert "  budget lowered from ε 90 at δ " in primorl(*SHOW)[1], "params.yaml has the first"
