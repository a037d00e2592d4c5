"""``primorl plan`` counts what is paid by the same people beside the model: the clone and the private evaluation."""

from pathlib import Path

import pytest

from primorl.privacy.accounting import epsilon as accounting
from primorl.setup import clone_work
from tests.commands.test_plan import PRIVACY, said, write_params
from tests.privacy.ledger.ledgers import adaptive
from tests.projects import project_settings, write_settings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_clone_and_the_private_evaluation_are_counted_with_the_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are paid by the same people; the twin: without them nothing is said."""
    monkeypatch.setattr(clone_work, "ROUNDS", 5)
    monkeypatch.setattr(clone_work, "SAMPLING_PROBABILITY", 1.0)
    monkeypatch.setattr(clone_work, "noise_for", lambda epsilon, delta: 20.0)
    write_params()
    assert "in all" not in said(capsys)
    raw = project_settings()
    raw["privacy"] |= PRIVACY
    raw["behaviour"]["target_epsilon"] = 0.5
    write_settings(raw)
    both = float(adaptive(*[accounting.training_event(1.0, 20.0, 5)] * 2, delta=1e-5))
    (line,) = (line for line in said(capsys).splitlines() if "in all" in line)
    assert "with a clone of the behaviour (0.5): about ε " in line
    assert float(line.split("about ε ")[1].split()[0]) == pytest.approx(both, rel=1e-3)
    raw["evaluation"]["private"]["estimators"] = {"behaviour": 0.1}
    write_settings(raw)
    assert "with a clone of the behaviour (0.5) and the private evaluation of its policy (behaviour 0.1)" in said(
        capsys
    )
