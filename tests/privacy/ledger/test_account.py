"""What is spent is written down before it is spent, adds up over whoever shares units, and never
passes the budget; who shares what with whom: kinds of units, people under other names, units that
were public, old ledgers, and clones of a project.
"""

import functools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from dp_accounting import dp_event

from primorl.base import PipelineError
from primorl.base.files import LEDGER
from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import Training, compose, event_from_json
from primorl.privacy.accounting.rounding import at_most, rest_of
from primorl.privacy.ledger.history import Budget, BudgetExceeded, Version
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.ledger.store import Store
from primorl.work.data import open_to_charge
from tests.data.builders import snapshot
from tests.privacy.ledger.ledgers import (
    DELTA,
    GAUSSIAN,
    adaptive,
    execute,
    opened,
    primorl,
    request,
    version,
)
from tests.privacy.ledger.postgresql import Server
from tests.projects import project_settings, write_settings

RUN = Training(0.1, 20.0, 150).event


CLINIC = "c" * 32


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return opened(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path)


def of(members: str, unit: str = "trajectory", public: str = "", **changes: Any) -> Version:
    return replace(version(members), unit=unit, public=version(public).members, **changes)


stays = functools.partial(of, "abc", "trajectory")
patients = functools.partial(of, "abc", "patient", fingerprint="7" * 64)


def charge(
    ledger: Ledger, data: Version, identity: str = "one", budget: Budget | None = None
) -> None:
    ledger.reserve(request(data, RUN, identity=identity), budget)


ANA, CEM = version("abc"), version("xyz")
NO_GUARANTEE = dp_event.NonPrivateDpEvent()


@pytest.fixture
def everywhere(ledger_url: str, tmp_path: Path) -> Ledger:
    return opened(ledger_url, tmp_path)


def epsilon(*events: dp_event.DpEvent) -> float:
    return compose(events, DELTA).epsilon_pld


def test_a_charge_is_all_that_was_asked_and_survives(
    everywhere: Ledger, ledger_url: str, tmp_path: Path
) -> None:
    first = everywhere.reserve(request(ANA, RUN, identity="one"), None)
    second = everywhere.reserve(request(ANA, NO_GUARANTEE, identity="two"), None)
    everywhere.reserve(request(CEM, dataset="cartpole"), None)
    asked = request(ANA, RUN, identity="one")
    named = ("dataset", "stage", "identity", "delta")
    assert all(getattr(first, key) == getattr(asked, key) for key in named)
    assert (first.dataset_fingerprint, first.units) == (ANA.fingerprint, 3)
    assert event_from_json(first.event) == RUN
    assert first.epsilon == pytest.approx(epsilon(RUN))
    assert second.epsilon is None
    everywhere.commit(first.id)
    everywhere.commit(first.id)  # twice is once
    again = opened(ledger_url, tmp_path)
    assert again.charges() == everywhere.charges()
    assert [charge.state for charge in again.charges()] == ["committed", *["reserved"] * 2]
    assert again.verify() == 6  # two versions, three reservations, one end
    versions = [known.fingerprint for known, _ in again.accounts().values()]
    assert versions == [ANA.fingerprint, CEM.fingerprint]
    records = again._store.read()
    with pytest.raises(PipelineError, match="charge 1234: not in the ledger"):
        everywhere.commit("1234")
    assert records[1].previous == records[0].hash
    assert event_from_json(json.loads(records[1].body)["event"]) == RUN
    assert ANA.members.hex() not in str(records)


def test_a_sweep_of_ten_under_a_budget_for_seven(everywhere: Ledger) -> None:
    budget = Budget(adaptive(*[RUN] * 7), DELTA)
    granted, refused = [], 0
    for seed in range(10):
        try:
            granted.append(everywhere.reserve(request(ANA, RUN, identity=str(seed)), budget).id)
        except BudgetExceeded:
            refused += 1
            continue
        if seed % 2 == 0:
            everywhere.commit(granted[-1])
    assert (len(granted), refused, len(everywhere.charges())) == (7, 3, 7)
    assert everywhere.verify() == 1 + 7 + 4
    spent = everywhere.account(ANA).epsilon(DELTA)
    assert spent == budget.epsilon
    assert epsilon(*[RUN] * 7) < spent < 1.04 * epsilon(*[RUN] * 7)


