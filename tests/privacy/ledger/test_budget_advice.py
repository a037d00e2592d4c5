"""What is suggested after a refusal fits, and hardly anything larger would."""

import math

import pytest
from dp_accounting import dp_event

from primorl.privacy.accounting.epsilon import training_event
from primorl.privacy.ledger.budget_advice import multiplier_that_fits, rounds_that_fit

REFUSED = training_event(0.1, 4.0, 150)


def cost(event: dp_event.DpEvent) -> float:
    """Stands in for ε: falls with z, rises with T."""
    return float(math.sqrt(event.count) / event.event.event.noise_multiplier)


@pytest.mark.parametrize("limit", [3.0, 1.5, 0.2, 0.01])
def test_the_multiplier_fits_and_two_per_cent_less_does_not(limit: float) -> None:
    found = multiplier_that_fits(REFUSED, lambda event: cost(event) <= limit)
    assert found is not None
    exact = math.sqrt(150) / limit
    assert exact <= found <= 1.02 * exact
    assert found == float(f"{found:.3g}")  # short enough to be typed into params.yaml


@pytest.mark.parametrize("limit", [3.0, 1.5, 0.26])
def test_the_rounds_fit_and_one_more_does_not(limit: float) -> None:
    found = rounds_that_fit(REFUSED, lambda event: cost(event) <= limit)
    assert found == int((4.0 * limit) ** 2)
    assert found < 150


def test_only_the_asked_mechanism_is_tried() -> None:
    tried: list[dp_event.DpEvent] = []

    def fits(event: dp_event.DpEvent) -> bool:
        tried.append(event)
        return cost(event) <= 1.0

    multiplier_that_fits(REFUSED, fits)
    assert {(event.count, event.event.sampling_probability) for event in tried} == {(150, 0.1)}
    tried.clear()
    rounds_that_fit(REFUSED, fits)
    assert {(event.event, 1 <= event.count < 150) for event in tried} == {(REFUSED.event, True)}


def test_nothing_is_suggested_where_nothing_fits_or_there_is_nothing_to_vary() -> None:
    assert multiplier_that_fits(REFUSED, lambda _: False) is None
    assert rounds_that_fit(REFUSED, lambda _: False) is None
    other = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(4.0), 150)
    for event in (dp_event.NonPrivateDpEvent(), dp_event.GaussianDpEvent(4.0), other):
        assert multiplier_that_fits(event, lambda _: True) is None
        assert rounds_that_fit(event, lambda _: True) is None
