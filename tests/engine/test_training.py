"""Rounds that learn, stop, average and refuse as they should; behaviour cloning through them."""

import dataclasses
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load

from primorl.base import PipelineError
from primorl.engine import public
from primorl.engine.public import PublicEvaluation
from primorl.engine.rounds import Rounds, check_setup
from primorl.engine.settings import Execution, ServerTraining
from primorl.engine.setup import CloningSetup, TrainingSetup
from primorl.engine.shards import Group
from primorl.engine.training import FirstProcess, Trained, TrainingState, train
from primorl.model.architecture import Architecture, CloneNetwork
from primorl.model.ensemble import Bounds, Normaliser
from primorl.model.features import Columns
from primorl.model.numerics import flatten
from primorl.policy.behaviour import BehaviourPolicy
from primorl.privacy.ledger.checkpoint import read_checkpoint, write_checkpoint
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import GaussianQuery, Mechanism
from tests.mechanisms import KilledError, watch
from tests.units import Ragged, local_training, make_units, server_training, training_setup

PLAIN = server_training(0.0, 0.0, 5, None)
SHAPE = Architecture(3, 1, 3, (16, 12), -10.0, 0.5)
SOURCE = make_units(SHAPE, [30, 17, 45] * 40)
# of the same system
PUBLIC = tuple(torch.cat(list(rows)) for rows in vars(make_units(SHAPE, [30] * 8)).values())
STILL: dict[str, Any] = {
    "noise_multiplier": 0.0,
    "sampling_probability": 1.0,
}  # with one batch, nothing is random


def mechanism_for(**changes: Any) -> Mechanism:
    clip = EnsembleClip(0.5, "flat", SHAPE.members, len(SHAPE.layers))
    return dataclasses.replace(
        Mechanism(SOURCE.units, "trajectory", 0.5, clip, 0.5, 30, 1e-3), **changes
    )


def run(
    mechanism: Mechanism,
    server: ServerTraining = PLAIN,
    batch_size: int = 16,
    public_split: bool = True,
    **options: Any,
) -> tuple[Trained, list[PublicEvaluation | None]]:
    told: list[PublicEvaluation | None] = []
    setup = training_setup(mechanism, SHAPE, local=local_training(0.02, batch_size), server=server)
    if not public_split:  # the same maps, and nothing to evaluate on
        maps = Normaliser.from_public(PUBLIC[0], PUBLIC[1])
        object.__setattr__(setup, "make_normaliser", lambda *_: maps)
    options = {"source": SOURCE, "public": PUBLIC if public_split else None} | options
    trained = train(setup, **options, on_round=told.append)
    return trained, told


def test_an_empty_cohort_still_moves_the_weights() -> None:
    trained, _ = run(mechanism_for(sampling_probability=1e-9, rounds=2))
    start = SHAPE.initial_weights(0)
    assert trained.rounds == 2
    assert all((now != was).all() for now, was in zip(trained.weights, start, strict=True))


def test_momentum_repeats_steps_and_the_average_is_an_unbiased_running_mean() -> None:
    zeros = torch.zeros(1)
    state, server = TrainingState(zeros, zeros, zeros, zeros), server_training(0.5, 0.5)
    seen = []
    for step in (1.0, 1.0, 2.0):
        state = state.step(torch.tensor([step]), server)
        seen.append((float(state.weights[0]), float(state.average_weights()[0])))
    expected = [(1.0, 1.0), (2.5, (0.5 + 2.5) / 1.5), (5.25, (0.25 + 0.5 * 2.5 + 5.25) / 1.75)]
    assert seen == [pytest.approx(one) for one in expected]


def killed(mechanism: Mechanism, at: int, **options: Any) -> TrainingState:
    """The last checkpoint of a run that dies when round ``at`` has been announced, if it gets
    there.
    """
    kept: list[TrainingState] = []

    def save_checkpoint(state: TrainingState) -> None:
        kept.append(state)
        if state.started == at:
            raise KilledError

    with suppress(KilledError):
        run(mechanism, save_checkpoint=save_checkpoint, **options)
    return kept[-1]


def test_a_round_is_on_the_disk_before_its_weights_meet_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[TrainingState] = []
    counted: list[int] = []
    watch(monkeypatch, Rounds, "sum", lambda *_, **__: counted.append(kept[-1].started))
    run(mechanism_for(rounds=4), save_checkpoint=kept.append)
    assert counted == [1, 2, 3, 4]
    assert (kept[-1].finished, kept[-1].done, kept[-1].started) == (True, 4, 4)


@pytest.mark.parametrize("crashes", [[1], [3, 4, 5, 20], [30, 30]])
def test_however_often_a_run_dies_no_more_rounds_run_than_were_reserved(
    monkeypatch: pytest.MonkeyPatch, crashes: list[int]
) -> None:
    releases: list[object] = []
    watch(monkeypatch, Mechanism, "release", lambda _, total: releases.append(total))
    mechanism, state, died = mechanism_for(), None, 0
    for at in crashes:
        state = killed(mechanism, at, state=state)
        died += not state.finished  # a kill when all is done costs no round
    trained, _ = run(mechanism, state=state)
    assert len(releases) + died == mechanism.rounds
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
    assert [evaluation.round for evaluation in told if evaluation] == [6, 7]


