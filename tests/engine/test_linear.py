"""Linear heads: features, what people are asked beside the rounds, and the ensemble that is made of
noised weights.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from primorl.engine import queries
from primorl.engine.heads import (
    FINER_SCALES,
    RESIDUALS,
    REWARD_OFFSET,
    SCALES,
    WINDOW,
    contributions,
    least_spread,
    noise_of_queries,
    sensitivities,
)
from primorl.engine.queries import (
    ExplainedQuery,
    FirstStatesQuery,
    LengthsQuery,
    ResidualQuery,
    RewardOffsetQuery,
    ScalesQuery,
)
from primorl.engine.setup import shrink_weights
from primorl.engine.training import TrainingState, train
from primorl.model.architecture import Architecture, Explained
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser, Weights, outputs
from primorl.model.features import FARTHEST, Columns, Polynomials
from primorl.model.numerics import flatten
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import ONE, GaussianQuery, Mechanism
from primorl.stages.training import warn_of_little
from tests.mechanisms import SeededEntropy
from tests.model.models import plain_maps
from tests.units import Ragged, local_training, make_units, server_training, training_setup

# two numbers around three categories
HEADS = Columns(5, 1, ((1, 3),), discrete=False)
LOW, HIGH = torch.tensor([-8.0, 0, 0, 0, 10.0]), torch.tensor([8.0, 1, 1, 1, 30.0])
BOUNDS = Bounds(LOW, HIGH, torch.tensor([-1.0]), torch.tensor([3.0]), -10.0, 10.0)
FEATURES = Polynomials(6, ((1, 3),), 2)
SHAPE = Architecture(5, 1, 1, (), -12.0, 4.0, features=FEATURES, spread=False)
SERVER = server_training(0.6, 0.8)
HORIZON = 40


class Log(Ragged):
    """Units of two trajectories each, the second twice as long."""

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        return (steps == 0) | (steps == self.lengths(units)[:, None] // 3)


def log_of(units: int, seed: int = 0) -> Log:
    """A system whose changes and rewards are polynomials of degree 2, with noise."""
    drawn = torch.Generator().manual_seed(seed)
    inputs, targets = [], []
    for _ in range(units):
        x = torch.randn(30, 6, generator=drawn)
        category = torch.multinomial(
            torch.tensor([0.6, 0.3, 0.1]), 30, replacement=True, generator=drawn
        )
        x[:, 1:4] = torch.nn.functional.one_hot(category, 3).float()
        first, second, action = x[:, 0].clone(), x[:, 4].clone(), x[:, 5].clone()
        x[:, 4], x[:, 5] = 20 + 2 * second, 1 + 0.5 * action
        change = torch.stack(
            (0.1 * (first * action - first + 0.3 * x[:, 1]), 0.4 * (action - 0.5 * second)), 1
        )
        change += torch.tensor([0.01, 0.2]) * torch.randn(30, 2, generator=drawn)
        reward = 2 * first * first - second + 0.5 * torch.randn(30, generator=drawn)
        still = torch.zeros(30, 3)
        inputs.append(x)
        targets.append(
            torch.cat((change[:, :1], still, change[:, 1:], reward[:, None], torch.zeros(30, 1)), 1)
        )
    return Log(inputs, targets)


def setup_of(units: int, noise: float = 0.0, **changes: Any) -> Any:
    queries = tuple(
        GaussianQuery(*each, noise) for each in sensitivities(HEADS, clone=False).items()
    )
    clip = EnsembleClip(0.5, "flat", 1, 1)
    mechanism = Mechanism(units, "person", 1.0, clip, noise, 40, 1e-6, queries=queries)
    local = replace(local_training(1.0, 30), max_transitions_per_unit=30)
    setup = training_setup(mechanism, SHAPE, local=local, server=SERVER)
    return replace(
        setup,
        columns=HEADS,
        bounds=BOUNDS,
        normaliser="private",
        architecture=SHAPE,
        horizon=HORIZON,
        **changes,
    )


def test_features_are_orthonormal_and_the_same_in_any_company() -> None:
    frequencies = torch.tensor([0.0, 0.6, 0.3, 0.1, 0.0, 0.0])
    seeded = torch.Generator().manual_seed(0)
    rows = torch.randn(200_000, 6, generator=seeded)
    category = torch.multinomial(frequencies[1:4], len(rows), replacement=True, generator=seeded)
    rows[:, 1:4] = torch.nn.functional.one_hot(category, 3).float() - frequencies[1:4]
    basis = FEATURES.basis(frequencies)
    found = FEATURES(rows, basis)
    assert found.shape[1] == FEATURES.size == 3 + 2 + 3 + (3 + 3 * 2)
    moments = found.T @ found / len(rows)
    torch.testing.assert_close(moments, torch.eye(FEATURES.size), atol=0.03, rtol=0)
    for count in (1, 7, 64, 1001):
        assert torch.equal(FEATURES(rows[:count], basis), found[:count])
    assert Polynomials(4, (), 3).size == 34
    far = FEATURES(1e9 * rows[:100], basis).abs()
    farthest = FARTHEST * float(basis.abs().sum(0).max())
    largest = farthest**FEATURES.degree + 3 * farthest + 1
    assert float(far.max()) <= largest + 1e-3, f"held within {FARTHEST}"


def test_rounds_of_heads_learn_the_system_and_people_tell_the_rest() -> None:
    """Without noise the released ensemble predicts what least squares would, with the spread that
    is left.
    """
    log, seen = log_of(400), list[TrainingState]()
    setup = setup_of(400)
    trained = train(setup, log, None, save_checkpoint=seen.append)
    assert [state.finished for state in seen].index(True) == len(seen) - 2, (
        "asked once, after the rounds"
    )
    shape, weights = setup.release(trained.weights, trained.answers, 3)
    model = GaussianEnsemble(shape, weights, trained.normaliser, BOUNDS)
    test = log_of(50, seed=1)
    inputs, targets = torch.cat(list(test.inputs)), torch.cat(list(test.targets))[:, :6]
    mean, std, _ = model.predict(inputs[:, :5], inputs[:, 5:])
    missed = (mean[0] - targets).square().mean(0).sqrt()[[0, 4, 5]]
    torch.testing.assert_close(missed, torch.tensor([0.01, 0.2, 0.5]), rtol=0.25, atol=0.01)
    torch.testing.assert_close(std[0, 0, [0, 4, 5]], missed, rtol=0.3, atol=0.01)
    assert torch.equal(mean[0], mean[2]), "no noise, no doubt"
    starts = setup.start_model(trained.answers, trained.normaliser)
    drawn = starts.sample(20_000, torch.Generator().manual_seed(0))
    assert drawn[:, 0].std() == pytest.approx(1.0, abs=0.15)
    assert drawn[:, 4].mean() == pytest.approx(20.0, abs=0.3)
    assert drawn[:, 1:4].mean(0).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.08)
    survival = starts.survival
    expected = torch.tensor([1.0] * 10 + [0.5] * 10 + [0.0] * 20).expand(2, -1)
    # 10 and 20 steps, none terminates
    torch.testing.assert_close(survival, expected, atol=1e-5, rtol=0)


AWKWARD = [0.0, 1.0, -5.0, 25.0, 1e-30, 1e30, -3e38, math.nan, math.inf, -math.inf]


@settings(max_examples=60)
@given(values=st.lists(st.sampled_from(AWKWARD), min_size=2, max_size=9), length=st.integers(1, 40))
def test_a_unit_more_moves_every_sum_by_at_most_the_sensitivity(
    values: list[float], length: int
) -> None:
    """The twin below: weights that are not clipped would move it by more."""
    rest = log_of(3)
    rows = torch.tensor((values * 300)[: 13 * length]).view(length, 13)
    more = Log([*rest.inputs, rows[:, :6]], [*rest.targets, rows[:, 6:]])
    answers = {name: torch.rand(15).double() for name in (SCALES, FINER_SCALES)}
    setup, asked = setup_of(3), contributions(HEADS)
    normaliser = setup.make_normaliser(None, answers)
    weights = tuple(torch.full(w.shape, 3.0) for w in SHAPE.initial_weights(0))
    for name, early in setup.early_queries(answers).items():
        assert isinstance(early, ScalesQuery)
        moved = (early.total(more) - early.total(rest)).double() / ONE
        assert float(moved.norm()) <= asked[name].sensitivity * (1 + 1e-12)
    of_heads = ResidualQuery(HEADS), ExplainedQuery(HEADS), RewardOffsetQuery(HEADS)
    for query in (*of_heads, FirstStatesQuery(HEADS), LengthsQuery(HORIZON)):
        sums = [query.total(log, normaliser, weights) for log in (more, rest)]
        moved = (sums[0] - sums[1]).double() / ONE
        assert float(moved.norm()) <= query.contribution.sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("what", ["first", "reward"])
@pytest.mark.parametrize(("spread", "hidden"), [(0.2, True), (1.0, False)])
def test_the_least_spread_that_is_seen_is_foretold(what: str, spread: float, hidden: bool) -> None:
    """In halves of the first column's declared range; and of an outcome, in rows that have it; over
    thirty draws of both answers.
    """
    setup, generator = setup_of(60, noise=0.5), torch.Generator().manual_seed(0)
    least, share = (
        least_spread(setup.mechanism),
        2 * noise_of_queries(setup.mechanism)[FINER_SCALES],
    )
    assert least is not None
    assert 0.01 < least < 0.2
    log = log_of(60)
    for inputs in log.inputs:
        inputs[:, 0] *= spread * least * float(HIGH[0])
    drawn = torch.Generator().manual_seed(1)
    for targets in log.targets:
        has_it = torch.rand(len(targets), generator=drawn) < spread * share
        targets[:, 5] = -10.0 * has_it
    seen = 0
    for _ in range(30):
        answers: dict[str, Tensor] = {}
        for name in (SCALES, FINER_SCALES):
            exact = setup.early_queries(answers)[name].total(log) / ONE / 60
            noise = torch.randn(exact.shape, generator=generator).double()
            answers[name] = exact + setup.noise_of(name) * noise
        seen += what not in setup.find_hidden_names(answers, ["first", *"abcde", "reward"])
    assert seen <= 15 if hidden else seen >= (27 if what == "first" else 25)


@pytest.mark.parametrize(("shares", "rare"), [((0.4, 0.6, 0.0), (2,)), ((0.5, 0.3, 0.2), ())])
def test_levels_that_noise_could_have_made_are_rare(
    shares: tuple[float, ...], rare: tuple[int, ...]
) -> None:
    """Over thirty draws of both answers; where noise could have made an even share, none is."""
    sides = torch.zeros(3), torch.ones(3)
    columns = replace(HEADS, actions=3, discrete=True)
    bounds = replace(BOUNDS, action_low=sides[0], action_high=sides[1], discrete_actions=True)
    generator = torch.Generator().manual_seed(0)
    found = []
    for noise in (0.4, 400.0, 0.0):
        queries = tuple(
            GaussianQuery(*each, noise) for each in sensitivities(columns, clone=False).items()
        )
        setup = setup_of(60)
        setup = replace(
            setup,
            mechanism=replace(setup.mechanism, queries=queries),
            columns=columns,
            bounds=bounds,
        )
        for _ in range(30):
            answers: dict[str, Tensor] = {}
            for name in (SCALES, FINER_SCALES):
                exact = torch.full((contributions(columns)[name].size,), 0.3, dtype=torch.float64)
                exact[-3:] = torch.tensor(shares)
                drawn = torch.randn(exact.shape, generator=generator).double()
                answers[name] = exact + setup.noise_of(name) * drawn
            found.append(setup.find_rare_actions(answers))
    assert sum(each == rare for each in found[:30]) >= 27
    assert all(each == () for each in found[30:60]), "the noise could have made an even share"
    assert all(each == rare for each in found[60:])


def test_lost_late_answers_are_not_asked_again() -> None:
    setup, kept = setup_of(8), list[TrainingState]()
    train(setup, log_of(8), None, save_checkpoint=kept.append)
    announced = next(state for state in kept if state.finished)
    assert RESIDUALS not in announced.answers
    resumed = train(setup, log_of(8), None, state=announced)
    assert RESIDUALS not in resumed.answers
    assert setup.spread(resumed.answers).tolist() == [1.0] * 6


def test_members_differ_by_the_noise_that_the_rounds_had() -> None:
    """Rounds of noise alone, each of which takes back the error that it finds, beside the draws."""
    setup, generator = setup_of(60, noise=2.0), torch.Generator().manual_seed(0)
    of_round = 2.0 * setup.mechanism.clip.sensitivity / 60
    error, velocity, average, mass = (torch.zeros(50_000) for _ in range(4))
    for _ in range(setup.mechanism.rounds):
        noise = of_round * torch.randn(error.shape, generator=generator)
        velocity = 0.6 * velocity + noise - error
        error = error + velocity
        average, mass = 0.8 * average + 0.2 * error, 0.8 * mass + 0.2
    zeros = tuple(torch.zeros(w.shape) for w in SHAPE.initial_weights(0))
    _, members = setup.release(zeros, {}, 400)
    assert torch.equal(members[0][0], torch.zeros_like(members[0][0]))
    spread = float(members[0][1:, :, :6].std())
    assert spread == pytest.approx(float((average / mass).std()), rel=0.03)


def test_weights_that_noise_could_have_made_are_held_back_and_others_stay() -> None:
    drawn = torch.Generator().manual_seed(0)
    true = torch.zeros(1, 100, 3)
    true[0, :5] = torch.tensor([1.0, -0.8, 0.6, -1.2, 0.9])[:, None]
    means = torch.ones(1, 1, 3)
    for noise, gained in ((0.1, 4.0), (1e-4, 1.0)):
        noised = true + noise * torch.randn(true.shape, generator=drawn)
        held, kept = shrink_weights((noised, means), noise)
        assert torch.equal(kept, means)
        assert float((held - true).square().sum()) * gained <= float((noised - true).square().sum())
    torch.testing.assert_close(shrink_weights((noised, means), 0.0)[0], noised)
    assert torch.equal(shrink_weights((noised[:, :30], means), 1.0)[0], noised[:, :30]), (
        "of few features most count"
    )


def test_weights_are_shrunk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("primorl.engine.setup._MANY", 1)
    setup, kept = setup_of(8, noise=2.0), list[TrainingState]()
    weights = train(setup, log_of(8), None, save_checkpoint=kept.append).weights
    assert not torch.equal(flatten(weights), kept[-1].best)
    again = train(setup, None, None, state=kept[-1]).weights
    assert all(map(torch.equal, again, weights))


def narrow(units: int) -> Log:
    """A number whose deviation is a hundredth of its range, and rare rewards at the lowest that
    there can be.
    """
    drawn, log = torch.Generator().manual_seed(1), log_of(units)
    targets = []
    for inputs, targets_of in zip(log.inputs, log.targets, strict=True):
        inputs[:, 0] = 3 + 0.16 * torch.randn(30, generator=drawn)
        rare = torch.rand(30, generator=drawn) < 0.02
        targets.append(
            torch.cat(
                (targets_of[:, :5], torch.where(rare, -10.0, 0.0)[:, None], targets_of[:, 6:]), 1
            )
        )
    return Log(log.inputs, targets)


def test_scales_are_found_however_narrow_and_noise_makes_them_wider() -> None:
    """Too small a scale makes rounds diverge.

    The twin: the first answer alone does not see what is narrow.
    """
    log, true = narrow(400), torch.tensor([0.16, 2.0, 0.5, 0.15, 0.45, 1.4])
    for noise, exact in ((60.0, 0.8), (0.3, 0.4)):
        setup, answers = setup_of(400, noise), dict[str, Tensor]()
        mechanism = replace(setup.mechanism, entropy=SeededEntropy(0))
        for query in mechanism.queries[:2]:
            total = setup.early_queries(answers)[query.what].total(log)
            answers[query.what] = mechanism.answer(query, total)
        found = setup.make_normaliser(None, answers)
        scales = torch.cat((found.input_scale[[0, 4, 5]], found.target_scale[[0, 4, 5]]))
        assert bool((scales / true > 1 - exact).all())
        assert noise < 1 or float(scales[0]) > 1.0
    assert float(found.input_mean[0]) == pytest.approx(3.0, abs=0.1)
    assert bool((scales[:3] / true[:3] < 1.4).all())
    assert float(scales[5]) == pytest.approx(1.4, rel=0.3), "rare large rewards count"
    assert float(setup.early_queries(answers)[FINER_SCALES].windows.half[1]) > 2 * WINDOW * 0.16


def test_rare_costs_that_the_clip_takes_away_are_given_back() -> None:
    """The twin: without the answer, or with one that noise could have made, they are not."""
    setup, log = setup_of(400), narrow(400)
    trained = train(setup, log, None)
    inputs = trained.normaliser.inputs(torch.cat(list(log.inputs)))[None]
    known = trained.normaliser.targets(torch.cat(list(log.targets)))[:, :6]

    def missing(answers: dict[str, Tensor], noise: float = 0.0) -> Tensor:
        mechanism = setup_of(400, noise).mechanism
        _, weights = replace(setup, mechanism=mechanism).release(trained.weights, answers, 1)
        return (known - outputs(weights, inputs)[0, :, :6]).mean(0)

    given, taken = missing(dict(trained.answers)), missing({})
    assert abs(float(given[-1])) < 0.01 < 0.03 < abs(float(taken[-1]))
    assert torch.equal(given[:-1], taken[:-1]), "only the reward's"
    noisy = missing({REWARD_OFFSET: trained.answers[REWARD_OFFSET]}, noise=40.0)
    assert torch.equal(noisy, taken)


UNITS, ROWS = 1000, 40
TARGETS = 5
COLUMNS = Columns(TARGETS - 1, 1, (), discrete=False)
# Weights of the inputs in a model that knows the usual part of each column and no jump: all of the
# first, half of the next two, nothing of the last.
KNOWN = torch.tensor([1.0, math.sqrt(0.5), 1.0, 1.0, 0.0])
TRUE = [1.0, 0.5, 1 / 1.8, 1 / 6, 0.0]
"""R² of normal columns, of one with jumps of 4 and one with jumps of 10 in 5% of the rows, and of
one that the model does not know."""


def columns(units: int = UNITS, seed: int = 0) -> Ragged:
    """Units of five inputs, and of targets in scales of 1: known parts, unknown parts, jumps."""
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(units, ROWS, TARGETS, generator=drawn)
    y = KNOWN * x
    y[..., 1] += math.sqrt(0.5) * torch.randn(units, ROWS, generator=drawn)
    y[..., 4] += torch.randn(units, ROWS, generator=drawn)
    for column, size in ((2, 4.0), (3, 10.0)):
        rare = (torch.rand(units, ROWS, generator=drawn) < 0.05).float()
        y[..., column] += size * rare * torch.randn(units, ROWS, generator=drawn).sign()
    y[..., 3] /= math.sqrt(6)  # the scale of a column is its deviation
    y[..., 2] += 0.5  # a constant explains nothing
    return Ragged(list(x), list(y))


def maps() -> Normaliser:
    return plain_maps(TARGETS, TARGETS)


def model(members: int = 1, apart: float = 0.0) -> Weights:
    """Members whose mean predicts the known part; each of two is ``apart`` from it."""
    factors = torch.diag(KNOWN).expand(members, -1, -1).clone()
    factors[:, 3, 3] /= math.sqrt(6)
    sides = torch.tensor([1.0, -1.0])[:members].view(-1, 1, 1) * apart
    biases = torch.zeros(members, 1, TARGETS)
    biases[..., 2] = 0.5
    return (factors + sides, biases)


def ask(log: Ragged, weights: Weights) -> Tensor:
    """The exact answer."""
    return ExplainedQuery(COLUMNS).total(log, maps(), weights).double() / (ONE * log.units)


def shares(found: tuple[Explained | None, ...]) -> list[float]:
    return [math.nan if each is None else each.share for each in found]


def test_the_share_is_that_of_least_squares_also_where_rare_jumps_are_most_of_the_variance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twin: held within two scales, jumps hardly count, and what misses them looks good."""
    log, query = columns(), ExplainedQuery(COLUMNS)
    found = query.explain(ask(log, model()), 0.0)
    assert shares(found) == pytest.approx(TRUE, abs=0.02)
    assert shares(query.explain(ask(log, model(2, apart=0.7)), 0.0)) == pytest.approx(shares(found))
    monkeypatch.setattr(queries, "_FARTHEST_TARGET", 2.0)
    assert shares(query.explain(ask(log, model()), 0.0))[3] > 0.4


