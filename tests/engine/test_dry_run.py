"""Weights from public units fit them and stop in time; a dry run tells what noise leaves of what settings learn."""

import dataclasses
from typing import Any

import pytest
import torch

from primorl.engine import rehearsal
from primorl.engine import rehearsal as module
from primorl.engine.rehearsal import DryRun
from primorl.engine.settings import LEAST_OF_A_DRY_RUN
from primorl.engine.setup import TrainingSetup
from primorl.model.architecture import Architecture
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.units import Ragged, local_training, make_units, server_training, training_setup


@pytest.fixture
def small(shape: Architecture) -> Architecture:
    return dataclasses.replace(shape, members=2, hidden=(8,), log_variance_low=-4.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and large steps from the public split."""
    few = dataclasses.replace(rehearsal._POOLED, max_epochs=12, learning_rate=0.02)
    monkeypatch.setattr(rehearsal, "_POOLED", few)


def with_flags(shape: Architecture, count: int = 24) -> Ragged:
    """Units as a store has them: the last column of a target is the flag of a termination."""
    units = make_units(shape, [30] * count)
    return dataclasses.replace(
        units, targets=[torch.cat([t, torch.zeros(len(t), 1)], dim=1) for t in units.targets]
    )


@pytest.fixture
def dry_run(small: Architecture) -> DryRun:
    return DryRun(with_flags(small), flag=False)


def setup_for(
    small: Architecture, units: int = 500, rate: float = 0.05, **changes: Any
) -> TrainingSetup:
    clip = EnsembleClip(2.0, "flat", small.members, len(small.layers))
    plan = dataclasses.replace(
        Plan(units, "trajectory", PoissonSampler(0.5), clip, 4.0, 25, 1e-3), **changes
    )
    return training_setup(plan, small, local=local_training(rate), server=server_training(0.6, 0.9))


def test_more_noise_is_worse_and_none_is_what_the_settings_could_learn(
    small: Architecture, dry_run: DryRun
) -> None:
    setup = setup_for(small)
    for start in (False, True):
        losses = [
            dry_run.outcome(setup, from_public=start, noise=noise).loss
            for noise in (0.0, 2.0, 20.0)
        ]
        assert losses == sorted(losses)
        assert losses[2] > losses[0] + 0.5
    outcome = dry_run.outcome(setup, from_public=False, noise=0.0)
    assert outcome.loss < outcome.constant < outcome.start
    with pytest.raises(
        ValueError, match=f"needs {LEAST_OF_A_DRY_RUN} public units, found {LEAST_OF_A_DRY_RUN - 1}"
    ):
        DryRun(with_flags(small, LEAST_OF_A_DRY_RUN - 1), flag=False)


def test_the_noise_is_that_of_the_private_mean(
    small: Architecture, dry_run: DryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed, train = [], module.train

    def spied(setup: TrainingSetup, *arguments: Any) -> Any:
        rehearsed.append(setup)
        return train(setup, *arguments)

    monkeypatch.setattr(module, "train", spied)
    setup = setup_for(small)
    dry_run.outcome(setup, from_public=False)
    dry_run.outcome(setup_for(small, units=1000), from_public=False)
    dry_run.outcome(setup, from_public=False, noise=0.5)
    shares = [once.plan.noise_multiplier / once.plan.expected_cohort for once in rehearsed]
    whole = setup.plan.noise_multiplier / setup.plan.expected_cohort
    assert shares == pytest.approx([whole, whole / 2, whole / 2])
    assert {once.plan.clip for once in rehearsed} == {setup.plan.clip}
    assert {(once.plan.rounds, once.plan.units) for once in rehearsed} == {(setup.plan.rounds, 12)}


def test_the_units_that_judge_made_no_start(small: Architecture) -> None:
    units = with_flags(small)
    first = module.shuffled(units)[::2].tolist()
    targets = [-t if unit in first else t for unit, t in enumerate(units.targets)]
    spoilt = DryRun(dataclasses.replace(units, targets=targets), flag=False)
    outcome = spoilt.outcome(setup_for(small), from_public=True)
    assert outcome.start > outcome.constant + 0.5
    whole = DryRun(units, flag=False).outcome(setup_for(small), from_public=True)
    assert whole.start < whole.constant - 0.5