def test_the_refusal_says_what_is_left(ledger: Ledger) -> None:
    """Also where nothing fits, or nothing is guaranteed."""
    left = r"of which (\S+) .*is spent.* and (\S+) is left; .* it would be ([^\s;]+)"

    def refused(event: dp_event.DpEvent, budget: Budget, data: Version = ANA) -> list[float]:
        with pytest.raises(BudgetExceeded) as no:
            ledger.reserve(request(data, event), budget)
        (said,) = re.findall(left, str(no.value))
        return [float(number.replace("∞", "inf")) for number in said]

    budget, endless = Budget(0.35, DELTA), Budget(900.0, DELTA)
    assert refused(RUN, Budget(0.1, DELTA))[0] == 0
    assert refused(NO_GUARANTEE, endless)[2] == float("inf")
    for _ in range(2):
        ledger.reserve(request(ANA, RUN), budget)
    spent = adaptive(RUN, RUN)
    told = at_most(spent), rest_of(0.35, spent).split()[0], at_most(adaptive(RUN, RUN, RUN))
    assert refused(RUN, budget) == [float(number) for number in told]
    ledger.reserve(request(ANA, NO_GUARANTEE), None)
    assert refused(GAUSSIAN, endless)[0] == float("inf")
    # ε at a tenth of δ is larger, and that is where it was set.
    strict = Budget(epsilon(GAUSSIAN), DELTA / 10)
    refused(GAUSSIAN, strict, CEM)
    ledger.reserve(request(CEM), Budget(strict.epsilon, DELTA))  # others' data are not concerned


@pytest.mark.parametrize(
    ("other", "shares"),
    [
        (version(["id a", "rows A"]), True),
        (version(["id a", "rows B"]), True),  # the same person came back with other rows
        (version(["id q", "rows A"]), True),  # the same rows under another name
        (version(["id q", "rows B", "id z", "rows Z", "id a", "rows Q"]), True),  # one of many
        (version(["id q", "rows B"]), False),
        (version(["id q", "rows B"], version(["id a", "rows A"]).fingerprint), False),
    ],
)
def test_a_version_shares_spending_exactly_if_it_shares_a_unit(
    ledger: Ledger, other: Version, shares: bool
) -> None:
    data, budget = version(["id a", "rows A"]), Budget(epsilon(GAUSSIAN), DELTA)
    first = ledger.reserve(request(data, dataset="one"), budget)
    # Also before it is registered.
    assert ledger.account(other).charges == ([first] if shares else [])
    assert ledger.account(other).epsilon(DELTA) == (budget.epsilon if shares else 0.0)
    if shares:
        with pytest.raises(BudgetExceeded):
            ledger.reserve(request(other, dataset="two"), budget)
    ledger.reserve(request(other, dataset="two"), None if shares else budget)
    assert len(ledger.account(data).charges) == (2 if shares else 1)


# Who shares what with whom


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (stays(), patients()),
        (patients(), stays()),
        # Of one population, other kinds share people without a common digest.
        (of("abc", "admission", population=CLINIC), of("xyz", "patient", population=CLINIC)),
        # One column name in two populations is two kinds.
        (of("abc", "id", population="1" * 32), of("cde", "id", population="2" * 32)),
    ],
)
def test_two_kinds_of_units_of_the_same_people_are_refused(
    ledger: Ledger, first: Version, second: Version
) -> None:
    """Charges on both do not add up.

    Twins: the same kind; other people.
    """
    charge(ledger, first)
    said = f"found '{second.unit}', and charge {ledger.charges()[0].id} of .* on the same people"
    for budget in (None, Budget(1e6, DELTA)):
        with pytest.raises(PipelineError, match=f"{said} was made on unit '{first.unit}'"):
            charge(ledger, second, "two", budget)
    assert ledger.account(second).epsilon(DELTA) == float("inf"), "nor can anything be promised"
    charge(ledger, replace(first, fingerprint="9" * 64), "two")
    charge(ledger, of("uvw", second.unit, population="d" * 32), "three")
    assert len(ledger.charges()) == 3


