"""The one-run audit accepts the true plan, refutes a plan that lies, and leaves no model behind."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

from primorl.attacks import one_run
from primorl.attacks.one_run import OneRun, audit_one_run, canary_trajectories
from primorl.attacks.units import Units
from primorl.attacks.victims import ON_ONE_CORE
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.project.errors import PipelineError
from tests.plans import ensemble_plan
from tests.units import local_training, server_training, training_setup

SHAPE = Architecture(6, 2, 2, (64,), -3.0, 0.5)
CANARIES, REAL, ROUNDS, MULTIPLIER = 100, 20, 60, 25.0


class Silent(Plan):
    """Claims its ε and adds no noise."""

    def release(self, total: list[Tensor]) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple((part / self.expected_cohort).to(torch.float32) for part in total)


def real(units: int, seed: int) -> Units:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(units, 12, SHAPE.inputs, generator=generator)
    return Units(inputs, inputs[:, :, : SHAPE.targets].sin())


def audited(kind: type[Plan], multiplier: float) -> OneRun:
    plan = ensemble_plan(
        kind,
        units=REAL + CANARIES,
        unit="trajectory",
        sampling_probability=0.5,
        noise_multiplier=multiplier,
        clipping_norm=0.5,
        clipping="flat",
        rounds=ROUNDS,
        delta=1e-5,
        members=SHAPE.members,
        layers=len(SHAPE.layers),
    )
    setup = training_setup(
        plan,
        SHAPE,
        local=local_training(learning_rate=0.05, batch_size=4),
        server=server_training(0.5, 0.5, ROUNDS, None),
        execution=ON_ONE_CORE,
    )
    public = real(30, 2).flat()
    return audit_one_run(setup, real(REAL, 1), public, canaries=CANARIES, confidence=0.95, on_round=lambda: None)


def test_the_true_plan_is_not_refuted() -> None:
    found = audited(Plan, MULTIPLIER)
    assert found.claimed is not None
    assert 0.4 < found.claimed < 0.8
    assert not found.refutes_the_claim


def test_a_plan_that_forgets_its_noise_is_refuted() -> None:
    """The twin: the same claim, and nothing added to the sum."""
    found = audited(Silent, MULTIPLIER)
    assert found.refutes_the_claim
    assert found.rounds.correct / found.rounds.guesses > 0.85
    assert found.epsilon == max(found.rounds.epsilon, found.rounds.epsilon_fdp)
    assert found.rounds.epsilon > found.claimed  # type: ignore[operator]


def test_nothing_is_claimed_of_a_plan_without_noise() -> None:
    found = audited(Plan, 0.0)
    assert found.claimed is None
    assert not found.refutes_the_claim
    assert found.epsilon > 1


def test_no_model_leaves_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as a file nor in what is returned, which is numbers."""
    monkeypatch.chdir(tmp_path)
    found = audited(Plan, MULTIPLIER)
    assert list(tmp_path.iterdir()) == []
    values = [getattr(found, field.name) for field in fields(found)]
    assert {type(value) for value in values} <= {int, float, one_run.View}


def test_canaries_are_far_from_data_and_all_rows_are_one() -> None:
    weights = SHAPE.initial_weights(0)
    normaliser = Normaliser.from_public(*real(30, 2).flat())
    canaries = canary_trajectories(50, 4, weights, SHAPE, normaliser)
    inputs = normaliser.inputs(canaries.inputs)
    torch.testing.assert_close(inputs.norm(dim=2), torch.full((50, 4), 10.0), atol=1e-3, rtol=0)
    assert bool((canaries.inputs == canaries.inputs[:, :1]).all() & (canaries.targets == canaries.targets[:, :1]).all())
    directions = inputs[:, 0] / 10
    cosines = (directions @ directions.T)[~torch.eye(50, dtype=torch.bool)]
    assert float(cosines.max()) < 0.98  # no two are the same


def test_too_few_or_many_canaries_and_another_k_are_refused() -> None:
    plan = Plan(
        9, "trajectory", PoissonSampler(0.5), EnsembleClip(0.5, "flat", SHAPE.members, len(SHAPE.layers)), 1.0, 2, 1e-5
    )
    local, server = local_training(0.05, 4), server_training(0.0, 0.0, 2, None)

    def audit(canaries: int) -> None:
        setup = training_setup(plan, SHAPE, local=local, server=server, execution=ON_ONE_CORE)
        public = real(30, 2).flat()
        audit_one_run(setup, real(2, 1), public, canaries=canaries, confidence=0.95, on_round=lambda: None)

    with pytest.raises(PipelineError, match="found 7 canaries, allowed are 8 to 50000"):
        audit(7)
    with pytest.raises(PipelineError, match="found 50001 canaries"):
        audit(50_001)
    with pytest.raises(ValueError, match="number of private units differs"):
        audit(8)
