"""Two real processes release what one would: the same sum, the same coins, one draw of noise; and they fail cleanly."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch import distributed as dist

from primorl.base.errors import PipelineError
from primorl.engine.distributed import (
    PREPARATION,
    DistributedRounds,
    Group,
    _Do,
    _tell,
    check_coverage,
    distributed_total,
)
from primorl.engine.setup import TrainingSetup
from primorl.engine.training import TrainingState, train
from primorl.model.ensemble import flat
from primorl.paid import compute
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import SeededEntropy
from tests.engine import crew
from tests.engine.crew import SHAPE
from tests.units import server_training, training_setup

COMMAND = [sys.executable, "-m", "tests.engine.crew"]
WEIGHTS = SHAPE.initial_weights(0)
PATIENCE = timedelta(seconds=60)  # a test that fails may leave the other one waiting


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """This process and a second one, for all tests of this file that leave it alive."""
    with compute.started(2, COMMAND) as watch, Group(watch=watch, silence=PATIENCE) as both:
        both._limit = PATIENCE.total_seconds()
        yield both


class Shared:
    """Rounds that the worker makes too, in the scenario of this number."""

    def __init__(self, group: Group, scenario: int, own: object) -> None:
        self.group, self.scenario = group, scenario
        self.rounds = DistributedRounds(group, own, crew.normaliser())  # type: ignore[arg-type]

    def __enter__(self) -> DistributedRounds:
        _tell(self.group, self.scenario)  # type: ignore[arg-type]
        return self.rounds.__enter__()

    def __exit__(self, *exception: object) -> None:
        self.rounds.__exit__(None, None, None)
        _tell(self.group, _Do.STOP)


def first(plan: Plan) -> Plan:
    return plan.of_process(0, 2)


def test_the_sum_of_two_shards_is_the_sum_of_one_process(group: Group) -> None:
    """Everybody joins, nothing is random. The twin: the first process's own part is another sum."""
    with crew.rounds(crew.plan(), crew.normaliser()) as alone:
        expected = alone.sum(WEIGHTS)
    with Shared(group, crew.SUMS, crew.rounds(first(crew.plan()), crew.normaliser())) as shared:
        sums = [shared.sum(WEIGHTS), shared.sum(WEIGHTS)]
        own = shared._own.sum(WEIGHTS)
    scale = float(flat(expected).abs().max())
    for found in sums:
        assert all(part.dtype == torch.float64 for part in found)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * scale)
    assert float((flat(own) - flat(expected)).abs().max()) > 0.1 * scale


def test_queries_are_summed_exactly_over_all_processes(group: Group) -> None:
    numbers, ones = crew.Queried(first(crew.plan()), SHAPE).queries({}).values()
    _tell(group, crew.SUMS)  # type: ignore[arg-type]
    assert distributed_total(group, 1, ones, None).tolist() == [[2, 2, 2], [2, 2, 2]]
    assert distributed_total(group, 0, numbers, None).tolist() == [sum(range(7))]
    _tell(group, _Do.STOP)


def fair(joined: np.ndarray, q: float) -> bool:
    """Whether ``[rounds, K]`` coins may be independent of probability q: each unit's, each pair's and all together."""
    rounds, units = joined.shape
    law = stats.binom(rounds * units, q)
    count = joined.sum()
    mean = 2 * min(law.cdf(count), law.sf(count - 1)) > 1e-6
    by_unit = ((joined.sum(0) - rounds * q) ** 2).sum() / (rounds * q * (1 - q))
    sizes = ((joined.sum(1) - units * q) ** 2).sum() / (units * q * (1 - q))
    chances = [
        stats.chi2(units).sf(by_unit),
        stats.chi2(rounds).sf(sizes),
        stats.chi2(rounds).cdf(sizes),
    ]
    return bool(mean and set(np.unique(joined)) <= {0.0, 1.0} and min(chances) > 1e-6)


def test_every_unit_tosses_one_coin_of_its_own_wherever_it_is(group: Group) -> None:
    """Twins: coins that two processes share, units that two processes hold, a coin of another probability."""
    plan = first(crew.plan(units=crew.COIN_UNITS, sampling_probability=crew.COIN_Q))
    with Shared(group, crew.COINS, crew.Coins(plan)) as shared:
        joined = torch.stack([shared.sum(WEIGHTS)[0] for _ in range(400)]).numpy()
    assert fair(joined, crew.COIN_Q)
    copied = joined.copy()
    copied[:, 1::2] = joined[:, ::2]
    doubled = joined + np.roll(joined, 1, axis=0)
    assert not fair(copied, crew.COIN_Q)
    assert not fair(doubled, crew.COIN_Q)
    assert not fair(joined, crew.COIN_Q + 0.03)


