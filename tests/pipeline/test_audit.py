"""The audit stage: reads the public split alone, ships no model, and raises the alarm."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline import audit
from primorl.base.errors import PipelineError
from primorl.base.files import write_json
from primorl.base.paths import AUDIT_REPORT
from primorl.config.params import Params
from primorl.data.storage.schema import Manifest
from primorl.paid import audits
from primorl.privacy.mechanism.plan import Plan
from tests.data.builders import INFO, episode, snapshot, table
from tests.pipeline.tiny_policy import RememberingRun, write_partition
from tests.pipeline.training_project import edited

SURE = 1 - 1e-4  # hardly any false alarms
PRIVACY = {
    "target_epsilon": None,
    "noise_multiplier": 6.0,
    "sampling_probability": 0.5,
    "rounds": 30,
    "delta": 1e-5,
}


def silent(plan: Plan, total: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple((part / plan.expected_cohort).to(torch.float32) for part in total)


@pytest.fixture
def project(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    others, names = [episode(20, 100 + i) for i in range(6)], [f"b{i:03d}" for i in range(6)]
    write_partition(Path("data/partitions/public"), table(others, units=names, names=names))
    write_json(Path("data/partitions/manifest.json"), Manifest(INFO, 300, 6).to_json())
    monkeypatch.setattr(audits, "CONFIDENCE", SURE)
    monkeypatch.setattr(audits, "MECHANISM_CANARIES", 256)
    monkeypatch.setattr(audits, "enough_runs", lambda plan, canaries: 8)
    monkeypatch.setattr(audits, "ONE_RUN_CANARIES", 60)
    return edited(small, privacy=PRIVACY, dynamics={"hidden": [16]})


def test_the_true_plan_passes_and_one_without_noise_does_not(
    project: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, run = set(snapshot(Path())), RememberingRun()
    audit.body(project, run)
    report = json.loads(AUDIT_REPORT.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    made = {name for name in set(snapshot(Path())) - before}
    assert made == {"reports/audit.json", "reports/audit.png"}
    for name in ("mechanism", "one_run"):
        assert report[name]["refutes_the_claim"] is False
        assert report[name]["claimed"] == run.logged["audit.claimed_epsilon"] > 1
        assert report[name]["error_of_each_bound"] == pytest.approx((1 - SURE) / 2 / 4)
        for bound in report[name]["bounds"]:
            assert run.logged[f"audit.{name}.{bound['name']}_lower_bound"] == bound["epsilon"]
            assert bound["assumes"]
    assert report["one_run"]["units"] == 6
    assert report["one_run"]["trained_on"].startswith("the public split and canaries")

    monkeypatch.setattr(Plan, "release", silent)
    alarmed = RememberingRun()
    with pytest.raises(
        PipelineError, match=r"^audit \(mechanism\): ε is at least .* is claimed[^\n]*$"
    ):
        audit.body(project, alarmed)
    found: dict[str, Any] = json.loads(AUDIT_REPORT.read_text(encoding="utf-8"))
    assert found["mechanism"]["refutes_the_claim"] is True
    for each in (run, alarmed):
        assert set(each.artifacts) == {"audit.json", "audit.png"}
    with pytest.raises(PipelineError, match=r"dynamics\.variant: found mopo, which claims no ε"):
        audit.body(edited(project, dynamics={"variant": "mopo"}), RememberingRun())
