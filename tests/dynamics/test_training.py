"""Rounds that learn, stop, average and refuse as they should."""

import dataclasses
import math

import pytest
import torch

from pipeline.dynamics import training
from pipeline.dynamics.baseline import PooledTraining, train_pooled
from pipeline.dynamics.ensemble import Architecture
from pipeline.dynamics.local_update import LocalTraining
from pipeline.dynamics.training import Execution, Look, ServerTraining, Trained, train
from pipeline.privacy.plan import Plan
from tests.dynamics.conftest import Ragged, make_units

CPU = torch.device("cpu")
PLAIN = ServerTraining(momentum=0.0, averaging=0.0, look_every=5, patience=None)


def plan_for(shape: Architecture, source: Ragged, **changes: object) -> Plan:
    plan = Plan(source.units, "trajectory", 0.5, 0.5, 0.5, "flat", 30, 1e-3, shape.members, len(shape.layers))
    return dataclasses.replace(plan, **changes)  # type: ignore[arg-type]


def run(
    shape: Architecture, source: Ragged, plan: Plan, server: ServerTraining = PLAIN
) -> tuple[Trained, list[tuple[int, Look | None]]]:
    public = make_units(shape, [30] * 8, seed=0)  # the same system: its mixing is drawn first from the seed
    told: list[tuple[int, Look | None]] = []
    trained, _ = train(
        plan,
        shape,
        source,
        (torch.cat(list(public.inputs)), torch.cat(list(public.targets))),
        local=LocalTraining(0.02, 16, 1, 0.0),
        server=server,
        max_transitions=None,
        seed=0,
        execution=Execution(CPU, 1 << 20),
        on_round=lambda done, look: told.append((done, look)),
    )
    return trained, told


@pytest.fixture
def source(shape: Architecture) -> Ragged:
    return make_units(shape, [30, 17, 45] * 40, seed=0)


def test_private_rounds_learn(shape: Architecture, source: Ragged) -> None:
    """With noise that 120 units can bear, the public loss falls round after round."""
    trained, told = run(shape, source, plan_for(shape, source, noise_multiplier=0.1))
    assert [done for done, look in told if look] == [5, 10, 15, 20, 25, 30]
    assert len(told) == trained.rounds == 30
    assert trained.looks[-1].loss < trained.looks[0].loss - 0.3
    assert all(math.isfinite(error) for error in trained.looks[-1].error)


def test_noise_beyond_bearing_ruins_the_model(shape: Architecture, source: Ragged) -> None:
    """The twin of learning: the noise is really there."""
    quiet, _ = run(shape, source, plan_for(shape, source, noise_multiplier=0.1))
    loud, _ = run(shape, source, plan_for(shape, source, noise_multiplier=500.0))
    assert loud.looks[-1].loss > quiet.looks[-1].loss + 1


def test_an_empty_cohort_still_moves_the_weights(shape: Architecture, source: Ragged) -> None:
    """q so small that nobody comes: the round releases noise and training goes on."""
    trained, _ = run(shape, source, plan_for(shape, source, sampling_probability=1e-9, rounds=2))
    start = shape.initial_weights(0)
    assert trained.rounds == 2
    assert all((now != was).all() for now, was in zip(trained.weights, start, strict=True))


def test_early_stopping_keeps_the_best_look(
    shape: Architecture, source: Ragged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two looks without a better public loss end training; the weights are those of the best look."""
    losses = iter([3.0, 1.0, 2.0, 2.5, 9.0])
    seen: list[tuple[torch.Tensor, ...]] = []

    def look(self: object, weights: tuple[torch.Tensor, ...], after: int) -> Look:
        seen.append(weights)
        return Look(after, next(losses), (0.0,))

    monkeypatch.setattr(training.PublicLook, "__call__", look)
    trained, _ = run(shape, source, plan_for(shape, source), dataclasses.replace(PLAIN, patience=2))
    assert trained.rounds == 20
    assert trained.weights is seen[1]


def test_averaging_is_the_unbiased_running_mean() -> None:
    average = training._Average(0.5)
    values = [1.0, 2.0, 4.0]
    means = [float(average.update((torch.tensor([v]),))[0]) for v in values]
    assert means == pytest.approx([1.0, (0.5 * 1 + 2) / 1.5, (0.25 * 1 + 0.5 * 2 + 4) / 1.75])


def test_momentum_repeats_released_steps(shape: Architecture, source: Ragged, monkeypatch: pytest.MonkeyPatch) -> None:
    """With releases all equal to g, two rounds at momentum 0.5 move by g + 1.5 g."""
    monkeypatch.setattr(Plan, "release", lambda self, total: tuple(torch.ones_like(t).float() for t in total))
    trained, _ = run(shape, source, plan_for(shape, source, rounds=2), dataclasses.replace(PLAIN, momentum=0.5))
    for now, was in zip(trained.weights, shape.initial_weights(0), strict=True):
        torch.testing.assert_close(now - was, torch.full_like(was, 2.5))


def test_a_source_of_another_size_is_refused(shape: Architecture, source: Ragged) -> None:
    """The denominator and ε are the plan's: they must be about these units."""
    with pytest.raises(ValueError, match="differs from the one the plan declares"):
        run(shape, source, plan_for(shape, source, units=source.units + 1))


def test_the_baseline_learns_and_keeps_its_best_epoch(shape: Architecture, source: Ragged) -> None:
    """MOPO's ensemble, on pooled transitions."""
    public = make_units(shape, [30] * 8, seed=0)
    private = torch.cat(list(source.inputs)), torch.cat(list(source.targets))
    looks: list[Look] = []
    trained, _ = train_pooled(
        shape,
        private,
        (torch.cat(list(public.inputs)), torch.cat(list(public.targets))),
        pooled=PooledTraining(batch_size=32, learning_rate=3e-3, weight_decay=0.0, max_epochs=4, patience=4),
        seed=0,
        device=CPU,
        on_epoch=looks.append,
    )
    assert looks == list(trained.looks)
    assert looks[-1].loss < looks[0].loss
    assert not any(w.requires_grad for w in trained.weights)