def test_another_unit_is_refused_where_some_units_are_public(ledger: Ledger) -> None:
    charge(ledger, of("abc", "admission", population=CLINIC, public="xy"))
    with pytest.raises(PipelineError, match="found 'patient', and an earlier run"):
        charge(ledger, of("uvw", "patient", population=CLINIC), "two")
    charge(ledger, of("uvw", "patient", population="d" * 32), "two")


def test_trajectories_of_the_population_that_share_nothing_are_refused_where_some_are_public(
    ledger: Ledger,
) -> None:
    """Other ids and columns share no digest.

    Twins: nobody public; another population; shared ones; a simulator's.
    """
    hidden = "unit: found 'trajectory', as an earlier version of the same population has"
    charge(ledger, of("abc", "trajectory", population=CLINIC))
    charge(ledger, of("def", "trajectory", population=CLINIC), "again")
    other = of("uvw", "trajectory", population=CLINIC, public="xy")
    for entry in ("two", "pendulum"):
        with pytest.raises(PipelineError, match=rf"{hidden} \(pendulum\)"):
            ledger.reserve(request(other, dataset=entry), None)
    ledger.reserve(request(replace(other, population="d" * 32), dataset="two"), None)
    charge(ledger, replace(other, simulated=True), "other trajectories of the same entry")
    ledger.reserve(request(of("rst", "trajectory"), dataset="two"), None)
    ledger.publish("log", of("klm", "trajectory", population="e" * 32, public="n"))
    ledger.publish("log", of("klmo", "trajectory", population="e" * 32, public="np"))
    for entry in ("log", "other"):
        with pytest.raises(PipelineError, match=rf"{hidden} \(log\)"):
            ledger.publish(entry, of("123", "trajectory", population="e" * 32, public="4"))


def test_units_that_were_private_become_public_only_if_it_is_confirmed(ledger: Ledger) -> None:
    """Before any charge.

    Twins: people who are new, and those who were published before, need no word.
    """

    def publish(members: str, public: str, confirmed: str | None = None) -> None:
        ledger.publish("log", of(members, "patient", public=public), confirmed)

    def refused(members: str, public: str, confirmed: str | None = None) -> str:
        with pytest.raises(PipelineError, match="would become public and were private") as no:
            publish(members, public, confirmed)
        (word,) = re.findall(r"ledger publish (p\w{8})`", str(no.value))
        return str(word)

    publish("abcd", "")
    word = refused("abc", "d")
    assert refused("ab", "cd", word) != word
    assert refused("abc", "d", "yes") == word
    publish("abc", "d", word)
    publish("abc", "d")
    publish("abce", "dx")
    version = of("ab", "patient", public="cd")
    for used in (
        lambda: ledger.check_published("log", version),
        lambda: ledger.reserve(request(version), None),
    ):
        with pytest.raises(PipelineError, match="would become public and were private"):
            used()
    with pytest.raises(PipelineError, match="an earlier split made public"):
        publish("abcd", "x")


def test_units_that_were_private_never_become_public(ledger: Ledger) -> None:
    charge(ledger, of("abc", public="xy"))
    with pytest.raises(PipelineError, match="the public split holds units"):
        charge(ledger, of("de", public="xa"), "two")
    with pytest.raises(PipelineError, match="the private split holds units"):
        charge(ledger, of("cdx"), "two")
    charge(ledger, of("de", public="xyz"), "two")
    charge(ledger, of("cd"), "three")


