"""The plan's parts agree, and what leaves a round is the clipped sum plus enough noise over a constant."""

import json
import math
import random

import numpy as np
import pytest
import torch
from scipy import stats

from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.mechanism.entropy import SeededEntropy, SystemEntropy
from primorl.privacy.mechanism.noise import normals
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import ONE, GaussianQuery
from tests.plans import ensemble_plan


def plan(**changes: object) -> Plan:
    settings = {
        "units": 1000,
        "unit": "trajectory",
        "sampling_probability": 0.1,
        "noise_multiplier": 2.0,
        "clipping_norm": 0.5,
        "clipping": "flat",
        "rounds": 20,
        "delta": 1e-5,
        "members": 3,
        "layers": 3,
    }
    return ensemble_plan(**(settings | changes))  # type: ignore[arg-type]


def released_noise(p: Plan, rounds: int, size: tuple[int, ...]) -> np.ndarray:
    """[rounds, N, ...] releases of a sum of nothing."""
    zero = [torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)]
    return np.stack([torch.stack(p.release(zero)).numpy() for _ in range(rounds)])


def chi_square_tail(noise: np.ndarray, sigma: float) -> float:
    """Two-sided p-value of the noise's mean square under N(0, σ²)."""
    law = stats.chi2(noise.size)
    total = float((noise.astype(np.float64) / sigma).__pow__(2).sum())
    return 2 * min(law.cdf(total), law.sf(total))


def test_noise_has_the_accounted_scale() -> None:
    """σ = zC/(qK); the same test rejects ⅔σ and 3⁄2σ, and noise scaled by a member's clip C/√N."""
    p = plan()
    sigma = 2.0 * 0.5 / 100
    noise = released_noise(p, rounds=30, size=(3, 20, 10))
    assert chi_square_tail(noise, sigma) > 1e-6
    for wrong in (2 / 3, 3 / 2, 1 / math.sqrt(3)):
        assert chi_square_tail(noise, wrong * sigma) < 1e-6


def test_noise_is_independent_over_coordinates_members_and_rounds() -> None:
    noise = released_noise(plan(), rounds=40, size=(3, 50, 10))  # [round, tensor, member, 50, 10]
    pairs = {
        "rounds": (noise[1:], noise[:-1]),
        "members": (noise[:, :, 1:], noise[:, :, :-1]),
        "coordinates": (noise[..., 1:], noise[..., :-1]),
        "tensors": (noise[:, 0], noise[:, 1]),
    }
    for name, (a, b) in pairs.items():
        correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
        assert abs(correlation) < 6 / math.sqrt(a.size), name
    shared = noise.copy()
    shared[:, :, 1] = shared[:, :, 0]  # the twin: one draw given to two members
    a, b = shared[:, :, 1:], shared[:, :, :-1]
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) > 6 / math.sqrt(a.size)


def test_an_empty_cohort_releases_noise() -> None:
    """Nothing may tell that nobody came."""
    noise = released_noise(plan(), rounds=1, size=(3, 20, 10))
    assert np.all(noise != 0)


def test_the_usual_seeds_reach_neither_cohorts_nor_noise() -> None:
    """Equal seeds of every library that has a global generator; the twin, a seeded plan, repeats itself."""

    def drawn(p: Plan) -> tuple[list[int], list[float]]:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        return p.cohort().tolist(), released_noise(p, 1, (5,)).ravel().tolist()

    (cohort, noise), (other_cohort, other_noise) = drawn(plan()), drawn(plan())
    assert cohort != other_cohort
    assert noise != other_noise
    assert drawn(plan(entropy=SeededEntropy(3))) == drawn(plan(entropy=SeededEntropy(3)))


def test_noise_is_drawn_and_added_in_double_precision() -> None:
    """The release is the double-precision sum plus the double-precision draw, rounded once, at the end."""
    p, total = plan(entropy=SeededEntropy(3)), torch.rand(4000, dtype=torch.float64) * 1e3
    scale = p.noise_multiplier * p.clip.sensitivity
    draw = normals(SeededEntropy(3), 4000) * scale
    (released,) = p.release([total])
    assert torch.equal(released, ((total + draw) / p.expected_cohort).float())
    for rounded in (total.float() + draw.float(), total + draw.half()):  # the twins
        assert not torch.equal(released, (rounded.double() / p.expected_cohort).float())


def test_the_denominator_is_constant() -> None:
    """The same sum is divided by qK whoever came."""
    p = plan(noise_multiplier=0.0)
    total = [torch.full((3, 2, 2), 7.0, dtype=torch.float64)]
    assert p.expected_cohort == 100
    torch.testing.assert_close(p.release(total)[0], torch.full((3, 2, 2), 0.07))


