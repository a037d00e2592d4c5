"""Cohorts read ahead: the same sums, cohorts as independent as before, and nothing left of what was not used."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.entropy import Entropy, SeededEntropy, SystemEntropy
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.project.errors import PipelineError
from primorl.training import cuda_graph as captured
from primorl.training import rounds
from primorl.training.cohort import local_batches
from primorl.training.local_update import LocalBatches, sum_of_updates
from primorl.training.rounds import Rounds
from primorl.training.settings import Execution
from tests.units import Ragged, local_training, make_units, training_setup

WHOLE = local_training(learning_rate=0.05, batch_size=64)  # one batch: no order matters
LENGTHS = [40, 1, 16, 17, 15, 33, 8, 20, 3]


def rounds_of(
    shape: Architecture,
    source: Ragged,
    identity: Normaliser,
    *,
    q: float = 0.5,
    chunk_bytes: int = 1000,
    entropy: Entropy | None = None,
    read_ahead: bool = True,
) -> Rounds:
    """Rounds in chunks of one unit, read ahead, unless told otherwise."""
    layers = len(shape.layers)
    entropy = entropy or SystemEntropy()
    plan = Plan(
        source.units,
        "trajectory",
        PoissonSampler(q),
        EnsembleClip(0.2, "flat", shape.members, layers),
        1.0,
        9,
        1e-5,
        entropy=entropy,
    )
    execution = Execution(torch.device("cpu"), chunk_bytes, read_ahead)
    return Rounds(training_setup(plan, shape, local=WHOLE, execution=execution), source, identity)


def these_cohorts(monkeypatch: pytest.MonkeyPatch, cohorts: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    """The next cohorts to be drawn; what is left of the iterator was not."""
    left = iter(cohorts)
    monkeypatch.setattr(Plan, "cohort", lambda plan: torch.tensor(next(left), dtype=torch.int64))
    return left


def marked(units: int) -> Ragged:
    """Units whose rows all hold the unit's number: whoever takes part can be read off a batch."""
    rows = [torch.full((3, 4), float(unit)) for unit in range(units)]
    return Ragged(rows, rows)


def participants(monkeypatch: pytest.MonkeyPatch, training: Rounds, weights: Any, count: int) -> list[list[int]]:
    """Who took part in each of ``count`` rounds."""
    seen: list[list[int]] = []

    def summing(start: Any, batches: LocalBatches, *rest: Any) -> list[Tensor]:
        held = batches.weights[0].any(dim=1)  # a chunk is filled up with units without rows
        seen[-1] += batches.inputs[0, held, 0, 0].int().tolist()
        return [torch.zeros_like(w, dtype=torch.float64) for w in start]

    monkeypatch.setattr(captured, "sum_of_updates", summing)
    with training:
        for i in range(count):
            seen.append([])
            training.sum(weights, last=i == count - 1)
    return [sorted(units) for units in seen]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("cohort")]