def test_the_error_is_that_of_the_noise() -> None:
    """Over draws of the noise, deviations have the stated error. The twin is half of it."""
    log, query = columns(300), ExplainedQuery(COLUMNS)
    exact = ask(log, model())
    truth = shares(query.explain(exact, 0.0))
    deviations, noise = list[float](), 0.04
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        drawn = exact + noise * torch.randn(exact.shape, generator=generator).double()
        for true, each in zip(truth[1:4], query.explain(drawn, noise)[1:4], strict=True):
            assert each is not None
            deviations.append((each.share - true) / each.error)
    deviation = float(torch.tensor(deviations).square().mean().sqrt())
    assert deviation == pytest.approx(1.0, abs=0.1)
    assert 2 * deviation != pytest.approx(1.0, abs=0.1)


def test_what_the_noise_hides_is_unknown() -> None:
    log, query = columns(300), ExplainedQuery(COLUMNS)
    still = Ragged(log.inputs, [0 * targets for targets in log.targets])
    assert query.explain(ask(still, model()), 0.0) == (None,) * TARGETS, "nothing varies"
    answer = ask(log, model())
    assert None not in query.explain(answer, 0.05)
    assert query.explain(answer, 0.3) == (None,) * TARGETS
    assert query.explain(math.nan * answer, 0.05) == (None,) * TARGETS


