"""``primorl audit``: tables, reports, the alarm, and nothing of the models that were trained for it."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from primorl import tracking
from primorl.config.params import Params, plain
from primorl.privacy.accounting.rounding import at_least, at_most
from tests.commands.conftest import Call
from tests.pipeline.conftest import small  # noqa: F401
from tests.pipeline.test_audit import project  # noqa: F401
from tests.pipeline.tiny_policy import RememberingRun
from tests.projects import write_settings
from tests.trajectories.builders import snapshot


@pytest.fixture
def run(project: Params, monkeypatch: pytest.MonkeyPatch) -> RememberingRun:  # noqa: F811
    """The run that the command logs to, in a project with a public split."""
    write_settings(plain(project))
    remembering = RememberingRun()
    monkeypatch.setattr(tracking, "stage_run", lambda stage, _: nullcontext({"audit": remembering}[stage]))
    return remembering


def report(name: str) -> dict[str, Any]:
    text = Path(f"reports/audit/{name}.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return content


def test_it_prints_a_table_and_leaves_a_report_and_no_model(run: RememberingRun, primorl: Call) -> None:
    before = set(snapshot(Path()))
    status, printed, _ = primorl("audit", "mechanism", "--canaries", "64", "--runs", "8")
    assert status == 0
    found = report("mechanism")
    assert at_most(found["claimed"]) in printed
    for bound in found["bounds"]:
        assert at_least(bound["epsilon"]) in printed
        assert bound["assumes"] in printed
    assert "all 4 bounds are below the true ε with 99.99% confidence (Bonferroni: error 2.5e-05 each)" in printed
    assert found["canaries"] == 64 * 8
    assert run.artifacts["mechanism.json"] == Path("reports/audit/mechanism.json").read_bytes()
    status, printed, _ = primorl("audit", "one-run", "--canaries", "60")
    assert status == 0
    assert "trained on 6 public units and 60 canaries; the model was dropped" in printed
    assert "of 30 guesses right" in printed
    assert run.logged["audit.claimed_epsilon"] == report("one-run")["claimed"]
    made = {name for name in set(snapshot(Path())) - before if not name.startswith(".primorl/fits/")}
    assert made == {"reports/audit/mechanism.json", "reports/audit/one-run.json"}
