"""Whether people act by something that a clone does not know: a sign that lasts and that no column
tells, or columns together. What a clone's people are asked after its rounds.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from primorl.engine.clone_queries import PersistenceQuery, ProductsQuery
from primorl.engine.heads import PRODUCTS, contributions, list_products
from primorl.model.architecture import CloneNetwork
from primorl.model.ensemble import Weights
from primorl.model.features import Columns
from primorl.privacy.mechanism.mechanism import ONE
from primorl.stages.training import warn_of_reasons
from tests.model.models import plain_maps
from tests.units import Ragged

SPREAD = 0.5  # of people's actions in a box
# of a clone that does not look at the one column, and of one that acts by it alone
BLIND, SEEING = 0.0, 1.7
COLUMNS = {discrete: Columns(1, 2, (), discrete) for discrete in (False, True)}
QUERIES = {discrete: PersistenceQuery(each, (-8.0, 8.0)) for discrete, each in COLUMNS.items()}
OF_PRODUCTS = {discrete: ProductsQuery(each, (-8.0, 8.0)) for discrete, each in COLUMNS.items()}


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


@pytest.mark.parametrize("together", [True, False])
def test_two_columns_that_decide_together_are_found(together: bool) -> None:
    """The twin: by one of them alone, which a line expresses."""
    drawn = torch.Generator().manual_seed(0)
    column = torch.randn(2000, 10, 2, generator=drawn)
    sign = column.prod(-1) if together else column[..., 0]
    right = torch.rand(2000, 10, generator=drawn) < torch.sigmoid(2 * sign)
    log = Ragged(list(column), list(torch.stack((right, ~right), -1).float()))
    factor = 0.0 if together else 1.0  # the best line
    line = torch.tensor([[[factor, -factor], [0.0, 0.0]]]), torch.zeros(1, 1, 2)
    query = ProductsQuery(Columns(2, 2, (), True), (-8.0, 8.0))
    answer = query.total(log, plain_maps(2, 2), line).double() / (ONE * log.units)
    share, error = query.share(answer, 0.003, log.units, plain_maps(2, 2))
    assert (share > 0.15) == together
    assert (abs(share) < 0.02) != together
    assert error < 0.05
    assert bool(warn_of_reasons((0.0, 0.0), (share, error))) == together


def test_the_share_is_right_and_so_is_its_error() -> None:
    """Over draws of the noise. The twin takes the noise for half as large again."""
    query, noise, units = ProductsQuery(Columns(4, 2, (), True), (-8.0, 8.0)), 0.02, 1000
    exact = torch.full((20,), 0.05)
    drawn = exact + noise * torch.randn(2000, 20, generator=torch.Generator().manual_seed(0))
    maps = plain_maps(4, 2)
    found = [query.share(answer, noise, units, maps) for answer in drawn]
    shares, errors = torch.tensor(found).double().T
    truth = 10 * (float(exact.square().sum()) - 1 / units)
    assert abs(float(shares.mean()) - truth) < 0.02
    assert float(errors.mean()) == pytest.approx(float(shares.std()), rel=0.15)
    wrong = torch.tensor(
        [query.share(answer, 1.5 * noise, units, plain_maps(4, 2))[0] for answer in drawn]
    )
    assert abs(float(wrong.mean()) - truth) > 0.05


def test_lines_in_categories_are_no_products() -> None:
    """A category has no square, and two of one part no product; the twin: they are numbers."""
    columns = Columns(5, 2, ((1, 3),), True)
    known = list_products(columns)
    assert known == ((0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (2, 4), (3, 4), (4, 4))
    assert contributions(columns)[PRODUCTS].size == 2 * len(known)
    drawn = torch.Generator().manual_seed(0)
    part = torch.eye(3)[torch.randint(3, (2000, 5), generator=drawn)]
    column = torch.cat((torch.randn(2000, 5, 1, generator=drawn), part), -1)
    right = torch.rand(2000, 5, generator=drawn) < 0.9  # the clone below has one half
    log = Ragged(list(column), list(torch.stack((right, ~right), -1).float()))
    clone, maps = (torch.zeros(1, 4, 2), torch.zeros(1, 1, 2)), plain_maps(4, 2)
    for one_hot, barred in ((((1, 3),), False), ((), True)):
        query = ProductsQuery(Columns(4, 2, one_hot, True), (-8.0, 8.0))
        answer = query.total(log, maps, clone).double() / (ONE * log.units)
        share = query.share(answer, 0.001, log.units, maps)
        assert bool(warn_of_reasons(None, share)) == barred


def test_a_rule_by_a_number_and_a_category_is_told() -> None:
    """Of five categories: the sign of a number decides in two of them, its opposite in three. The
    twin takes the categories for numbers of one scale.
    """
    drawn = torch.Generator().manual_seed(0)
    kind = torch.randint(5, (2000, 10), generator=drawn)
    number = torch.randn(2000, 10, 1, generator=drawn)
    right = number[..., 0] * torch.where(kind < 2, 1.0, -1.0) > 0
    column = torch.cat((number, torch.eye(5)[kind]), -1)
    log = Ragged(list(column), list(torch.stack((right, ~right), -1).float()))
    maps = replace(plain_maps(6, 2), input_mean=torch.tensor([0.0] + 5 * [0.2]))
    clone = torch.zeros(1, 6, 2), torch.zeros(1, 1, 2)
    shares = []
    for one_hot in (((1, 5),), ()):
        query = ProductsQuery(Columns(6, 2, one_hot, True), (-8.0, 8.0))
        answer = query.total(log, maps, clone).double() / (ONE * log.units)
        shares.append(query.share(answer, 0.001, log.units, maps)[0])
    # a line in |z| ≤ 2 explains 2/π of a sign; what is left of a sign's mean is a line
    assert shares[0] == pytest.approx(0.96 * 2 / math.pi, abs=0.06)
    assert shares[1] < 0.15


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
    for query in (QUERIES[discrete], OF_PRODUCTS[discrete]):
        found = query.total(log, plain_maps(1, 2), clone(discrete, SEEING))
        assert float(found.double().norm()) <= ONE
    wide = ProductsQuery(Columns(3, 2, ((1, 2),), discrete), (-8.0, 8.0))
    logits = tuple(
        part + 0.5 for part in CloneNetwork(3, 2, discrete, (), -8.0, 1.0).initial_weights(0)
    )
    found = wide.total(Ragged([rows], [rows[:, 1:]]), plain_maps(3, 2), logits)
    assert float(found.double().norm()) <= ONE


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("hidden", [(), (16,)])
def test_a_unit_adds_the_same_in_any_company(discrete: bool, hidden: tuple[int, ...]) -> None:
    shape = CloneNetwork(1, 2, discrete, hidden, -8.0, 1.0)
    weights = tuple(part + 0.1 for part in shape.initial_weights(0))
    log, lengths = people(discrete, lasting=True, units=5, steps=300), (1, 2, 300, 7, 64)
    alone = [
        Ragged([inputs[:n] * 0.7], [actions[:n]])
        for inputs, actions, n in zip(log.inputs, log.targets, lengths, strict=True)
    ]
    together = Ragged([each.inputs[0] for each in alone], [each.targets[0] for each in alone])
    for query in (QUERIES[discrete], OF_PRODUCTS[discrete]):
        sums = [query.total(each, plain_maps(1, 2), weights) for each in alone]
        whole = query.total(together, plain_maps(1, 2), weights)
        assert torch.equal(whole, torch.stack(sums).sum(0))
        assert whole.any()
        assert sums[0].any() == (query is OF_PRODUCTS[discrete]), "one row has no pair"


KNOWN = (0.0, 0.01)


@pytest.mark.parametrize(
    ("persistence", "products", "lost", "barred"),
    [
        ((0.5, 0.03), KNOWN, False, 1),
        ((0.2, 0.03), KNOWN, False, 0),
        ((0.5, 0.3), KNOWN, False, 0),
        (KNOWN, (0.2, 0.03), False, 1),
        (KNOWN, (0.1, 0.03), False, 0),
        (KNOWN, (0.2, 0.15), False, 0),
        ((0.5, 0.03), (0.2, 0.03), False, 2),
        ((0.5, 0.03), None, False, 1),  # of a clone that was paid for before
        (KNOWN, None, False, 0),
        (None, None, True, 1),
    ],
)
def test_a_trial_is_barred_where_it_is_sure_or_an_answer_is_lost(
    persistence: tuple[float, float] | None,
    products: tuple[float, float] | None,
    lost: bool,
    barred: int,
) -> None:
    assert len(warn_of_reasons(persistence, products, lost=lost)) == barred
