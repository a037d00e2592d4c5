"""Rounds that learn, stop, average and refuse as they should."""

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
import torch

from primorl.engine import public
from primorl.engine.public import PublicEvaluation
from primorl.engine.rounds import Rounds
from primorl.engine.settings import ServerTraining
from primorl.engine.training import Trained, TrainingState, answer_queries, train
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Normaliser
from primorl.model.numerics import flatten
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import GaussianQuery, Mechanism
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.units import local_training, make_units, server_training, training_setup

PLAIN = server_training(0.0, 0.0, 5, None)
SHAPE = Architecture(3, 1, 3, (16, 12), -10.0, 0.5)
SOURCE = make_units(SHAPE, [30, 17, 45] * 40)
# of the same system
PUBLIC = tuple(torch.cat(list(rows)) for rows in vars(make_units(SHAPE, [30] * 8)).values())
STILL: dict[str, Any] = {
    "noise_multiplier": 0.0,
    "sampler": PoissonSampler(1.0),
}  # with one batch, nothing is random


def mechanism_for(**changes: Any) -> Mechanism:
    clip = EnsembleClip(0.5, "flat", SHAPE.members, len(SHAPE.layers))
    return dataclasses.replace(
        Mechanism(SOURCE.units, "trajectory", PoissonSampler(0.5), clip, 0.5, 30, 1e-3), **changes
    )


def run(
    mechanism: Mechanism,
    server: ServerTraining = PLAIN,
    batch_size: int = 16,
    public_split: bool = True,
    **options: Any,
) -> tuple[Trained, list[tuple[int, PublicEvaluation | None]]]:
    told: list[tuple[int, PublicEvaluation | None]] = []
    setup = training_setup(mechanism, SHAPE, local=local_training(0.02, batch_size), server=server)
    if not public_split:  # the same maps, and nothing to evaluate on
        object.__setattr__(setup, "make_normaliser", lambda *_: Normaliser.from_public(*PUBLIC))
    options = {"source": SOURCE, "public": PUBLIC if public_split else None} | options
    trained = train(
        setup, **options, on_round=lambda done, evaluation: told.append((done, evaluation))
    )
    return trained, told


def test_an_empty_cohort_still_moves_the_weights() -> None:
    trained, _ = run(mechanism_for(sampler=PoissonSampler(1e-9), rounds=2))
    start = SHAPE.initial_weights(0)
    assert trained.rounds == 2
    assert all((now != was).all() for now, was in zip(trained.weights, start, strict=True))


def test_momentum_repeats_steps_and_the_average_is_an_unbiased_running_mean() -> None:
    state, server = TrainingState.begin((torch.zeros(1),)), server_training(0.5, 0.5)
    seen = []
    for step in (1.0, 1.0, 2.0):
        state = state.step(torch.tensor([step]), server)
        seen.append((float(state.weights[0]), float(state.average_weights()[0])))
    expected = [(1.0, 1.0), (2.5, (0.5 + 2.5) / 1.5), (5.25, (0.25 + 0.5 * 2.5 + 5.25) / 1.75)]
    assert seen == [pytest.approx(one) for one in expected]


class CrashError(Exception):
    """Stands for a kill: nothing after it runs."""


def killed(mechanism: Mechanism, at: int, **options: Any) -> TrainingState:
    """The last checkpoint of a run that dies when round ``at`` has been announced, if it gets
    there.
    """
    kept: list[TrainingState] = []

    def save_checkpoint(state: TrainingState) -> None:
        kept.append(state)
        if state.started == at:
            raise CrashError

    with suppress(CrashError):
        run(mechanism, save_checkpoint=save_checkpoint, **options)
    return kept[-1]


def test_a_round_is_on_the_disk_before_its_weights_meet_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[TrainingState] = []
    counted: list[int] = []
    summed = Rounds.sum

    def spying(self: Rounds, *arguments: Any, **options: Any) -> list[torch.Tensor]:
        counted.append(kept[-1].started)
        return summed(self, *arguments, **options)

    monkeypatch.setattr(Rounds, "sum", spying)
    run(mechanism_for(rounds=4), save_checkpoint=kept.append)
    assert counted == [1, 2, 3, 4]
    assert (kept[-1].finished, kept[-1].done, kept[-1].started) == (True, 4, 4)


