"""``primorl export``: what it prints, and that it refuses what `primorl release` refuses."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from primorl.policy.exported import save
from primorl.privacy.statement import Statement
from primorl.project.paths import MODEL
from tests.commands.charging import primorl
from tests.policy.test_exported import EPOCHS
from tests.policy.test_loaded import loaded
from tests.statements import OF_TRAINING

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
FOLDER = Path("models/policy")


@pytest.fixture(autouse=True)
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FOLDER.mkdir(parents=True)
    loaded(FOLDER)
    OF_TRAINING.write(FOLDER)


def test_it_says_how_it_was_checked_and_what_is_guaranteed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = primorl(capsys, "export", "--out", "policy.onnx")
    assert status == 0, err
    checked, promise = out.splitlines()
    assert checked.startswith("policy.onnx: opset 17; checked on 4096 observations: ")
    assert promise == "ε = 1.19, δ = 1e-05 per trajectory"
    wrong = "error: --out: found 'policy.pt'; allowed is a name that ends in .onnx\n"
    assert primorl(capsys, "export", "--out", "policy.pt") == (1, "", wrong)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    missing = "error: export: needs onnxruntime, which is not installed; run `pip install 'primorl[onnx]'`\n"
    assert primorl(capsys, "export", "--out", "other.onnx") == (1, "", missing)


def test_a_figure_that_is_not_that_of_its_event_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written, whatever flag is given. Twin: the statement before the edit is exported."""
    for edit, says in (
        ({"epsilon": 0.01}, "epsilon: found 0.01, less than the accountant makes of the event in the same file (1.18"),
        ({"attacks": ()}, "attacks: not what the accountant makes of the event"),
    ):
        replace(OF_TRAINING, **edit).write(FOLDER)  # type: ignore[arg-type]
        status, out, err = primorl(capsys, "export", "--out", "policy.onnx", "--void-ok")
        assert (status, out) == (1, "")
        assert err.startswith(f"error: models/policy/privacy.json: {says}")
        assert err.count("\n") == 1
    assert not Path("policy.onnx").exists()
    OF_TRAINING.write(FOLDER)
    assert primorl(capsys, "export", "--out", "policy.onnx")[0] == 0


def test_a_policy_of_the_project_has_the_statement_of_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The event is edited with its ε: that of the model beside it tells. Twin: the model's own is exported."""
    MODEL.mkdir()
    OF_TRAINING.write(MODEL)
    assert primorl(capsys, "export", "--out", "policy.onnx")[0] == 0
    replace(OF_TRAINING, public_assumptions=()).write(FOLDER)
    status, _, err = primorl(capsys, "export", "--out", "other.onnx")
    assert status == 1
    assert "public_assumptions: not that of models/dynamics/privacy.json" in err
    shutil.copytree(FOLDER, "elsewhere")
    assert primorl(capsys, "export", "--policy", "elsewhere", "--out", "other.onnx")[0] == 0


VOID = Statement.no_guarantee(unit="trajectory", units=9, dataset_fingerprint="d473" * 16, reason="no clipping")


def test_a_void_statement_is_refused_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for void in (VOID, replace(OF_TRAINING, void=("noise is seeded",))):
        void.write(FOLDER)
        status, _, err = primorl(capsys, "export", "--out", "policy.onnx")
        assert status == 1
        start = "error: models/policy/privacy.json: void: "
        assert err == f"{start}{void.void[0]}; do not rely on it (--void-ok goes on all the same)\n"
        assert not Path("policy.onnx").exists()
    status, out, _ = primorl(capsys, "export", "--out", "policy.onnx", "--void-ok")
    assert status == 0
    assert out.splitlines()[1].endswith("VOID: noise is seeded")


def test_a_missing_statement_and_variant_mopo_are_always_refused(capsys: pytest.CaptureFixture[str]) -> None:
    (FOLDER / "privacy.json").unlink()
    status, _, err = primorl(capsys, "export", "--out", "policy.onnx", "--void-ok")
    assert status == 1
    assert err.startswith("error: models/policy/privacy.json: not there")
    save(FOLDER, EPOCHS, variant="mopo", environment=None)
    VOID.write(FOLDER)
    status, _, err = primorl(capsys, "export", "--out", "policy.onnx", "--void-ok")
    assert status == 1
    assert err.startswith("error: models/policy: variant mopo")
    assert not Path("policy.onnx").exists()
