"""The mechanism's parts agree, and what leaves a round is the clipped sum plus enough noise over a
constant.
"""

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from primorl.privacy.accounting.epsilon import Training, event_from_json
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import ONE, GaussianQuery, Mechanism
from primorl.privacy.mechanism.sampling import PoissonSampler, SystemEntropy, discrete_gaussian
from primorl.privacy.statement import Statement
from tests.mechanisms import SeededEntropy

QUERIES = (GaussianQuery("normaliser", 3.0, 20.0), GaussianQuery("starts", 2.0, 30.0))
WITHOUT_NOISE = GaussianQuery("starts", 2.0, 0.0)


def mechanism(**changes: object) -> Mechanism:
    clip = EnsembleClip(changes.pop("clipping_norm", 0.5), "flat", 3, 3)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"units": 1000, "unit": "trajectory", "rounds": 20, "delta": 1e-5}
    settings |= {"sampler": PoissonSampler(0.1), "clip": clip, "noise_multiplier": 2.0}
    return Mechanism(**(settings | changes))


def stated(p: Mechanism) -> Statement:
    return p.statement(dataset_fingerprint="abc", public_assumptions=["K"])


def released_noise(p: Mechanism, rounds: int, size: tuple[int, ...]) -> np.ndarray:
    zero = [torch.zeros(size, dtype=torch.float64)] * 2
    return np.stack([torch.stack(p.release(zero)).numpy() for _ in range(rounds)])


def chi_square_tail(noise: np.ndarray, sigma: float) -> float:
    """Two-sided p-value of the noise's mean square under N(0, σ²)."""
    law = stats.chi2(noise.size)
    total = float(((noise.astype(np.float64) / sigma) ** 2).sum())
    return 2 * min(law.cdf(total), law.sf(total))


def test_noise_is_independent_over_coordinates_members_and_rounds() -> None:
    noise = released_noise(
        mechanism(), rounds=40, size=(3, 50, 10)
    )  # [round, tensor, member, 50, 10]

    def correlated(a: np.ndarray, b: np.ndarray) -> bool:
        return abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) > 6 / math.sqrt(a.size)

    assert not correlated(noise[1:], noise[:-1]), "rounds"
    assert not correlated(noise[:, :, 1:], noise[:, :, :-1]), "members"
    assert not correlated(noise[..., 1:], noise[..., :-1]), "coordinates"
    assert not correlated(noise[:, 0], noise[:, 1]), "tensors"
    noise[:, :, 1] = noise[:, :, 0]  # the twin: one draw given to two members
    assert correlated(noise[:, :, 1:], noise[:, :, :-1])


def test_an_empty_cohort_releases_noise() -> None:
    assert np.all(released_noise(mechanism(), rounds=1, size=(3, 20, 10)) != 0)


def test_the_usual_seeds_reach_neither_cohorts_nor_noise() -> None:
    """Equal seeds of every library that has a global generator; the twin, a seeded mechanism,
    repeats itself.
    """

    def drawn(p: Mechanism) -> tuple[list[int], list[float]]:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        return p.cohort().tolist(), released_noise(p, 1, (5,)).ravel().tolist()

    assert all(
        one != other for one, other in zip(drawn(mechanism()), drawn(mechanism()), strict=True)
    )
    assert drawn(mechanism(entropy=SeededEntropy(3))) == drawn(mechanism(entropy=SeededEntropy(3)))
    assert "ntropy" not in repr(mechanism(entropy=SystemEntropy()))


def test_noise_and_sum_are_whole_multiples_of_the_grid_and_added_exactly() -> None:
    p, total = mechanism(entropy=SeededEntropy(3)), torch.rand(4000, dtype=torch.float64) * 1e3
    whole = (total / p.grid).round()
    scale = p.noise_multiplier * (p.clip.sensitivity / p.grid + math.sqrt(4000))
    draw = discrete_gaussian(SeededEntropy(3), 4000, scale)
    (released,) = p.release([total])
    assert torch.equal(released, ((whole + draw) * p.grid / p.expected_cohort).float())
    for rounded in (whole.float() + draw.float(), whole + draw.half()):  # the twins
        assert not torch.equal(released, (rounded.double() * p.grid / p.expected_cohort).float())


def test_the_denominator_is_constant() -> None:
    """The same sum is divided by qK, or by what the mechanism names, whoever came."""
    for denominator, mean in ((None, 0.07), (14.0, 0.5)):
        p = mechanism(noise_multiplier=0.0, denominator=denominator)
        assert p.expected_cohort == 100
        (released,) = p.release([torch.full((3, 2, 2), 7.0, dtype=torch.float64)])
        torch.testing.assert_close(released, torch.full((3, 2, 2), mean))


def test_contradictory_plans_are_refused_and_a_broken_guarantee_is_called_void() -> None:
    refused: list[tuple[dict[str, object], str]] = [
        ({"clipping_norm": math.inf}, "finite clipping norm"),
        ({"units": 0}, "at least one private unit"),
        ({"denominator": 0.0}, "denominator must be positive"),
        ({"queries": (QUERIES[0], QUERIES[0])}, "same name"),
        ({"queries": (WITHOUT_NOISE,)}, "covers no query"),
    ]
    for changes, says in refused:
        with pytest.raises(ValueError, match=says):
            mechanism(**changes)
    void: list[tuple[dict[str, object], str]] = [
        ({"noise_multiplier": 0.0, "queries": (WITHOUT_NOISE,)}, "no noise is added"),
        ({"noise_multiplier": 0.0, "clipping_norm": math.inf}, "updates are not clipped"),
        ({"entropy": SeededEntropy(0)}, "noise is seeded"),
    ]
    for changes, reason in void:
        statement = stated(mechanism(**changes))
        json.dumps(statement.to_json(), allow_nan=False)
        assert reason in statement.void
        assert statement.private is (reason == "noise is seeded")


def test_queries_are_part_of_what_is_stated() -> None:
    p, without = mechanism(queries=QUERIES), mechanism()
    said, bare = stated(p), stated(without)
    content = said.to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert (said.private, said.void, said.neighboring_relation) == (True, (), "zero_out_one")
    run = Training(0.1, 2.0, 20, (20.0, 30.0))
    assert event_from_json(said.event) == run.event
    assert said.epsilon == run.spent(1e-5).epsilon_pld
    assert [(query.what, query.noise_multiplier) for query in said.queries] == [
        ("normaliser", 20.0),
        ("starts", 30.0),
    ]
    assert bare.queries == ()
    assert bare.epsilon is not None
    assert 1.005 * bare.epsilon < said.epsilon < (said.epsilon_rdp or 0)
    curve = [without.spent(rounds).epsilon_pld for rounds in (1, 5, 20)]  # type: ignore[union-attr]
    assert curve == sorted(curve)
    assert curve[-1] == bare.epsilon, (
        "the reservation's from the start: fewer rounds do not lower it"
    )
    assert p.spent(1).epsilon_pld > curve[0]  # type: ignore[union-attr]


def test_an_answer_is_a_noisy_mean_over_the_declared_units() -> None:
    """K is the denominator; the noise of the mean is z · sensitivity / K, and not two thirds or
    three halves of it.
    """
    answers = mechanism(queries=QUERIES).answer(QUERIES[0], torch.full((3000,), 500 * ONE)).numpy()
    sigma = 20.0 * 3.0 / 1000
    assert chi_square_tail(answers - 0.5, sigma) > 1e-6
    assert all(chi_square_tail(answers - 0.5, wrong * sigma) < 1e-6 for wrong in (2 / 3, 3 / 2))