@pytest.mark.parametrize(("scenario", "once"), [(crew.NOTHING, True), (crew.NOISE, False)])
def test_noise_is_drawn_once(group: Group, scenario: int, once: bool) -> None:
    """Nobody moves, so what is released is noise: of σ = zC/(qK). The twin's second process adds its own too."""
    plan = first(crew.plan(**crew.NOISY))
    with Shared(group, scenario, crew.Still(plan)) as shared:
        noise = (
            torch.stack([flat(plan.release(shared.sum(WEIGHTS))) for _ in range(60)])
            .double()
            .numpy()
        )
    sigma = 2.0 * 0.5 / (0.5 * 7)
    law, total = stats.chi2(noise.size), float((noise / sigma).__pow__(2).sum())
    assert bool(2 * min(law.cdf(total), law.sf(total)) > 1e-6) is once
    if not once:
        assert 1.9 < total / noise.size < 2.1


def test_only_released_things_leave_the_first_process(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Tensor] = []
    kept: list[tuple[int, TrainingState]] = []
    broadcast = dist.broadcast

    def spying(tensor: Tensor, src: int, **options: Any) -> None:
        sent.append(tensor.clone())
        broadcast(tensor, src, **options)

    monkeypatch.setattr(dist, "broadcast", spying)
    plan = first(crew.plan())
    _tell(group, crew.SUMS)  # type: ignore[arg-type]
    monkeypatch.setattr(TrainingSetup, "make_normaliser", lambda *_: crew.normaliser())
    setup = training_setup(plan, SHAPE, local=crew.LOCAL, server=server_training(0.5, 0.9))
    save = lambda state: kept.append((len(sent), state))  # noqa: E731
    trained = train(setup, crew.held(plan), None, save_checkpoint=save, group=group)
    _tell(group, _Do.STOP)
    assert trained.rounds == plan.rounds
    commands = [tensor.tolist() for tensor in sent if not tensor.is_floating_point()]
    rounds = [[_Do.ROUND, 0]] * plan.rounds
    assert commands == [[crew.SUMS, 0], [_Do.BEGIN, 0], *rounds, [_Do.STOP, 0]]
    normaliser, *weights = [tensor for tensor in sent if tensor.is_floating_point()]
    assert torch.equal(
        normaliser,
        torch.cat([part for part in vars(crew.normaliser()).values() if isinstance(part, Tensor)]),
    )
    assert len(weights) == plan.rounds
    for sent_then, released in zip(weights, [state for _, state in kept[:-1]], strict=True):
        assert torch.equal(sent_then, flat(released.weights))
    for number, (before, state) in enumerate(kept[:-1]):
        assert state.started == number + 1
        assert sum(tensor.is_floating_point() for tensor in sent[:before]) == 1 + number, (
            "kept before it was sent"
        )


def test_units_that_nobody_or_two_hold_are_refused(group: Group) -> None:
    own = torch.tensor([0, 2, 4, 6])
    group._limit = PREPARATION.total_seconds()
    _tell(group, crew.TWICE)  # type: ignore[arg-type]
    assert group._limit == PREPARATION.total_seconds()
    check_coverage(group, 7, own)
    assert group._limit == PATIENCE.total_seconds()
    for _ in ("twice", "missing"):
        with pytest.raises(PipelineError, match="do not hold each private unit exactly once"):
            check_coverage(group, 7, own)


def test_a_plan_of_one_of_several_processes_keeps_the_denominator_and_releases_in_one_place_only() -> (
    None
):
    whole = crew.plan(noise_multiplier=1.0, sampling_probability=0.5)
    parts = [whole.of_process(process, 3) for process in range(3)]
    assert sorted(unit for part in parts for unit in part.local_units) == list(range(7))
    assert {part.expected_cohort for part in parts} == {3.5}
    assert {str(part.event) for part in parts} == {str(whole.event)}
    total = [torch.zeros(2, 2, dtype=torch.float64)]
    assert len(parts[0].release(total)) == 1
    for part in parts[1:]:
        with pytest.raises(ValueError, match="the first process releases"):
            part.release(total)
    with pytest.raises(ValueError, match="share their coins"):
        replace(whole, entropy=SeededEntropy(0)).of_process(0, 2)
    with pytest.raises(ValueError, match="there is no process 3 of 3"):
        whole.of_process(3, 3)
    setup = training_setup(first(crew.plan()), SHAPE, local=crew.LOCAL)
    for source, says in (
        (crew.held(setup.plan), "another number of processes"),
        (crew.units(), "differs from"),
    ):
        with pytest.raises(ValueError, match=says):
            train(setup, source, None)
