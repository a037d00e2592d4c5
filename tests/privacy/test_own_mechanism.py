"""The documentation's example of a mechanism of one's own keeps what the page says of it."""

from pathlib import Path

import pytest
import torch

from examples.private_mean import BUDGET, make_mechanism, private_mean
from primorl.privacy.ledger.history import BudgetExceeded
from primorl.privacy.statement import Statement
from tests.pipeline.conftest import without_groups
from tests.privacy.ledger.ledgers import SECRET, opened

__all__ = ["without_groups"]

PEOPLE = 2000
IDS = [f"p{number}" for number in range(PEOPLE)]
VALUES = torch.tensor([0.3, -0.2]) + 0.1 * torch.randn(
    PEOPLE, 2, generator=torch.Generator().manual_seed(0)
)


def charges(folder: Path) -> list[tuple[str, float | None]]:
    return [
        (charge.state, charge.epsilon)
        for charge in opened(f"sqlite:///{folder}/ledger.db", folder).charges()
    ]


def test_it_states_what_it_paid_for_and_pays_once(tmp_path: Path) -> None:
    mechanism = make_mechanism(PEOPLE)
    mean = private_mean(mechanism, IDS, lambda: VALUES, SECRET, tmp_path)
    noise = (
        mechanism.noise_multiplier * mechanism.clip.sensitivity / mechanism.expected_cohort / 8**0.5
    )
    sampling = float(VALUES.norm(dim=1).max()) / (mechanism.expected_cohort * 8) ** 0.5
    assert float((mean - VALUES.mean(0)).abs().max()) < 6 * (noise + sampling)
    statement = Statement.read(tmp_path)
    assert charges(tmp_path) == [("committed", statement.epsilon)]
    assert statement.sound
    assert 1.9 < (statement.epsilon or 0) <= 2.0
    assert (statement.unit, statement.units, statement.rounds) == ("person", PEOPLE, 8)
    # What was paid for is restored, and anything else is charged or refused.
    reading = lambda: pytest.fail("private numbers were read")  # noqa: E731
    assert torch.equal(private_mean(mechanism, IDS, reading, SECRET, tmp_path), mean)
    with pytest.raises(BudgetExceeded, match=f"privacy.budget is ε {BUDGET.epsilon:g}"):
        private_mean(mechanism, [*IDS[1:], "another"], reading, SECRET, tmp_path)
    assert len(charges(tmp_path)) == 1
