"""The documentation's example of a mechanism of one's own keeps what the page says of it, kills included."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples.private_mean import BUDGET, make_plan, private_mean
from primorl.privacy.audits.canaries import audit_mechanism
from primorl.privacy.ledger.ledger import BudgetExceeded, Ledger
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import Statement
from tests.plans import HalfTheNoise

REPOSITORY = Path(__file__).resolve().parents[2]
PEOPLE = 2000
IDS, SECRET = [f"p{number}" for number in range(PEOPLE)], b"s" * 32
VALUES = torch.tensor([0.3, -0.2]) + 0.1 * torch.randn(PEOPLE, 2, generator=torch.Generator().manual_seed(0))
KILLED = """
import os, signal, sys
from pathlib import Path
from primorl.privacy.mechanism.plan import Plan
from tests.privacy.test_own_mechanism import run

release, releases = Plan.release, []

def killing(self, total):
    releases.append(1)
    if len(releases) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return release(self, total)

Plan.release = killing
run(Path(sys.argv[1]))
"""


def run(folder: Path) -> Tensor:
    return private_mean(make_plan(PEOPLE), IDS, lambda: VALUES, SECRET, folder)


def charges(folder: Path) -> list[tuple[str, float | None]]:
    with closing(Ledger.open(f"sqlite:///{folder}/ledger.db", secret=SECRET, anchor=folder / "ledger.head")) as ledger:
        return [(charge.state, charge.epsilon) for charge in ledger.charges()]


def test_a_killed_run_resumes_on_its_charge_and_states_what_it_paid_for(tmp_path: Path) -> None:
    """SIGKILL in the third round: that round is lost, the other seven are released, and one charge pays for all."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=False,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert [state for state, _ in charges(tmp_path)] == ["reserved"]

    rounds, release = [], Plan.release
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Plan, "release", lambda self, total: (rounds.append(1), release(self, total))[1])
        mean = run(tmp_path)
    assert len(rounds) == 8 - 3
    plan = make_plan(PEOPLE)
    noise = plan.noise_multiplier * plan.clip.sensitivity / plan.expected_cohort / 7**0.5
    sampling = float(VALUES.norm(dim=1).max()) / (plan.expected_cohort * 7) ** 0.5
    assert float((mean - VALUES.mean(0)).abs().max()) < 6 * (noise + sampling)

    ((state, epsilon),) = charges(tmp_path)
    statement = Statement.read(tmp_path)
    assert (state, epsilon) == ("committed", statement.epsilon)
    assert statement.sound
    assert statement.epsilon is not None
    assert 1.9 < statement.epsilon <= 2.0
    assert (statement.unit, statement.units, statement.rounds, statement.termination) == ("person", PEOPLE, 8, None)
    assert statement.spent_on_dataset is not None
    assert statement.spent_on_dataset.charges == 1


def test_what_was_paid_for_is_restored_and_anything_else_is_charged_or_refused(tmp_path: Path) -> None:
    first = run(tmp_path)
    plan = make_plan(PEOPLE)
    reading = lambda: pytest.fail("private numbers were read")  # noqa: E731
    assert torch.equal(private_mean(plan, IDS, reading, SECRET, tmp_path), first)
    assert len(charges(tmp_path)) == 1
    with pytest.raises(BudgetExceeded, match=f"privacy.budget is ε {BUDGET.epsilon:g}"):
        private_mean(make_plan(PEOPLE), [*IDS[1:], "another"], reading, SECRET, tmp_path)
    assert len(charges(tmp_path)) == 1


@pytest.mark.parametrize(("kind", "refuted"), [(Plan, False), (HalfTheNoise, True)])
def test_the_audit_refutes_half_the_noise_and_not_the_plan(kind: type[Plan], refuted: bool) -> None:
    plan = make_plan(1000)
    audited = kind(**{field.name: getattr(plan, field.name) for field in fields(plan)})
    found = audit_mechanism(audited, canaries=256, runs=96, confidence=1 - 1e-7)
    assert found.refutes_the_claim is refuted
