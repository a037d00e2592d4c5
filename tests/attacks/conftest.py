"""Recipes small enough for a test."""

from dataclasses import replace

import pytest

from pipeline.attacks import membership
from pipeline.attacks.victims import Recipe


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Training without clip and noise that memorises twenty units in seconds, and few candidates to tell apart."""
    monkeypatch.setattr(membership, "MEMBERS", 20)
    monkeypatch.setattr(membership, "OTHERS", 200)
    monkeypatch.setattr(membership, "PUBLIC", 50)
    recipe = membership.recipe("no_clip")
    return replace(
        recipe,
        plan=replace(recipe.plan, rounds=60),
        server=replace(recipe.server, look_every=60),
        policy=replace(recipe.policy, hidden=(32, 32), updates_per_epoch=300, batch_size=128),
    )
