"""Recipes small enough for a test."""

from dataclasses import replace

import pytest

from primorl.attacks import membership
from primorl.attacks.victims import Recipe
from primorl.training.settings import EarlyStopping


def few_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty members, two hundred others."""
    for name, count in (("MEMBERS", 20), ("OTHERS", 200), ("PUBLIC", 50)):
        monkeypatch.setattr(membership, name, count)


def shortened(recipe: Recipe) -> Recipe:
    """As many rounds as it takes to know twenty units by heart, and hardly a policy."""
    setup = recipe.setup
    return replace(
        recipe,
        setup=replace(
            setup,
            plan=replace(setup.plan, rounds=60),
            local=replace(setup.local, learning_rate=0.01),  # of twenty, now and then many more join than expected
            server=replace(setup.server, early_stopping=EarlyStopping(every=60, patience=None)),
        ),
        policy=replace(recipe.policy, hidden=(32, 32), updates_per_epoch=100, batch_size=128),
    )
