"""``primorl export``: what it prints, and that it refuses what `primorl release` refuses."""

from dataclasses import replace
from pathlib import Path

import pytest

from primorl.policy.exported import save
from primorl.privacy.statement import Statement
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
