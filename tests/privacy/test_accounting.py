"""ε is what two independent accountants say it is, and calibration lands on the safe side."""

import math

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.privacy import accounting

# q, z, T, RDP, PLD at δ = 1e-5 and add/remove: measured with dp-accounting 0.6 before this project began.
GOLDEN = [
    (1e-3, 0.25, 1000, 38.45, 32.20),
    (1e-3, 0.45, 1000, 6.096, 4.74),
    (1e-3, 0.5, 3000, 5.07, 3.94),
    (0.01, 2, 400, 0.428, 0.385),
    (0.03, 4, 1000, 0.989, 0.903),
    (0.1, 16, 1000, 0.788, 0.719),
]


@pytest.mark.parametrize(("q", "z", "rounds", "rdp", "pld"), GOLDEN)
def test_golden_values(q: float, z: float, rounds: int, rdp: float, pld: float) -> None:
    spent = accounting.spent(accounting.training_event(q, z, rounds), 1e-5, rounds=rounds)
    assert spent.epsilon_pld == pytest.approx(pld, rel=2e-3)
    assert spent.epsilon_rdp == pytest.approx(rdp, rel=2e-3)
    assert spent.epsilon_pld <= spent.epsilon_rdp


@pytest.mark.parametrize(("z", "rounds"), [(10.0, 1), (8.0, 16), (40.0, 150)])
def test_without_sampling_it_is_the_exact_gaussian(z: float, rounds: int) -> None:
    """q = 1: T releases are one Gaussian of multiplier z/√T, whose δ(ε) has a closed form (Balle and Wang 2018)."""
    epsilon = accounting.spent(accounting.training_event(1.0, z, rounds), 1e-5, rounds=rounds).epsilon_pld
    mu = math.sqrt(rounds) / z
    normal = stats.norm
    delta = normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=0.03)
    assert delta <= 1e-5 * (1 + 1e-6)


@settings(max_examples=6, deadline=None)
@given(
    target=st.floats(0.2, 8.0), q=st.sampled_from([0.003, 0.03, 0.1, 0.5, 1.0]), rounds=st.sampled_from([1, 40, 300])
)
def test_calibration_round_trip(target: float, q: float, rounds: int) -> None:
    """The multiplier found keeps the target, and one per cent less would break it."""
    z = accounting.solve_noise_multiplier(target, 1e-5, q, rounds)

    def epsilon(multiplier: float) -> float:
        return accounting.spent(accounting.training_event(q, multiplier, rounds), 1e-5, rounds=rounds).epsilon_pld

    assert epsilon(z) <= target
    if z > 0.11:
        assert epsilon(z * 0.98) > target


def test_the_smallest_multiplier_keeps_its_target_too() -> None:
    """ε(0.1) of one full release is about 92: a target of 70 needs more noise than that."""
    z = accounting.solve_noise_multiplier(70.0, 1e-5, 1.0, 1)
    assert accounting.spent(accounting.training_event(1.0, z, 1), 1e-5, rounds=1).epsilon_pld <= 70.0


def test_an_impossible_target_is_refused() -> None:
    with pytest.raises(ValueError, match="no noise multiplier"):
        accounting.solve_noise_multiplier(1e-7, 1e-9, 1.0, 10_000)


def test_events_survive_json() -> None:
    event = accounting.training_event(0.1, 4.0, 150)
    content = accounting.event_to_json(event)
    assert accounting.event_from_json(content) == event
    assert content["count"] == 150
    assert content["event"]["sampling_probability"] == 0.1
    assert content["event"]["event"]["noise_multiplier"] == 4.0
    no_guarantee = dp_event.NonPrivateDpEvent()
    assert accounting.event_from_json(accounting.event_to_json(no_guarantee)) == no_guarantee
    with pytest.raises(ValueError, match="unknown event type 'Rumour'"):
        accounting.event_from_json({"type": "Rumour"})
