"""``primorl select``, ``predict`` and ``export``: what they print and refuse."""

import json
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from primorl import tracking
from primorl.config.params import Params
from primorl.policy.exported import save
from primorl.privacy.statement import Statement
from primorl.project.paths import MODEL
from primorl.setup import selection
from tests.commands.conftest import Call
from tests.pipeline.conftest import small
from tests.pipeline.fakes import FakeRun
from tests.policy.test_exported import EPOCHS
from tests.policy.test_loaded import NAMES, RANGE, loaded
from tests.setup.test_selection import FOLDERS, project
from tests.statements import OF_TRAINING

__all__ = ["project", "small"]


def test_it_prints_the_winner_and_no_score_for_one_charge(
    project: Params, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    monkeypatch.setattr(tracking, "stage_run", lambda *_: nullcontext(FakeRun()))
    for words, said in (
        ([], "name folders, or give --seeds"),
        (["out/a", "--seeds"], "name folders, or give --seeds"),
        (["--epochs", "out/a", "out/b"], "at most one folder"),
        (["out/a", "out/b", "--estimator", "dptd"], "found 'dptd', allowed are model, corrected"),
        (["out/a", "out/b", "--epsilon", "0"], "epsilon"),
    ):
        status, _, err = primorl("select", *words)
        assert status != 0
        assert said in err
    assert not Path("reports").exists()
    given = ("select", *map(str, FOLDERS), "--epsilon", "0.5")
    status, out, err = primorl(*given)
    assert status == 0, err
    report = selection.read()
    assert f"chosen among 3: {report.chosen}" in out
    assert "ε = 0.5, δ = 1e-05 per trajectory" in out
    assert "ε 0.5" in err
    status, out, err = primorl(*given, "--json")
    assert (status, json.loads(out)["chosen"], "reserved" in err) == (0, report.chosen, False)
    (entry,) = json.loads(primorl("ledger", "show", "--json")[1])
    assert (entry["stage"], entry["event"]) == ("select", {"type": "PureDpEvent", "epsilon": 0.5})


IN = ("predict", "--observations", "in.csv", "--out", "out/actions.csv")


def test_it_writes_actions_and_says_how_many_it_abstained_from(primorl: Call) -> None:
    """The policy may lie elsewhere; what makes no sense is one line."""
    Path("bundle").mkdir()
    loaded(Path("bundle"), **RANGE, **NAMES)
    Path("in.csv").write_text("id,age,dose,weight\n007,1,1,5\n8,,1,5\n9,1,99,5\n", encoding="utf-8")
    given = (*IN, "--policy", "bundle")
    status, out, err = primorl(*given, "--keep", "id", "--keep", "dose")
    assert (status, out) == (0, "out/actions.csv: 3 rows\n")
    assert err.splitlines()[-1] == "abstained: 2 of 3 rows, which have no action"
    header, first, second, third = Path("out/actions.csv").read_text(encoding="utf-8").splitlines()
    assert header == '"id","dose","up","down","abstained"'
    assert first.startswith('"007","1",')
    assert first.endswith(",false")
    assert (second, third) == ('"8","1",,,true', '"9","99",,,true')
    for wrong, says in (
        (IN, "error: models/policy/config.json: not there"),
        ((*given, "--observations", "none.csv"), "error: none.csv: not there"),
        ((*given, "--keep", "name"), "error: in.csv: found no column 'name'"),
        ((*given, "--step", "t"), "error: --trajectory, --step: found one without the other"),
        (IN[:3], "error: Missing option '--out'"),
    ):
        status, _, err = primorl(*wrong)
        assert (status != 0, err.count("\n")) == (True, 1)
        assert err.startswith(says)


FOLDER, STATED = Path("models/policy"), "error: models/policy/privacy.json"
VOID = Statement.no_guarantee(unit="trajectory", units=9, dataset_fingerprint="d473" * 16, reason="no clipping")
EXPORT = ("export", "--out", "policy.onnx")


@pytest.fixture
def policy() -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    FOLDER.mkdir(parents=True)
    loaded(FOLDER)
    OF_TRAINING.write(FOLDER)


@pytest.mark.usefixtures("policy")
def test_it_says_how_it_was_checked_and_what_is_guaranteed(monkeypatch: pytest.MonkeyPatch, primorl: Call) -> None:
    status, out, err = primorl(*EXPORT)
    assert status == 0, err
    checked, promise = out.splitlines()
    assert checked.startswith("policy.onnx: opset 17; checked on 4096 observations: ")
    assert promise == "ε = 1.19, δ = 1e-05 per trajectory"
    wrong = "error: --out: found 'policy.pt'; allowed is a name that ends in .onnx\n"
    assert primorl("export", "--out", "policy.pt") == (1, "", wrong)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    missing = "error: export: needs onnxruntime, which is not installed; run `pip install 'primorl[onnx]'`\n"
    assert primorl("export", "--out", "other.onnx") == (1, "", missing)


@pytest.mark.usefixtures("policy")
def test_a_figure_that_is_not_that_of_its_event_or_its_model_is_refused(primorl: Call) -> None:
    """Nothing is written, whatever flag is given. Twins: the statement before the edit, and a policy elsewhere."""
    for edit, says in (
        ({"epsilon": 0.01}, "epsilon: found 0.01, less than the accountant makes of the event in the same file (1.18"),
        ({"attacks": ()}, "attacks: not what the accountant makes of the event"),
    ):
        replace(OF_TRAINING, **edit).write(FOLDER)  # type: ignore[arg-type]
        status, out, err = primorl(*EXPORT, "--void-ok")
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(f"{STATED}: {says}")
    assert not Path("policy.onnx").exists()
    MODEL.mkdir()
    for folder in (MODEL, FOLDER):
        OF_TRAINING.write(folder)
    assert primorl(*EXPORT)[0] == 0
    replace(OF_TRAINING, public_assumptions=()).write(FOLDER)
    assert "public_assumptions: not that of models/dynamics/privacy.json" in primorl(*EXPORT)[2]
    shutil.copytree(FOLDER, "elsewhere")
    assert primorl(*EXPORT, "--policy", "elsewhere")[0] == 0


@pytest.mark.usefixtures("policy")
def test_a_void_statement_is_refused_unless_asked_for_and_mopo_always(primorl: Call) -> None:
    for void in (VOID, replace(OF_TRAINING, void=("noise is seeded",))):
        void.write(FOLDER)
        said = f"{STATED}: void: {void.void[0]}; do not rely on it (--void-ok goes on all the same)\n"
        assert primorl(*EXPORT) == (1, "", said)
        assert not Path("policy.onnx").exists()
    status, out, _ = primorl(*EXPORT, "--void-ok")
    assert (status, out.splitlines()[1].endswith("VOID: noise is seeded")) == (0, True)
    (FOLDER / "privacy.json").unlink()
    assert primorl(*EXPORT, "--void-ok")[2].startswith(f"{STATED}: not there")
    save(FOLDER, EPOCHS, variant="mopo", environment=None)
    VOID.write(FOLDER)
    assert primorl(*EXPORT, "--void-ok")[2].startswith("error: models/policy: variant mopo")
