"""The one-run audit accepts the true plan, refutes a plan that lies, and leaves no model behind."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

from primorl.engine.local_update import CohortSource
from primorl.engine.one_run_audit import AttackResult, OneRun, Units, WithCanaries, audit_one_run
from primorl.engine.rounds import Rounds
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Normaliser, flat
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.units import local_training, server_training, training_setup

SHAPE = Architecture(6, 2, 2, (64,), -3.0, 0.5)
CANARIES, REAL, ROUNDS, MULTIPLIER = 100, 20, 60, 25.0


class Silent(Plan):
    """Claims its ε and adds no noise."""

    def release(self, total: list[Tensor]) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple((part / self.expected_cohort).to(torch.float32) for part in total)


def some(units: int, seed: int, steps: int = 12) -> Units:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(units, steps, SHAPE.inputs, generator=generator)
    return Units(inputs, inputs[:, :, : SHAPE.targets].sin())


def plan_of(kind: type[Plan], units: int, multiplier: float, q: float = 0.5) -> Plan:
    clip = EnsembleClip(0.5, "flat", SHAPE.members, len(SHAPE.layers))
    return kind(units, "trajectory", PoissonSampler(q), clip, multiplier, ROUNDS, 1e-5)


def audited(
    kind: type[Plan], multiplier: float, canaries: int = CANARIES, units: int = REAL + CANARIES
) -> OneRun:
    plan, server = plan_of(kind, units, multiplier), server_training(0.5, 0.5, ROUNDS, None)
    setup, public = (
        training_setup(plan, SHAPE, local=local_training(0.05, 4), server=server),
        some(30, 2).flat(),
    )
    return audit_one_run(
        setup, some(REAL, 1), public, canaries=canaries, confidence=0.95, on_round=lambda: None
    )


def test_the_true_plan_is_not_refuted_and_no_model_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = audited(Plan, MULTIPLIER)
    assert found.claimed is not None
    assert 0.4 < found.claimed < 0.8
    assert not found.refutes_the_claim
    assert list(tmp_path.iterdir()) == []
    assert {type(getattr(found, field.name)) for field in fields(found)} <= {
        int,
        float,
        AttackResult,
    }


def test_a_plan_that_forgets_its_noise_is_refuted() -> None:
    """The twin: the same claim, and nothing added to the sum."""
    found = audited(Silent, MULTIPLIER)
    assert found.claimed is not None
    assert found.refutes_the_claim
    assert found.rounds.correct / found.rounds.guesses > 0.85
    assert found.epsilon == max(found.rounds.epsilon, found.rounds.epsilon_fdp)
    assert found.rounds.epsilon > found.claimed


def released(source: CohortSource) -> Tensor:
    """The sum of all clipped updates of one round in which everybody joins."""
    setup = training_setup(
        plan_of(Plan, source.units, 0.0, q=1.0), SHAPE, local=local_training(0.1, 8)
    )
    with Rounds(setup, source, Normaliser.from_public(*some(10, 9).flat())) as rounds:
        return flat(rounds.sum(SHAPE.initial_weights(0)))


@pytest.mark.parametrize("included", [[False] * 3, [True, False, True]])
def test_an_excluded_canary_adds_nothing_to_the_sum(included: list[bool]) -> None:
    """The sum is that of a dataset without it; the twin is a canary that stays in, which moves the sum."""
    real, canaries = some(3, 0, steps=5), some(3, 1, steps=2)
    sums = [
        released(Units(canaries.inputs[i : i + 1], canaries.targets[i : i + 1])) for i in range(3)
    ]
    expected = released(real) + sum(
        part for part, inside in zip(sums, included, strict=True) if inside
    )
    found = released(WithCanaries(real, canaries, torch.tensor(included)))
    torch.testing.assert_close(found, torch.as_tensor(expected), atol=2e-5, rtol=0)
    assert all(float(part.norm()) > 0.1 for part in sums)
