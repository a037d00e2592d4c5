"""Who shares what with whom: kinds of units, people under other names, units that were public,
old ledgers, and clones of a project.
"""

import functools
import re
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from primorl.base import PipelineError
from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.ledger.history import Budget, Version
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.ledger.store import Store
from primorl.work.data import open_to_charge
from tests.data.builders import snapshot
from tests.hostile.project import primorl
from tests.privacy.ledger.ledgers import DELTA, execute, opened, request, version
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
    with closing(open_to_charge(chosen)) as ledger:
        ledger.reserve(request(version("ab")), None, "0" * 16)  # with a mark of progress
        ledger.commit("0" * 16)
    before, target, taken = table_rows(chosen), *(postgresql_server.new_url() for _ in range(2))
    opened(taken, project / "of another").reserve(request(version("xy")), None)
    assert "found other records there" in primorl("ledger", "move", taken)[2]
    with monkeypatch.context() as killing:
        killing.setattr(Store, "_retire", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            Store(chosen.ledger.address).move(Store(target))
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
    engine, found = sa.create_engine(chosen.ledger.address, poolclass=sa.NullPool), []
    with engine.connect() as connection:
        for name in ("ledger_records", "ledger_members", "ledger_progress"):
            rows = connection.execute(sa.text(f"SELECT * FROM {name} ORDER BY 1, 2"))
            found.append([tuple(row) for row in rows])
    return found