def test_contradictory_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="finite clipping norm"):
        plan(clipping_norm=math.inf)
    with pytest.raises(ValueError, match="at least one private unit"):
        plan(units=0)


def test_statement_is_complete_and_plain_json() -> None:
    p = plan()
    statement = p.statement(dataset_fingerprint="abc", public_assumptions=["K"]).to_json()
    assert json.loads(json.dumps(statement, allow_nan=False)) == statement
    assert statement["private"] is True
    assert statement["epsilon"] == p.spent().epsilon_pld  # type: ignore[union-attr]
    assert statement["epsilon"] < statement["epsilon_rdp"]
    assert statement["void"] == []
    assert statement["neighboring_relation"] == "zero_out_one"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"noise_multiplier": 0.0}, "no noise is added"),
        ({"noise_multiplier": 0.0, "clipping_norm": math.inf}, "updates are not clipped"),
        ({"entropy": SeededEntropy(0)}, "noise is seeded"),
    ],
)
def test_a_broken_guarantee_is_called_void(changes: dict[str, object], reason: str) -> None:
    statement = plan(**changes).statement(dataset_fingerprint="abc", public_assumptions=[]).to_json()
    json.dumps(statement, allow_nan=False)
    assert reason in statement["void"]
    assert statement["private"] is (reason == "noise is seeded")


def test_fewer_rounds_do_not_lower_the_stated_epsilon() -> None:
    """`spent` as rounds go by grows up to the statement, which is the reservation's from the start."""
    p = plan()
    curve = [p.spent(r).epsilon_pld for r in (1, 5, 10, 20)]  # type: ignore[union-attr]
    assert curve == sorted(curve)
    assert p.statement(dataset_fingerprint="a", public_assumptions=[]).to_json()["epsilon"] == curve[-1]


QUERIES = (GaussianQuery("normaliser", 3.0, 20.0), GaussianQuery("starts", 2.0, 30.0))


def test_queries_are_part_of_what_is_stated() -> None:
    """Event, ε and its curve hold them; the twin is the plan without."""
    with_them, without = plan(queries=QUERIES), plan()
    said = with_them.statement(dataset_fingerprint="a", public_assumptions=[]).to_json()
    assert event_from_json(said["event"]) == accounting.Training(0.1, 2.0, 20, (20.0, 30.0)).event
    assert said["epsilon"] == accounting.Training(0.1, 2.0, 20, (20.0, 30.0)).spent(1e-5).epsilon_pld
    assert said["epsilon"] > without.spent().epsilon_pld * 1.005  # type: ignore[union-attr]
    assert [(query["what"], query["noise_multiplier"]) for query in said["queries"]] == [
        ("normaliser", 20.0),
        ("starts", 30.0),
    ]
    assert with_them.spent(1).epsilon_pld > without.spent(1).epsilon_pld  # type: ignore[union-attr]
    assert without.statement(dataset_fingerprint="a", public_assumptions=[]).to_json()["queries"] == []


def test_an_answer_is_a_noisy_mean_over_the_declared_units() -> None:
    """K is the denominator; the noise of the mean is z · sensitivity / K, and not two thirds or three halves of it."""
    p = plan(queries=QUERIES)
    answers = p.answer(QUERIES[0], torch.full((3000,), 500 * ONE)).numpy()
    sigma = 20.0 * 3.0 / 1000
    assert chi_square_tail(answers - 0.5, sigma) > 1e-6
    assert all(chi_square_tail(answers - 0.5, wrong * sigma) < 1e-6 for wrong in (2 / 3, 3 / 2))


def test_noise_of_the_rounds_covers_no_query_without() -> None:
    silent = GaussianQuery("starts", 2.0, 0.0)
    with pytest.raises(ValueError, match="covers no query"):
        plan(queries=(silent,))
    assert (
        plan(queries=(silent,), noise_multiplier=0.0)
        .statement(dataset_fingerprint="a", public_assumptions=[])
        .to_json()["void"]
    )


def test_the_plan_never_shows_its_entropy() -> None:
    assert "ntropy" not in repr(plan(entropy=SystemEntropy()))


def test_a_denominator_of_its_own_is_the_constant() -> None:
    total = [torch.full((2, 2), 7.0, dtype=torch.float64)]
    torch.testing.assert_close(plan(noise_multiplier=0.0, denominator=14.0).release(total)[0], torch.full((2, 2), 0.5))
    with pytest.raises(ValueError, match="denominator must be positive"):
        plan(denominator=0.0)


def test_each_query_has_a_name_of_its_own() -> None:
    with pytest.raises(ValueError, match="same name"):
        plan(queries=(QUERIES[0], QUERIES[0]))