QUERY = GaussianQuery("normaliser", 1.0, 4.0)


def asking(asked: Callable[[str], object], **mechanism: Any) -> TrainingSetup:
    """A setup whose queries are made up: ``asked`` is called when rows are summed for one."""
    setup = training_setup(mechanism_for(**mechanism), SHAPE)

    def total(name: str) -> torch.Tensor:
        asked(name)
        return torch.zeros(2, dtype=torch.int64)

    names = [query.what for query in setup.mechanism.queries]
    made = {name: SimpleNamespace(total=lambda _, name=name: total(name)) for name in names}
    object.__setattr__(setup, "early_queries", lambda answers: made)
    return setup


def answered(
    setup: TrainingSetup, state: TrainingState, kept: list[TrainingState] | None = None
) -> TrainingState:
    save = ([] if kept is None else kept).append
    return FirstProcess(setup, SOURCE, save, Group()).answer_queries(state)


def test_a_query_is_written_down_before_its_noise_is_drawn_and_never_asked_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kill while its rows are read has released nothing, and costs nothing."""
    kept: list[TrainingState] = []
    drawn: list[bool] = []

    def asked(name: str) -> None:
        assert (name, kept) == ("normaliser", []), "nothing is spent yet"

    setup = asking(asked, queries=(QUERY,))
    begun = TrainingState.begin(setup)
    watch(monkeypatch, Mechanism, "answer", lambda *_: drawn.append(kept[-1].lost))
    done = answered(setup, begun, kept)
    assert drawn == [True]
    assert not done.lost
    assert kept == [kept[0], done]
    known = answered(setup, done)
    assert (known.asked, list(known.answers)) == (1, ["normaliser"])
    with pytest.raises(ValueError, match="asked and its answer is lost"):
        answered(setup, kept[0])
    assert drawn == [True], "nothing was drawn again"
    assert answered(asking(asked), begun) == begun, "nothing is asked"


QUERIES = tuple(GaussianQuery(name, 1.0, 4.0) for name in ("scales", "finer_scales"))


def test_restored_answers_stand_in_the_order_of_the_plan() -> None:
    """Other processes split what they are sent by that order; a file of tensors keeps none."""
    setup = asking(pytest.fail, queries=QUERIES)
    answers = {query.what: torch.full((2,), place) for place, query in enumerate(QUERIES)}
    backwards = dict(reversed(answers.items()))
    restored = dataclasses.replace(TrainingState.begin(setup), asked=2, answers=backwards)
    assert list(answered(setup, restored).answers) == list(answers) != list(backwards)


def test_a_finished_run_needs_no_data_and_another_one_does() -> None:
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
        return PublicEvaluation(after, [3.0, 1.0, 2.0, 2.5, 9.0][len(seen) - 1])

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


CPU = torch.device("cpu")


def test_rows_are_observations_and_scaled_actions() -> None:
    units = Ragged(
        [torch.tensor([[7.0, 8.0, 9.0, -2.0, 1.0], [1.0, 2.0, 3.0, 1.0, 2.0]])], [torch.zeros(2, 4)]
    )
    source = cloning(False, 1).view(units)
    observation, action = source.transitions(torch.tensor([0]), torch.tensor([[1, 0]]))
    assert observation.tolist() == [[[1.0, 2.0, 3.0], [7.0, 8.0, 9.0]]]
    assert action.tolist() == [[[0.5, 1.0], [-1.0, 0.5]]]
    assert (source.units, source.lengths(torch.tensor([0])).tolist()) == (1, [2])
    inputs = torch.tensor([3.0, 4.0, 5.0, 0.0, 1.0])
    assert cloning(True, 1).view_public((inputs, inputs))[1].tolist() == [0.0, 1.0]


def cloning(discrete: bool, units: int, noise: float = 0.0) -> CloningSetup:
    shape, side = CloneNetwork(3, 2, discrete, (16,), -5.0, 1.0), torch.full((3,), 3.0)
    zeros, ones = torch.zeros(5), torch.ones(5)
    ends = (
        (torch.zeros(2), torch.ones(2))
        if discrete
        else (torch.full((2,), -2.0), torch.full((2,), 2.0))
    )
    mechanism = Mechanism(
        units, "trajectory", 0.5, EnsembleClip(0.5, "flat", 1, 2), noise, 40, 1e-4
    )
    facts: Any = {
        "bounds": Bounds(-side, side, *ends, -1.0, 1.0, discrete),
        "normaliser": Normaliser(zeros, 1.5 * ones, zeros, ones),
        "seed": 0,
    }
    facts |= {"columns": Columns(3, 2, (), discrete), "execution": Execution(CPU, 1 << 20)}
    server = server_training(momentum=0.8, averaging=0.8)
    return CloningSetup(
        mechanism=mechanism,
        architecture=shape,
        local=local_training(1.0, 64),
        server=server,
        **facts,
    )


@pytest.mark.parametrize("discrete", [False, True])
def test_a_behaviour_is_found_through_the_engine(discrete: bool) -> None:
    """People act by the first observation alone; the twin is the loss of a constant."""
    drawn, inputs = torch.Generator().manual_seed(0), []
    for _ in range(40):
        x = torch.randn(30, 3, generator=drawn)
        right = (x[:, 0] > 0).long()
        action = torch.nn.functional.one_hot(right, 2).float()
        inputs.append(torch.cat((x, action if discrete else 3 * action - 1.5), 1))
    units, setup = Ragged(inputs, [torch.zeros(30, 5)] * 40), cloning(discrete, 40, noise=0.05)
    public = setup.view_public((torch.cat(inputs), torch.zeros(1)))
    check_setup(setup)
    trained = train(setup, setup.view(units), public)
    assert trained.public_loss is not None
    assert trained.public_loss.final < trained.public_loss.constant - (0.3 if discrete else 0.6)
    assert trained.normaliser.target_mean.tolist() == [0.0, 0.0]
    assert len(trained.normaliser.input_mean) == 3


VECTORS = ("weights", "velocity", "average", "best")
PARAMETERS = 12


@pytest.fixture
def state() -> TrainingState:
    answers = {
        "normaliser": torch.randn(7, 40, dtype=torch.float64),
        "starts": torch.randn(9, dtype=torch.float64),
    }
    facts: dict[str, Any] = {name: torch.randn(PARAMETERS) for name in VECTORS}
    facts |= {"mass": 0.3, "best_loss": 1.25, "since_best": 1, "done": 11, "started": 13}
    return TrainingState(**facts, asked=len(answers), answers=answers)


def write(file: Path, state: TrainingState) -> None:
    write_checkpoint(file, state, charge="c", saves=2)


def read(file: Path, charge: str = "c") -> tuple[TrainingState, int]:
    return read_checkpoint(file, TrainingState, charge)


def test_it_holds_what_was_released_and_nothing_else(state: TrainingState, tmp_path: Path) -> None:
    write(tmp_path / "c", state)
    raw = (tmp_path / "c").read_bytes()[32:]
    tensors = load(raw)
    assert set(tensors) == {*VECTORS, "answers.normaliser", "answers.starts"}
    assert sum(t.numel() for t in tensors.values()) == 4 * PARAMETERS + 7 * 40 + 9
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert set(header["__metadata__"]) == {"checkpoint"}
    about = json.loads(header["__metadata__"]["checkpoint"])
    assert set(about) == {"charge", "saves", "facts"}
    counts = {"mass", "best_loss", "since_best", "done", "started", "finished"}
    assert set(about["facts"]) == counts | {
        "asked",
        "engine",
        "about",
    }


def test_one_that_is_damaged_foreign_or_of_an_older_version_is_named_and_refused(
    state: TrainingState, tmp_path: Path
) -> None:
    """Twin: as written it comes back. tests/test_security.py has files of other formats."""
    file = tmp_path / "c.safetensors"
    write(file, state)
    found, saves = read(file)
    assert (found.facts(), saves) == (state.facts(), 2)
    assert all(torch.equal(found.tensors()[name], own) for name, own in state.tensors().items())
    raw = file.read_bytes()
    bit = raw[:200] + bytes([raw[200] ^ 1]) + raw[201:]
    damaged = r"c\.safetensors: no checkpoint of this run, or damaged; its charge stays spent"
    for content, charge in ((raw, "d"), (bit, "c"), (raw[:-7], "c"), (b"", "c")):
        file.write_bytes(content)
        with pytest.raises(PipelineError, match=damaged):
            read(file, charge)
    facts = state.facts() | {"a_field_of_old": "1"}
    older: Any = SimpleNamespace(tensors=state.tensors, facts=lambda: facts)
    write(file, older)
    with pytest.raises(PipelineError, match="tensors: written by another version of the code"):
        read(file)


@pytest.mark.parametrize("discrete", [False, True])
def test_a_clone_begins_as_people_usually_act_where_scales_were_released(discrete: bool) -> None:
    told = torch.tensor([0.7, 0.3] if discrete else [1.0, -0.5])
    mean, deviation = torch.cat((torch.zeros(3), told)), torch.full((5,), 0.8)
    scales = Normaliser(mean, deviation, torch.zeros(5), torch.ones(5))
    setup = replace(cloning(discrete, 1), normaliser=scales)
    own = setup.make_normaliser(None, {})
    clone = BehaviourPolicy.of(setup.architecture, setup.first_weights(), own, setup.bounds)
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    if discrete:
        torch.testing.assert_close(clone.log_probabilities(rows).exp(), told.expand(6, 2))
        return
    found, spread = clone.mean_and_std(rows)
    torch.testing.assert_close(2 * found, told.expand(6, 2))
    torch.testing.assert_close(2 * spread, torch.full((6, 2), 0.8), rtol=0.01, atol=0.0)
