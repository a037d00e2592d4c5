"""The attack finds the members of a model that knows them by heart, and nobody in one that never saw them."""

from dataclasses import replace

import pytest

from pipeline.attacks import membership
from pipeline.attacks.success import Success
from pipeline.attacks.victims import Recipe


def attacked(recipe: Recipe) -> dict[str, dict[str, Success]]:
    return membership.successes([membership.Attacker(recipe, 1, lambda: None).attack(1)])


def test_members_of_a_memorising_model_are_found(quick: Recipe) -> None:
    found = attacked(quick)
    assert found["model"]["loss"].auc > 0.8
    assert found["model"]["loss"].auc_interval[0] > 0.6
    assert set(found["model"]) == {
        "loss",
        "disagreement",
        "loss, likelihood ratio",
        "disagreement, likelihood ratio",
    }
    assert set(membership.HEADLINE) == set(found)
    assert all(name in found[kind] for kind, name in membership.HEADLINE.items())


def test_nobody_is_found_in_a_model_that_never_moved(quick: Recipe) -> None:
    """The twin: the same code on a model that learned nothing."""
    still = replace(quick, local=replace(quick.local, learning_rate=0.0))
    found = attacked(still)
    for kind, name in membership.HEADLINE.items():
        low, high = found[kind][name].auc_interval
        assert low <= 0.5 <= high


def test_variants_differ_in_clip_and_noise_alone() -> None:
    plain, clipped, private = (
        membership.recipe(variant, epsilon).plan
        for variant, epsilon in (("no_clip", None), ("no_privacy", None), ("private", 3.0))
    )
    spent = private.spent()
    assert spent is not None
    assert 2.9 < spent.epsilon_pld <= 3.0
    assert clipped.spent() is None
    assert replace(private, noise_multiplier=0.0, entropy=clipped.entropy) == clipped
    assert replace(clipped, clipping_norm=float("inf"), entropy=plain.entropy) == plain


@pytest.mark.parametrize("seeds", [(0, 1)])
def test_no_unit_is_drawn_twice(seeds: tuple[int, int]) -> None:
    """Members, others, shadows' units and public ones are different people, for all seeds a user may give."""
    starts = [membership._PUBLIC_SEED, membership._SHADOW_SEED, membership._TARGET_SEED]
    assert min(b - a for a, b in zip(starts, starts[1:], strict=False)) >= 1_000_000
