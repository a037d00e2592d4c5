"""``primorl export``: what it prints, and that it refuses what `primorl release` refuses."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from primorl.policy.exported import save
from primorl.privacy.statement import Statement
from primorl.project.paths import MODEL
from tests.commands.conftest import Call
from tests.policy.test_exported import EPOCHS
from tests.policy.test_loaded import loaded
from tests.statements import OF_TRAINING

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
FOLDER, STATED = Path("models/policy"), "error: models/policy/privacy.json"
VOID = Statement.no_guarantee(unit="trajectory", units=9, dataset_fingerprint="d473" * 16, reason="no clipping")
EXPORT = ("export", "--out", "policy.onnx")


@pytest.fixture(autouse=True)
def policy() -> None:
    FOLDER.mkdir(parents=True)
    loaded(FOLDER)
    OF_TRAINING.write(FOLDER)


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
