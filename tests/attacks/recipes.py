"""Recipes small enough for a test."""

from dataclasses import replace

import pytest

from primorl.attacks import membership
from primorl.attacks.victims import Recipe


def few_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty members, two hundred others."""
    for name, count in (("MEMBERS", 20), ("OTHERS", 200), ("PUBLIC", 50)):
        monkeypatch.setattr(membership, name, count)


def shortened(recipe: Recipe) -> Recipe:
    """As many rounds as it takes to know twenty units by heart, and hardly a policy."""
    return replace(
        recipe,
        plan=replace(recipe.plan, rounds=60),
        local=replace(recipe.local, learning_rate=0.01),  # of twenty, now and then many more join than expected
        server=replace(recipe.server, look_every=60),
        policy=replace(recipe.policy, hidden=(32, 32), updates_per_epoch=100, batch_size=128),
    )
