"""Whether people act by something that lasts and that no column tells: what a clone's people are
asked after its rounds.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from primorl.engine.queries import PersistenceQuery
from primorl.model.architecture import CloneNetwork
from primorl.model.ensemble import Weights
from primorl.privacy.mechanism.mechanism import ONE
from primorl.stages.training import warn_of_reasons
from tests.model.models import plain_maps
from tests.units import Ragged

SPREAD = 0.5  # of people's actions in a box
# of a clone that does not look at the one column, and of one that acts by it alone
BLIND, SEEING = 0.0, 1.7
QUERIES = {discrete: PersistenceQuery(2, discrete, (-8.0, 8.0)) for discrete in (False, True)}


def clone(discrete: bool, factor: float) -> Weights:
    """Lines that give logits ±f x, or the means before tanh and log-variances of actions."""
    if discrete:
        return (torch.tensor([[[factor / 2, -factor / 2]]]), torch.zeros(1, 1, 2))
    log_variance = 2 * math.log(SPREAD) if factor else math.log(SPREAD**2 + math.tanh(0.5) ** 2)
    bias = torch.tensor([[[0.0, 0.0, log_variance, log_variance]]])
    return (torch.tensor([[[0.5, -0.5, 0, 0]]]) * bool(factor), bias)


def people(discrete: bool, lasting: bool, units: int = 2000, steps: int = 10) -> Ragged:
    """People act by a sign of ±1, which lasts or is another one at every step; a column tells
    it.
    """
    drawn = torch.Generator().manual_seed(0)
    shape = (units, 1) if lasting else (units, steps)
    sign = torch.randint(2, shape, generator=drawn).float().expand(-1, steps) * 2 - 1
    if discrete:
        right = torch.rand(units, steps, generator=drawn) < torch.sigmoid(SEEING * sign)
        actions = torch.stack((right, ~right), -1).float()
    else:
        noise = SPREAD * torch.randn(units, steps, 2, generator=drawn)
        actions = torch.stack((sign, -sign), -1) * math.tanh(0.5) + noise
    return Ragged(list(sign.unsqueeze(-1)), list(actions))


def ask(query: PersistenceQuery, log: Ragged, weights: Weights) -> float:
    """The exact answer."""
    return float(query.total(log, plain_maps(1, 2), weights)) / (ONE * log.units)


@pytest.mark.parametrize("discrete", [False, True])
def test_a_sign_that_lasts_is_found_where_no_column_tells_it(discrete: bool) -> None:
    query = QUERIES[discrete]
    assert ask(query, people(discrete, lasting=True), clone(discrete, BLIND)) > 0.3
    assert abs(ask(query, people(discrete, lasting=False), clone(discrete, BLIND))) < 0.02
    assert abs(ask(query, people(discrete, lasting=True), clone(discrete, SEEING))) < 0.02


@given(
    values=st.lists(
        st.sampled_from([0.0, 1.0, -1.0, 1e30, -3e38, 1e-30, math.inf, math.nan]), min_size=1
    ),
    steps=st.integers(1, 12),
    discrete=st.booleans(),
)
def test_a_unit_moves_the_sum_by_at_most_one(
    values: list[float], steps: int, discrete: bool
) -> None:
    rows = torch.tensor((values * 40)[: 3 * steps]).view(steps, 3)
    log = Ragged([rows[:, :1]], [rows[:, 1:]])
    found = QUERIES[discrete].total(log, plain_maps(1, 2), clone(discrete, SEEING))
    assert abs(int(found)) <= ONE


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("hidden", [(), (16,)])
def test_a_unit_adds_the_same_in_any_company(discrete: bool, hidden: tuple[int, ...]) -> None:
    shape = CloneNetwork(1, 2, discrete, hidden, -8.0, 1.0)
    weights = tuple(part + 0.1 for part in shape.initial_weights(0))
    log, lengths = people(discrete, lasting=True, units=5, steps=300), (1, 2, 300, 7, 64)
    alone = [
        Ragged([inputs[:n]], [actions[:n]])
        for inputs, actions, n in zip(log.inputs, log.targets, lengths, strict=True)
    ]
    together = Ragged([each.inputs[0] for each in alone], [each.targets[0] for each in alone])
    sums = [QUERIES[discrete].total(each, plain_maps(1, 2), weights) for each in alone]
    whole = QUERIES[discrete].total(together, plain_maps(1, 2), weights)
    assert torch.equal(whole, torch.stack(sums).sum(0))
    assert not sums[0].any(), "one row has no pair"


@pytest.mark.parametrize(
    ("found", "barred"),
    [((0.5, 0.03), True), ((0.2, 0.03), False), ((0.5, 0.3), False), (None, True)],
)
def test_a_trial_is_barred_where_it_is_sure_or_the_answer_is_lost(
    found: tuple[float, float] | None, barred: bool
) -> None:
    assert bool(warn_of_reasons(found)) == barred
