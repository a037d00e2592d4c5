"""``primorl ledger`` shows what was spent, finds what was tampered with, and makes nothing just to look."""

import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting import dp_event

from primorl.commands import main as cli
from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import compose, training_event
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.chain import Chain, Record
from primorl.privacy.ledger.ledger import Ledger
from primorl.project.errors import PipelineError
from primorl.setup.accounts import project_ledger
from tests.privacy.ledger.ledgers import DELTA, GAUSSIAN, request, version
from tests.projects import project_settings, write_settings

ROOT = Path(__file__).parents[2]
Project = Callable[..., Params]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project as the working directory; call it to choose the budget and the ledger's place."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    raw = project_settings()

    def chosen(epsilon: float | None = None, url: str | None = None) -> Params:
        raw["privacy"]["budget"] = {"epsilon": epsilon, "delta": DELTA}
        raw["ledger"]["url"] = url
        return write_settings(raw)

    chosen()
    return chosen


@pytest.fixture
def ledger(project: Project) -> Ledger:
    """Three charges on shared units, of which one was aborted and one is open, and one on others."""
    ledger = project_ledger(project())
    first = ledger.reserve(request(version("ab"), training_event(0.1, 20.0, 150)), None)
    ledger.commit(first.id)
    second = ledger.reserve(request(version("bc"), dataset="pendulum-2"), None)
    ledger.abort(second.id, "diverged")
    ledger.reserve(request(version("xy"), dataset="cartpole"), None)
    ledger.reserve(request(version("ab")), None)
    return ledger


def primorl(*words: str) -> int:
    return cli.main(["ledger", *words])


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert primorl("show", "--json", *words) == 0
    entries: list[dict[str, Any]] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return entries


def test_an_empty_ledger_says_so_and_nothing_is_created(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("show",), ("verify",), ("export", "out.jsonl"), ("show", "--dataset", "pendulum")):
        assert primorl(*words) == 0
        assert capsys.readouterr().out == "the ledger is empty: nothing was charged yet\n"
    assert shown(capsys) == []
    assert {entry.name for entry in Path().iterdir()} == {"params.yaml", "datasets"}