@pytest.mark.parametrize("chunk_bytes", [1000, 300_000, 1 << 24])
def test_reading_ahead_does_not_change_a_sum(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """The same cohorts, empty ones among them: the same sums, in chunks of one unit, of a few and of all."""
    source, weights = make_units(shape, LENGTHS), shape.initial_weights(0)
    cohorts = [[0, 3, 8], [], [1], [0, 1, 2, 3, 4, 5, 6, 7, 8], []]
    training = rounds_of(shape, source, identity, chunk_bytes=chunk_bytes)
    these_cohorts(monkeypatch, cohorts)
    plain = [training.sum(weights) for _ in cohorts]
    left = these_cohorts(monkeypatch, cohorts)
    with training:
        ahead = [training.sum(weights, last=i == len(cohorts) - 1) for i in range(len(cohorts))]
    assert list(left) == []
    for one, other in zip(plain, ahead, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert not any(part.any() for part in ahead[1])
    assert any(part.any() for part in ahead[2])


def test_each_cohort_is_summed_whole_and_once_in_the_round_it_was_drawn_for(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No chunk is dropped, none counts twice, none slips into the next round."""
    drawn: list[list[int]] = []
    cohort = Plan.cohort

    def spying(plan: Plan) -> Tensor:
        units = cohort(plan)
        drawn.append(units.tolist())
        return units

    monkeypatch.setattr(Plan, "cohort", spying)
    training = rounds_of(shape, marked(7), identity, q=0.3)
    took_part = participants(monkeypatch, training, shape.initial_weights(0), 60)
    assert [] in took_part, "an empty cohort was among them"
    assert took_part == [sorted(units) for units in drawn]


def independent(took_part: list[list[int]], units: int, q: float) -> bool:
    """Whether inclusions have probability q, and in successive rounds q², within five standard deviations."""
    joined = torch.zeros(len(took_part), units, dtype=torch.float64)
    for i, present in enumerate(took_part):
        joined[i, present] = 1.0
    both = joined[1:] * joined[:-1]
    pairs = ((joined, q, 1.0), (both, q * q, 1.5))  # neighbouring pairs share a round: a wider spread
    return all(
        abs(float(seen.mean()) - p) < 5 * wider * (p * (1 - p) / seen.numel()) ** 0.5 for seen, p, wider in pairs
    )


def test_cohorts_of_successive_rounds_are_independent(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the accountant assumes: a coin for every unit and round; its twin below draws once for two rounds."""
    training = rounds_of(shape, marked(40), identity, q=0.3, chunk_bytes=1 << 24)
    assert independent(participants(monkeypatch, training, shape.initial_weights(0), 300), 40, 0.3)


def test_a_cohort_used_twice_would_be_noticed(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin that must fail."""
    drawn: list[Tensor] = []
    cohort = Plan.cohort

    def twice(plan: Plan) -> Tensor:
        drawn.append(cohort(plan) if len(drawn) % 2 == 0 else drawn[-1])
        return drawn[-1]

    monkeypatch.setattr(Plan, "cohort", twice)
    training = rounds_of(shape, marked(40), identity, q=0.3, chunk_bytes=1 << 24)
    assert not independent(participants(monkeypatch, training, shape.initial_weights(0), 300), 40, 0.3)


def test_rows_read_ahead_and_not_used_influence_nothing(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training stops with unit 1 read ahead: neither that round's sum nor one taken up later knows of it."""
    source, weights = make_units(shape, [20, 30, 20]), shape.initial_weights(0)
    with_other = Ragged(
        [source.inputs[0], 50 * source.inputs[1], source.inputs[2]], [source.targets[0], *source.targets[1:]]
    )
    sums = []
    for units in (source, with_other):
        left = these_cohorts(monkeypatch, [[0], [1], [2]])
        training = rounds_of(shape, units, identity)
        with training:
            first = training.sum(weights)
            training._reader.submit(int).result()  # type: ignore[union-attr]  # all before it has been read
        with training:
            after = training.sum(weights, last=True)
        assert list(left) == [], "a cohort was read ahead, dropped, and another one drawn"
        sums.append([*first, *after])
    for a, b in zip(*sums, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_no_cohort_is_drawn_after_the_last_round(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's rows are read for a round that will not be."""
    left = these_cohorts(monkeypatch, [[0], [1], [2]])
    with rounds_of(shape, make_units(shape, LENGTHS), identity) as training:
        training.sum(shape.initial_weights(0))
        training.sum(shape.initial_weights(0), last=True)
    assert list(left) == [[2]]


def test_an_unreadable_row_group_fails_the_round_that_needs_it(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found out while the round before computes; that round still gives its sum, and the thread is gone afterwards."""

    class Corrupt(Ragged):
        def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
            if 5 in units:
                raise PipelineError("part-0.parquet: corrupt")
            return super().transitions(units, steps)

    good = make_units(shape, LENGTHS)
    for bad in ([5], [0, 5, 8]):  # the first chunk of its cohort, which is read a round early, and a later one
        these_cohorts(monkeypatch, [[0, 1], bad, [2]])
        weights = shape.initial_weights(0)
        with rounds_of(shape, Corrupt(good.inputs, good.targets), identity) as training:
            assert any(part.any() for part in training.sum(weights))
            with pytest.raises(PipelineError, match="corrupt"):
                training.sum(weights)
            assert any(part.any() for part in training.sum(weights, last=True)), "a fresh cohort"
        assert readers() == []


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_round_that_breaks_off_leaves_nothing_to_the_next(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    """The rest of its cohort is dropped, Ctrl-C included: a round without all its units would still be spent."""
    cohorts = [[0, 1, 2], [3]]
    these_cohorts(monkeypatch, cohorts)
    source, weights = make_units(shape, LENGTHS), shape.initial_weights(0)
    training = rounds_of(shape, source, identity)
    with training:
        with monkeypatch.context() as patched:

            def breaking(*arguments: Any) -> list[Tensor]:
                raise failure

            patched.setattr(captured, "sum_of_updates", breaking)
            with pytest.raises(failure):
                training.sum(weights)
        after = training.sum(weights, last=True)
    assert readers() == []
    these_cohorts(monkeypatch, [[3]])
    alone = rounds_of(shape, source, identity).sum(weights, last=True)
    for a, b in zip(after, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_closing_waits_for_the_chunk_that_is_being_read(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for no other: at once when it is done, whatever the cohort's size."""
    reading, go_on, read = threading.Event(), threading.Event(), 0
    source = make_units(shape, [10] * 200)

    def slow(*arguments: Any, **options: Any) -> LocalBatches:
        nonlocal read
        read += 1
        if read == 3:
            reading.set()
            assert go_on.wait(30)
        return local_batches(*arguments, **options)

    monkeypatch.setattr(rounds, "local_batches", slow)
    training = rounds_of(shape, source, identity, q=1.0)

    def interrupted(*arguments: Any) -> list[Tensor]:
        if read < 3 and not reading.wait(0.01):
            return sum_of_updates(*arguments)
        go_on.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(captured, "sum_of_updates", interrupted)
    with pytest.raises(KeyboardInterrupt), training:
        training.sum(shape.initial_weights(0))
    assert readers() == []
    assert read == 3


def test_one_chunk_is_read_ahead_and_no_more(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a chunk is read, at most the one in work is in memory: what the bound in bytes counts."""
    alive: list[int] = []
    made: list[weakref.ref[LocalBatches]] = []

    def watching(*arguments: Any, **options: Any) -> LocalBatches:
        alive.append(sum(batches() is not None for batches in made))
        batches = local_batches(*arguments, **options)
        made.append(weakref.ref(batches))
        return batches

    monkeypatch.setattr(rounds, "local_batches", watching)
    with rounds_of(shape, make_units(shape, [10] * 20), identity, q=1.0) as training:
        for i in range(3):
            training.sum(shape.initial_weights(0), last=i == 2)
    assert len(made) == 60
    assert max(alive) == 1


def test_seeded_draws_keep_their_order(shape: Architecture, identity: Normaliser) -> None:
    """Tests that repeat a seed rely on it: nothing is read ahead, so a round's noise comes before the next cohort."""

    def released() -> list[Tensor]:
        training = rounds_of(shape, make_units(shape, LENGTHS), identity, entropy=SeededEntropy(3))
        weights = shape.initial_weights(0)
        with training:
            assert readers() == []
            return [part for _ in range(3) for part in training._plan.release(training.sum(weights))]

    assert all(torch.equal(a, b) for a, b in zip(released(), released(), strict=True))


def test_the_reader_takes_one_thread_and_leaves_the_others_to_the_compute(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sets of torch's threads on the same cores halve the speed."""
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:

        def counting(*arguments: Any, **options: Any) -> LocalBatches:
            seen.append(torch.get_num_threads())
            return local_batches(*arguments, **options)

        monkeypatch.setattr(rounds, "local_batches", counting)
        with rounds_of(shape, make_units(shape, LENGTHS), identity, q=1.0) as training:
            training.sum(shape.initial_weights(0), last=True)
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_nothing_is_read_ahead_where_no_core_is_left_for_it(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next cohort is not even drawn. The twin has a reader, and its next cohort."""
    source, weights = make_units(shape, LENGTHS), shape.initial_weights(0)
    for read_ahead in (False, True):
        left = these_cohorts(monkeypatch, [[0], [1]])
        with rounds_of(shape, source, identity, read_ahead=read_ahead) as training:
            assert len(readers()) == read_ahead
            training.sum(weights)
            if training._reader is not None:
                training._reader.submit(int).result()  # all before it has been read
        assert (next(left, None) is None) is read_ahead