@pytest.mark.parametrize("crashes", [[1], [3, 4, 5, 20], [30, 30]])
def test_however_often_a_run_dies_no_more_rounds_run_than_were_reserved(
    monkeypatch: pytest.MonkeyPatch, crashes: list[int]
) -> None:
    releases = 0
    release = Mechanism.release

    def counting(self: Mechanism, total: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        nonlocal releases
        releases += 1
        return release(self, total)

    monkeypatch.setattr(Mechanism, "release", counting)
    mechanism, state, died = mechanism_for(), None, 0
    for at in crashes:
        state = killed(mechanism, at, state=state)
        died += not state.finished  # a kill when all is done costs no round
    trained, _ = run(mechanism, state=state)
    assert releases + died == mechanism.rounds
    assert trained.rounds == mechanism.rounds - died


def test_a_resumed_run_goes_on_where_the_last_one_was() -> None:
    mechanism = mechanism_for(**STILL, rounds=8)
    server = server_training(0.6, 0.9, 2, None)
    whole, _ = run(dataclasses.replace(mechanism, rounds=7), server, batch_size=64)
    state = killed(mechanism, 5, server=server, batch_size=64)
    resumed, told = run(mechanism, server, state=state, batch_size=64)
    assert resumed.rounds == 7  # round 5 died
    for one, other in zip(resumed.weights, whole.weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert [evaluation.round for _, evaluation in told if evaluation] == [6, 7]


QUERY = GaussianQuery("normaliser", 1.0, 4.0)


def test_a_query_is_written_down_before_its_noise_is_drawn_and_never_asked_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kill while its rows are read has released nothing, and costs nothing."""
    mechanism = mechanism_for(queries=(QUERY,))
    kept: list[TrainingState] = []
    begun = TrainingState.begin(SHAPE.initial_weights(0))
    drawn: list[bool] = []
    answer = Mechanism.answer

    def draw(self: Mechanism, query: GaussianQuery, total: torch.Tensor) -> torch.Tensor:
        drawn.append(kept[-1].lost)
        return answer(self, query, total)

    def total(name: str, answers: Mapping[str, torch.Tensor]) -> torch.Tensor:
        assert (name, answers) == ("normaliser", {})
        assert kept == [], "nothing is spent yet"
        return torch.zeros(3, dtype=torch.int64)

    monkeypatch.setattr(Mechanism, "answer", draw)
    done = answer_queries(mechanism, total, begun, kept.append)
    assert drawn == [True]
    assert not done.lost
    assert kept == [kept[0], done]
    known = answer_queries(mechanism, total, done, kept.append)
    assert (known.asked, list(known.answers)) == (1, ["normaliser"])
    with pytest.raises(ValueError, match="asked and its answer is lost"):
        answer_queries(mechanism, total, kept[0], kept.append)
    assert drawn == [True], "nothing was drawn again"
    assert answer_queries(mechanism_for(), total, begun, kept.append) == begun, "nothing is asked"


def test_answers_that_are_known_stay_where_a_run_goes_on_with_the_next_query() -> None:
    queries = tuple(GaussianQuery(name, 1.0, 4.0) for name in ("scales", "finer_scales"))
    begun = TrainingState.begin(SHAPE.initial_weights(0))
    first = torch.ones(2)
    half = dataclasses.replace(begun, asked=1, answers={"scales": first})
    asked: list[str] = []

    def total(name: str, answers: Mapping[str, torch.Tensor]) -> torch.Tensor:
        asked.append(name)
        return torch.zeros(2, dtype=torch.int64)

    done = answer_queries(mechanism_for(queries=queries), total, half)
    assert asked == ["finer_scales"]
    assert done.answers["scales"] is first


def test_restored_answers_stand_in_the_order_of_the_plan() -> None:
    """Other processes split what they are sent by that order; a file of tensors keeps none."""
    queries = tuple(GaussianQuery(name, 1.0, 4.0) for name in ("scales", "finer_scales"))
    answers = {query.what: torch.full((2,), place) for place, query in enumerate(queries)}
    begun = TrainingState.begin(SHAPE.initial_weights(0))
    restored = dataclasses.replace(begun, asked=2, answers=dict(reversed(answers.items())))
    known = answer_queries(
        mechanism_for(queries=queries), lambda name, so_far: so_far[name], restored
    )
    assert list(known.answers) == list(answers) != list(restored.answers)


def test_a_finished_run_needs_no_data() -> None:
    kept, mechanism = list[TrainingState](), mechanism_for(rounds=3)
    trained, _ = run(mechanism, save_checkpoint=kept.append)
    again, _ = run(mechanism, source=None, state=kept[-1])
    assert all(torch.equal(a, b) for a, b in zip(trained.weights, again.weights, strict=True))
    with pytest.raises(ValueError, match="no units to run them on"):
        run(mechanism, source=None, state=kept[0])


def test_early_stopping_keeps_the_best_weights_also_over_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[torch.Tensor, ...]] = []

    def evaluate(self: object, weights: tuple[torch.Tensor, ...], after: int) -> PublicEvaluation:
        seen.append(weights)
        return PublicEvaluation(after, [3.0, 1.0, 2.0, 2.5, 9.0][len(seen) - 1], (0.0,))

    monkeypatch.setattr(public.PublicEvaluator, "__call__", evaluate)
    server = server_training(patience=2)
    trained, _ = run(mechanism_for(), server)
    assert trained.rounds == 20
    assert all(map(torch.equal, trained.weights, seen[1]))
    seen.clear()
    state = killed(mechanism_for(), 13, server=server)
    trained, _ = run(mechanism_for(), server, state=state)
    assert trained.rounds == 20
    assert torch.equal(flatten(trained.weights), state.best)