@pytest.mark.usefixtures("ledger")
def test_settings_of_a_run_may_be_wrong_where_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """What a half-made edit leaves, such as both ways to choose the noise; the ledger's own keys must be right."""
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    raw["privacy"] |= {"target_epsilon": 0.5, "noise_multiplier": 4.6, "rounds": "many"}
    raw["dynamics"] = None
    Path("params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert cli.main(["check"]) == 1
    assert capsys.readouterr().err.startswith("error: params.yaml: ")
    assert len(shown(capsys)) == 4
    for words in (("show",), ("verify",), ("export", "out.jsonl")):
        assert primorl(*words) == 0
    capsys.readouterr()
    raw["ledger"] = {"url": 3}
    Path("params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert primorl("show") == 1
    assert capsys.readouterr().err.startswith("error: params.yaml: ledger.url")


def test_json_holds_every_charge_and_the_running_total(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    entries = shown(capsys)
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
    assert [entry["id"] for entry in shown(capsys, "--dataset", "cartpole")] == [third["id"]]
    assert shown(capsys, "--dataset", "nothing") == []


def test_a_run_without_a_guarantee_is_null(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    ledger.reserve(request(version("ab"), dp_event.NonPrivateDpEvent()), None)
    *before, last = shown(capsys)
    assert last["epsilon"] is last["epsilon_total"] is None
    assert all(math.isfinite(entry["epsilon_total"]) for entry in before)
    assert primorl("show") == 0
    assert "  spent: no finite ε: a run without a guarantee, or on another kind of unit" in capsys.readouterr().out


def test_the_table_ends_with_what_is_spent_and_left(
    project: Project, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    total = ledger.account(version("ab")).total(DELTA)
    project(epsilon=2.0)
    assert primorl("show") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rec.", "reserved", "dataset", "stage", "state", "ε", "δ", "charge"]
    assert [line.split()[0] for line in lines[1:5]] == ["2", "5", "8", "9"]
    known = f"record 1, first charged {ledger.charges()[0].time[:10]}; 2 units: trajectory"
    start = lines.index(f"pendulum, version {version('ab').fingerprint[:12]} ({known}), 3 charge(s)")
    assert lines[start + 1 : start + 3] == [
        f"  spent: ε {at_most(total.epsilon, 4)} at δ 1e-05 ({at_most(total.epsilon_fixed, 4)} if all settings were "
        "fixed beforehand)",
        f"  budget: ε 2, left {left_of(2.0, total.epsilon)}",
    ]
    assert sum(line.startswith("  spent") for line in lines) == 3
    project(epsilon=0.1)
    primorl("show", "--dataset", "pendulum")
    out = capsys.readouterr().out
    assert "  budget: ε 0.1, left 0\n" in out
    assert "cartpole" not in out
    project()
    primorl("show")
    assert "  budget: none (privacy.budget.epsilon is null)\n" in capsys.readouterr().out
    primorl("show", "--dataset", "nothing")
    assert capsys.readouterr().out == "nothing was charged for dataset 'nothing' yet\n"


def test_verify_counts_or_names_the_first_broken_record(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    assert primorl("verify") == 0
    assert capsys.readouterr().out == "the ledger is whole: 9 records\n"
    with closing(sqlite3.connect(".primorl/ledger.db")) as database, database:
        database.execute("UPDATE ledger_records SET body = replace(body, 'aborted', 'refunds') WHERE sequence = 6")
    for words in (("verify",), ("show",), ("show", "--json"), ("export", "out.jsonl")):
        assert primorl(*words) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith(f"error: ledger {Path('.primorl/ledger.db').absolute()}: record 6: its content")
        assert told.err.count("\n") == 1
    assert not Path("out.jsonl").exists()


def test_an_export_holds_the_records_alone_and_can_be_checked(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert primorl("export", "out.jsonl") == 0
    assert capsys.readouterr().out == "out.jsonl: 9 records\n"
    records = [Record(**json.loads(line)) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
    chain = Chain(Path(".primorl/secret").read_bytes(), "exported")
    assert [content["kind"] for content in chain.extend(records)].count("version") == 3
    assert version("ab").members.hex() not in Path("out.jsonl").read_text(encoding="utf-8")
    assert Path("out.jsonl").stat().st_mode & 0o777 == 0o600, "it is its owner's alone"


def test_a_lost_secret_is_not_replaced_by_a_new_one(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    Path(".primorl/secret").unlink()
    assert primorl("show") == 1
    assert "secret: not there, and without it the ledger cannot be read" in capsys.readouterr().err
    assert not Path(".primorl/secret").exists()
    Path(".primorl/secret").write_bytes(b"n" * 32)
    assert primorl("show") == 1
    assert "written under another secret than this project's .primorl/secret" in capsys.readouterr().err


def test_the_ledger_is_one_also_in_dvcs_temporary_copies(
    project: Project, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Path().absolute()
    copy = here / ".dvc" / "tmp" / "exps" / "standalone" / "tmpabc"
    copy.mkdir(parents=True)
    shutil.copy("params.yaml", copy)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(copy))
    assert len(shown(capsys)) == 4
    chosen = project(url="sqlite:///ledgers/own.db")
    another = r"record 1: missing, but .* \(or ledger\.url now names another ledger\)"
    with pytest.raises(PipelineError, match=another):
        project_ledger(chosen)
    assert not (here / "ledgers" / "own.db").exists()
    (here / ".primorl/ledger.head").unlink()
    with closing(project_ledger(chosen)) as begun:
        begun.reserve(request(version("ab"), GAUSSIAN), None)
    assert (here / "ledgers" / "own.db").exists(), "a relative path begins in the project"


def test_an_unusable_url_is_one_line_without_credentials(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project()
    project_ledger(project()).close()  # makes the secret
    project(url="postgresql+psycopg://ana:hush@127.0.0.1:9/spending")
    assert primorl("show") == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ledger postgresql://127.0.0.1:9/spending: cannot be used: OperationalError")
    assert "hush" not in told
    assert told.count("\n") == 1
    project(url="ana:hush")
    assert primorl("verify", "--debug") == primorl("--debug", "verify") == 1
    told = capsys.readouterr().err
    assert told.count("error: ledger.url: not a database's URL") == 2
    assert "hush" not in told
