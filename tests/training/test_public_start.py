"""Weights from the public split fit it, stop before they overfit, and are the same every time."""

import dataclasses

import pytest
import torch

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training import pooled as module
from primorl.training.pooled import Units, public_start
from primorl.training.public_evaluation import PublicEvaluator
from primorl.training.settings import LEAST_UNITS
from tests.units import Ragged, make_units, training_setup


@pytest.fixture
def small(shape: Architecture) -> Architecture:
    return dataclasses.replace(shape, members=2, hidden=(16,))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer and larger steps."""
    monkeypatch.setattr(module, "_POOLED", dataclasses.replace(module._POOLED, max_epochs=20, learning_rate=0.02))


def joined(units: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat(list(units.inputs)), torch.cat(list(units.targets))


def test_it_predicts_units_that_it_has_not_seen_and_noise_it_leaves_alone(small: Architecture) -> None:
    """Twin: where nothing can be learned, it must stop at once, and is hardly worse than a constant elsewhere."""
    learnable = make_units(small, [25] * 24)
    generator = torch.Generator().manual_seed(1)
    noise = Ragged(learnable.inputs, [torch.randn(t.shape, generator=generator) for t in learnable.targets])
    gains = []
    for units in (learnable, noise):
        seen, others = (Units(units, part) for part in torch.arange(24).split([16, 8]))
        normaliser = Normaliser.from_public(*joined(units))
        judge = PublicEvaluator(small, normaliser, others.rows())
        losses = judge.compare(small.initial_weights(0), public_start(small, normaliser, seen, 0, 0.0))
        gains.append(losses.constant - losses.final)
    assert gains[0] > 1.0
    assert -0.3 < gains[1] < 0.2


def test_the_epochs_are_those_at_which_held_out_units_were_predicted_best(
    small: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First with one unit in four held out, then on all units for as many epochs as were best."""
    units, calls, train = make_units(small, [20] * 8), [], module.train_pooled

    def spied(*arguments, **options):  # type: ignore[no-untyped-def]
        trained = train(*arguments, **options)
        calls.append((len(arguments[1][0]), arguments[2], options["pooled"].max_epochs, trained.evaluations))
        return trained

    monkeypatch.setattr(module, "train_pooled", spied)
    public_start(small, Normaliser.from_public(*joined(units)), units, 0, 0.0)
    (some, held_out, _, seen), (every, nobody, epochs, _) = calls
    assert (some, len(held_out[0]), every, nobody) == (6 * 20, 2 * 20, 8 * 20, None)
    losses = [evaluation.loss for evaluation in seen]
    assert losses[epochs - 1] == min(losses)


def test_it_is_the_same_every_time_and_another_with_another_seed(small: Architecture) -> None:
    units = make_units(small, [10] * LEAST_UNITS)
    normaliser = Normaliser.from_public(*joined(units))
    one, again, other = (public_start(small, normaliser, units, seed, 0.0) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    few = make_units(small, [10] * (LEAST_UNITS - 1))
    with pytest.raises(ValueError, match=f"needs {LEAST_UNITS} of them, found {LEAST_UNITS - 1}"):
        public_start(small, normaliser, few, 0, 0.0)


def test_rounds_begin_with_it_where_there_is_one(small: Architecture) -> None:
    clip = EnsembleClip(1.0, "flat", small.members, len(small.layers))
    plan = Plan(4, "trajectory", PoissonSampler(1.0), clip, 1.0, 1, 1e-3)
    setup, start = training_setup(plan, small), small.initial_weights(7)
    assert torch.equal(setup.first_weights()[0], setup.initial_weights()[0])
    begun = dataclasses.replace(setup, start=start)
    assert begun.first_weights() is start
    assert begun.digest != setup.digest, "processes agree on it"
