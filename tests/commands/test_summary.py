"""``primorl summary`` prints what the last run came to, or one line that says what to run."""

import hashlib
import json
from pathlib import Path
from typing import Any

from primorl.commands.doctor import examine
from primorl.project.files import write_json
from tests.commands.conftest import Call

EPSILONS = {"epsilon": 0.4998, "epsilon_rdp": 0.55, "delta": 1e-5}
SUMMARY: dict[str, Any] = EPSILONS | {
    "format": 5,
    "dataset": "pendulum-replay",
    "env_id": "Pendulum-v1",
    "units": 2947,
    "variant": "private",
    "private": True,
    "unit": "trajectory",
    "void": [],
    "spent_on_dataset": EPSILONS | {"epsilon_fixed": 0.4998, "charges": 1},
    "seed": 0,
    "return_mean": -143.52,
    "return_ci95": [-161.6, -125.4],
    "normalized_score": 904.3,
    "episodes": 100,
    "policy_sha256": "0" * 64,
    "seconds": {"train_model": 50.2, "evaluate": 3.0},
}


def test_it_prints_a_table_or_the_file_and_says_whether_they_are_of_an_earlier_run(primorl: Call) -> None:
    """After a run that failed on the way, the advice is about a model that is not there any more."""
    for content in ("model", "policy"):
        file = Path("models", {"model": "dynamics"}.get(content, content), f"{content}.safetensors")
        file.parent.mkdir(parents=True)
        file.write_text(content)
    digests = {f"{name}_sha256": hashlib.sha256(name.encode()).hexdigest() for name in ("model", "policy")}
    write_json(Path("metrics/summary.json"), SUMMARY | digests)
    table = """dataset  pendulum-replay (Pendulum-v1), 2947 private units
variant  private, seed 0
privacy  of the policy: ε = 0.5, δ = 1e-05 per trajectory
spent    in all: ε = 0.5, δ = 1e-05 in 1 charge when the model was made
return   -143.5  95% interval [-161.6, -125.4], 100 episodes
score    904.3
time     53 s: train_model 50, evaluate 3
"""
    assert primorl("summary") == (0, table, "")
    (healthy,) = (finding for finding in examine() if finding.what == "summary")
    assert healthy.state == "ok"
    Path("models/dynamics/model.safetensors").write_bytes(b"another")
    Path("models/policy/policy.safetensors").unlink()
    said = "another models/dynamics is there now, models/policy is gone; run `dvc repro evaluate`"
    status, out, err = primorl("summary", "--json")
    assert (status, json.loads(out)) == (0, SUMMARY | digests)
    assert err == f"warning: metrics/summary.json: these results are of an earlier run: {said}\n"
    (stale,) = (finding for finding in examine() if finding.what == "summary")
    assert stale.state == "problem"
    assert said in stale.says