def test_columns_of_which_little_is_explained_are_named_and_no_reward_bars_a_trial(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for pulse, reward, printed, barred in (
        (0.5, 0.5, "", False),
        (0.15, 0.15, "pulse 15%, reward 15%", False),
        (0.3, 0.015, "reward 2%", True),
        (0.05, None, "pulse 5%", False),
    ):
        shares = [Explained(share=each, error=0.01) if each else None for each in (pulse, reward)]
        assert bool(warn_of_little(shares, ["pulse", "reward"])) == barred
        said = capsys.readouterr().err
        assert printed in said
        assert bool(said) == bool(printed)


def test_a_unit_adds_the_same_in_any_company() -> None:
    """Of a network of several members, over units of uneven lengths, NaN rows included."""
    shape = Architecture(4, 2, 3, (16, 16), -5.0, 1.0)
    log = make_units(shape, [1, 37, 8, 64, 5])
    log.targets[2][3] = math.nan
    own = plain_maps(6, 5)
    query, weights = ExplainedQuery(Columns(4, 2, (), discrete=False)), shape.initial_weights(0)
    whole = query.total(log, own, weights)
    alone = [
        query.total(Ragged([inputs], [targets]), own, weights)
        for inputs, targets in zip(log.inputs, log.targets, strict=True)
    ]
    assert torch.equal(whole, torch.stack(alone).sum(0))
    assert not alone[2].any(), "a unit that is not finite adds nothing"
