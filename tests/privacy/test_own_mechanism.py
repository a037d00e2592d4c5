"""The documentation's example of a mechanism of one's own keeps what the page says of it, kills
included.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples.private_mean import BUDGET, make_plan, private_mean
from primorl.privacy.ledger.history import BudgetExceeded
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import Statement
from tests.privacy.ledger.interrupted import in_fork
from tests.privacy.ledger.ledgers import SECRET, opened

PEOPLE = 2000
IDS = [f"p{number}" for number in range(PEOPLE)]
VALUES = torch.tensor([0.3, -0.2]) + 0.1 * torch.randn(
    PEOPLE, 2, generator=torch.Generator().manual_seed(0)
)


def run(folder: Path, each: Callable[[int], None]) -> Tensor:
    release, releases = Plan.release, []

    def counting(self: Plan, total: list[Tensor]) -> tuple[Tensor, ...]:
        releases.append(1)
        each(len(releases))
        return release(self, total)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Plan, "release", counting)
        return private_mean(make_plan(PEOPLE), IDS, lambda: VALUES, SECRET, folder)


def charges(folder: Path) -> list[tuple[str, float | None]]:
    return [
        (charge.state, charge.epsilon)
        for charge in opened(f"sqlite:///{folder}/ledger.db", folder).charges()
    ]


def test_a_killed_run_resumes_on_its_charge_and_states_what_it_paid_for(tmp_path: Path) -> None:
    kill = lambda number: number == 3 and os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    assert in_fork(lambda: run(tmp_path, kill)) == -signal.SIGKILL
    assert [state for state, _ in charges(tmp_path)] == ["reserved"]
    rounds: list[int] = []
    mean, plan = run(tmp_path, rounds.append), make_plan(PEOPLE)
    assert len(rounds) == 8 - 3
    noise = plan.noise_multiplier * plan.clip.sensitivity / plan.expected_cohort / 7**0.5
    sampling = float(VALUES.norm(dim=1).max()) / (plan.expected_cohort * 7) ** 0.5
    assert float((mean - VALUES.mean(0)).abs().max()) < 6 * (noise + sampling)

    statement = Statement.read(tmp_path)
    assert charges(tmp_path) == [("committed", statement.epsilon)]
    assert statement.sound
    assert 1.9 < (statement.epsilon or 0) <= 2.0
    assert (statement.unit, statement.units, statement.rounds) == ("person", PEOPLE, 8)
    # What was paid for is restored, and anything else is charged or refused.
    reading = lambda: pytest.fail("private numbers were read")  # noqa: E731
    assert torch.equal(private_mean(plan, IDS, reading, SECRET, tmp_path), mean)
    with pytest.raises(BudgetExceeded, match=f"privacy.budget is ε {BUDGET.epsilon:g}"):
        private_mean(plan, [*IDS[1:], "another"], reading, SECRET, tmp_path)
    assert len(charges(tmp_path)) == 1
