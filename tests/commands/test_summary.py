"""``primorl summary`` prints what the last run came to, or one line that says what to run."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from primorl.commands import main as cli
from primorl.commands.doctor import examine
from primorl.project.files import write_json

SUMMARY: dict[str, Any] = {
    "format": 5,
    "dataset": "pendulum-replay",
    "env_id": "Pendulum-v1",
    "units": 2947,
    "variant": "private",
    "private": True,
    "epsilon": 0.4998,
    "epsilon_rdp": 0.55,
    "delta": 1e-5,
    "unit": "trajectory",
    "void": [],
    "spent_on_dataset": {
        "epsilon": 0.4998,
        "epsilon_fixed": 0.4998,
        "epsilon_rdp": 0.55,
        "delta": 1e-5,
        "charges": 1,
    },
    "seed": 0,
    "return_mean": -143.52,
    "return_ci95": [-161.6, -125.4],
    "normalized_score": 904.3,
    "episodes": 100,
    "policy_sha256": "0" * 64,
    "seconds": {"train_model": 50.2, "evaluate": 3.0},
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_prints_a_table_or_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    write_json(Path("metrics/summary.json"), SUMMARY)
    assert cli.main(["summary"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "dataset  pendulum-replay (Pendulum-v1), 2947 private units",
        "variant  private, seed 0",
        "privacy  of the policy: ε = 0.5, δ = 1e-05 per trajectory",
        "spent    in all: ε = 0.5, δ = 1e-05 in 1 charge when the model was made",
        "return   -143.5  95% interval [-161.6, -125.4], 100 episodes",
        "score    904.3",
        "time     53 s: train_model 50, evaluate 3",
    ]
    assert cli.main(["summary", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == SUMMARY


def test_results_of_an_earlier_run_are_called_so_here_and_by_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    """After a run that failed on the way, the advice is about a model that is not there any more."""
    for folder, content in (("dynamics/model", b"model"), ("policy/policy", b"policy")):
        Path("models", folder).parent.mkdir(parents=True)
        Path("models", f"{folder}.safetensors").write_bytes(content)
    digests = {f"{name}_sha256": hashlib.sha256(name.encode()).hexdigest() for name in ("model", "policy")}
    write_json(Path("metrics/summary.json"), SUMMARY | digests)
    (healthy,) = (finding for finding in examine() if finding.what == "summary")
    assert cli.main(["summary"]) == 0
    assert healthy.state == "ok"
    assert capsys.readouterr().err == ""
    Path("models/dynamics/model.safetensors").write_bytes(b"another")
    Path("models/policy/policy.safetensors").unlink()
    assert cli.main(["summary", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["model_sha256"] == digests["model_sha256"]
    said = "another models/dynamics is there now, models/policy is gone; run `dvc repro evaluate`"
    assert err == f"warning: metrics/summary.json: these results are of an earlier run: {said}\n"
    (stale,) = (finding for finding in examine() if finding.what == "summary")
    assert stale.state == "problem"
    assert said in stale.says
