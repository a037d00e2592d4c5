"""What is suggested after a refusal fits, and hardly anything larger would."""

import math

import pytest
from dp_accounting import dp_event

from primorl.privacy.accounting.epsilon import training_event
from primorl.privacy.ledger.budget_advice import multiplier_that_fits, rounds_that_fit

REFUSED = training_event(0.1, 4.0, 150)


@pytest.mark.parametrize("limit", [3.0, 1.5, 0.26])
def test_what_is_found_fits_and_hardly_more_would(limit: float) -> None:
    def fits(event: dp_event.DpEvent) -> bool:
        """A cost in the place of ε: it falls with z and rises with T."""
        assert event.event.sampling_probability == 0.1, "only the asked mechanism is tried"
        return bool(math.sqrt(event.count) / event.event.event.noise_multiplier <= limit)

    multiplier, exact = multiplier_that_fits(REFUSED, fits), math.sqrt(150) / limit
    assert multiplier is not None
    assert exact <= multiplier <= 1.02 * exact
    assert multiplier == float(f"{multiplier:.3g}")  # short enough to be typed into params.yaml
    assert rounds_that_fit(REFUSED, fits) == int((4.0 * limit) ** 2)


def test_nothing_is_suggested_where_nothing_fits_or_there_is_nothing_to_vary() -> None:
    other = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(4.0), 150)
    assert multiplier_that_fits(REFUSED, lambda _: False) is rounds_that_fit(REFUSED, lambda _: False) is None
    for event in (dp_event.NonPrivateDpEvent(), dp_event.GaussianDpEvent(4.0), other):
        assert multiplier_that_fits(event, lambda _: True) is rounds_that_fit(event, lambda _: True) is None
