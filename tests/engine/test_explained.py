"""What a model explains of each column, by a charged query after the rounds."""

import math

import pytest
import torch
from torch import Tensor

from primorl.engine import queries
from primorl.engine.queries import ExplainedQuery
from primorl.model.architecture import Architecture, Explained
from primorl.model.ensemble import Normaliser, Weights
from primorl.privacy.mechanism.mechanism import ONE
from primorl.stages.training import warn_of_little
from tests.units import Ragged, make_units

UNITS, ROWS = 1000, 40
TARGETS = 5
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
    return Normaliser(*(make(TARGETS) for make in (torch.zeros, torch.ones) * 2))


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
    return ExplainedQuery(TARGETS).total(log, maps(), weights).double() / (ONE * log.units)


def shares(found: tuple[Explained | None, ...]) -> list[float]:
    return [math.nan if each is None else each.share for each in found]


def test_the_share_is_that_of_least_squares_also_where_rare_jumps_are_most_of_the_variance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twin: held within two scales, jumps hardly count, and what misses them looks good."""
    log, query = columns(), ExplainedQuery(TARGETS)
    found = query.explain(ask(log, model()), 0.0)
    assert shares(found) == pytest.approx(TRUE, abs=0.02)
    assert shares(query.explain(ask(log, model(2, apart=0.7)), 0.0)) == pytest.approx(shares(found))
    monkeypatch.setattr(queries, "_FARTHEST_TARGET", 2.0)
    assert shares(query.explain(ask(log, model()), 0.0))[3] > 0.4


def test_the_error_is_that_of_the_noise() -> None:
    """Over draws of the noise, deviations have the stated error. The twin is half of it."""
    log, query = columns(300), ExplainedQuery(TARGETS)
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
    log, query = columns(300), ExplainedQuery(TARGETS)
    still = Ragged(log.inputs, [0 * targets for targets in log.targets])
    assert query.explain(ask(still, model()), 0.0) == (None,) * TARGETS, "nothing varies"
    answer = ask(log, model())
    assert None not in query.explain(answer, 0.1)
    assert query.explain(answer, 0.3) == (None,) * TARGETS
    assert query.explain(math.nan * answer, 0.1) == (None,) * TARGETS


@pytest.mark.parametrize(
    ("pulse", "reward", "printed", "barred"),
    [
        (0.5, 0.5, [], False),
        (0.15, 0.15, ["pulse 15%", "reward 15%"], False),
        (None, 0.05, ["reward 5%"], False),
        (0.3, 0.015, ["reward 2%"], True),
        (0.05, None, ["pulse 5%"], False),
    ],
)
def test_columns_of_which_little_is_explained_are_named_and_no_reward_bars_a_trial(
    pulse: float | None,
    reward: float | None,
    printed: list[str],
    barred: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shares = [
        None if each is None else Explained(share=each, error=0.01) for each in (pulse, reward)
    ]
    assert bool(warn_of_little(shares, ["pulse", "reward"])) == barred
    said = capsys.readouterr().err
    assert all(each in said for each in printed)
    assert bool(said) == bool(printed)


def test_a_unit_adds_the_same_in_any_company() -> None:
    """Of a network of several members, over units of uneven lengths, NaN rows included."""
    shape = Architecture(4, 2, 3, (16, 16), -5.0, 1.0)
    log = make_units(shape, [1, 37, 8, 64, 5])
    log.targets[2][3] = math.nan
    own = Normaliser(torch.zeros(6), torch.ones(6), torch.zeros(5), torch.ones(5))
    query, weights = ExplainedQuery(shape.targets), shape.initial_weights(0)
    whole = query.total(log, own, weights)
    alone = [
        query.total(Ragged([inputs], [targets]), own, weights)
        for inputs, targets in zip(log.inputs, log.targets, strict=True)
    ]
    assert torch.equal(whole, torch.stack(alone).sum(0))
    assert not alone[2].any(), "a unit that is not finite adds nothing"
    bound = query.contribution.sensitivity * ONE
    assert all(float(each.double().norm()) <= bound for each in alone)