HEAD = Path(".primorl/ledger.head")


@pytest.fixture
def chosen(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    raw = project_settings()
    raw["ledger"]["url"] = ledger_url
    for name in ("other", "one"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        chosen = write_settings(raw)
    return chosen


def pay(chosen: Params) -> str:
    return open_to_charge(chosen).reserve(request(version("ab")), None).id


def test_a_clone_joins_with_secret_and_head_of_another(
    chosen: Params, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay(chosen)
    Path("../other/.primorl").mkdir(mode=0o700)
    shutil.copy(".primorl/secret", "../other/.primorl")  # teams share it
    monkeypatch.chdir("../other")
    before = snapshot(Path())
    assert f"{HEAD.absolute()}: not there" in primorl("ledger", "verify")[2]
    with pytest.raises(PipelineError, match=r"ledger\.head: not there"):
        open_to_charge(chosen)
    assert snapshot(Path()) == before
    shutil.copy(f"../one/{HEAD}", HEAD)
    for folder in ("../one", "../other"):
        monkeypatch.chdir(folder)
        pay(chosen)
        assert primorl("ledger", "verify")[0] == 0
    execute(ledger_url, "DELETE FROM ledger_records WHERE sequence > 3")
    assert "missing, or not as" in primorl("ledger", "verify")[2]


def test_a_lost_ledger_does_not_begin_again_where_a_model_was_trained(chosen: Params) -> None:
    """DVC deletes the model before it trains another: dvc.lock alone tells of the first."""
    trained = "stages: {train_model: {outs: [{path: models/dynamics}]}}"
    Path("dvc.lock").write_text(trained)
    with pytest.raises(PipelineError, match=r"dvc\.lock"):
        open_to_charge(chosen)
    assert not Path(".primorl").exists()
    Path("dvc.lock").write_text(trained.replace("train_model", "collect"))
    pay(chosen)  # the twin
    Path("dvc.lock").write_text(trained)
    pay(chosen)  # and where the ledger is still there


def test_a_ledger_moves_from_a_file_to_a_server(
    project: Path, postgresql_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows arrive whole; nobody can be charged in the file afterwards. A target with other rows is
    refused, and a kill before the file is closed is made good by a second call.
    """
    raw = project_settings()
    chosen = write_settings(raw)
    ledger = open_to_charge(chosen)
    ledger.reserve(request(version("ab")), None, "0" * 16)  # with a mark of progress
    ledger.commit("0" * 16)
    before, target, taken = table_rows(chosen), *(postgresql_server.new_url() for _ in range(2))
    opened(taken, project / "of another").reserve(request(version("xy")), None)
    assert "found other records there" in primorl("ledger", "move", taken)[2]
    with monkeypatch.context() as killing:
        killing.setattr(Store, "_retire", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            Store(chosen.ledger.url).move(Store(target))
    assert table_rows(chosen) == before
    assert primorl("ledger", "move", target)[0] == 0
    head, elsewhere = project / ".primorl/ledger.head", project / "head"
    for before_it, after in ((head, head), (head, elsewhere), (elsewhere, head)):
        before_it.rename(after)  # a clone may have none
        with pytest.raises(PipelineError, match="were moved to another database"):
            pay(chosen)
    raw["ledger"]["url"] = target
    chosen = write_settings(raw)
    assert table_rows(chosen) == before
    pay(chosen)
    assert primorl("ledger", "verify")[1].startswith("the ledger is whole: 4 records")


def table_rows(chosen: Params) -> list[list[Any]]:
    url = chosen.ledger.url or f"sqlite:///{LEDGER}"
    engine, found = sa.create_engine(url, poolclass=sa.NullPool), []
    with engine.connect() as connection:
        for name in ("ledger_records", "ledger_members", "ledger_progress"):
            rows = connection.execute(sa.text(f"SELECT * FROM {name} ORDER BY 1, 2"))
            found.append([tuple(row) for row in rows])
    return found
