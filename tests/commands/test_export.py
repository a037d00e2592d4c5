"""``primorl export``: what it prints, and that it refuses what `primorl release` refuses."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primorl.policy.exported import save
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.events import event_to_json
from primorl.privacy.statement import Statement
from primorl.privacy.together import together
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


def test_it_says_how_it_was_checked_and_what_is_guaranteed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = primorl(capsys, "export", "--out", "policy.onnx")
    assert status == 0, err
    checked, promise = out.splitlines()
    assert checked.startswith("policy.onnx: opset 17; checked on 4096 observations: ")
    assert promise == "ε = 1.19, δ = 1e-05 per trajectory"


LARGER = Training(0.1, 2.0, 150).event


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"epsilon": 0.01}, "epsilon: found 0.01, less than the accountant makes of the event in the same file (1.18"),
        ({"attacks": ()}, "attacks: not what the accountant makes of the event"),
        ({"event": event_to_json(LARGER)}, "epsilon: found 1.19, less than the accountant makes of the event"),
    ],
)
def test_a_figure_that_is_not_that_of_its_event_is_refused(
    edit: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written, whatever flag is given. Twin: the statement before the edit is exported."""
    for flags in ((), ("--void-ok",)):
        replace(OF_TRAINING, **edit).write(FOLDER)
        status, out, err = primorl(capsys, "export", "--out", "policy.onnx", *flags)
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


def test_mechanisms_that_are_not_those_of_the_event_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a policy without its model beside it. Twin: the statement of model and clone together is exported."""
    whole = together({"models/dynamics": OF_TRAINING, "models/behaviour": replace(OF_TRAINING, charge="c10e")})
    whole.write(FOLDER)
    assert primorl(capsys, "export", "--out", "policy.onnx")[0] == 0
    larger = replace(whole.mechanisms[1], event=event_to_json(LARGER))
    replace(whole, mechanisms=(whole.mechanisms[0], larger)).write(FOLDER)
    status, _, err = primorl(capsys, "export", "--out", "other.onnx")
    assert status == 1
    assert "event: not that of the mechanisms in the same file together" in err


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


def test_another_ending_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = primorl(capsys, "export", "--out", "policy.pt")
    assert status == 1
    assert err == "error: --out: found 'policy.pt'; allowed is a name that ends in .onnx\n"


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    status, _, err = primorl(capsys, "export", "--out", "policy.onnx")
    assert status == 1
    assert err == "error: export: needs onnxruntime, which is not installed; run `pip install 'primorl[onnx]'`\n"
