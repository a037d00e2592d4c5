"""The attack finds the members of a model that knows them by heart, and nobody in one that never saw them."""

import contextlib
from dataclasses import replace

import pytest

from primorl.attacks import membership
from primorl.attacks.population import population
from primorl.attacks.success import Success
from primorl.attacks.units import Units
from primorl.attacks.victims import Recipe
from tests.attacks.recipes import few_units, shortened


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    few_units(monkeypatch)
    return shortened(membership.recipe("no_clip"))


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
    setup = quick.setup
    still = replace(quick, setup=replace(setup, local=replace(setup.local, learning_rate=0.0)))
    found = attacked(still)
    for kind, name in membership.HEADLINE.items():
        low, high = found[kind][name].auc_interval
        assert low <= 0.5 <= high


def test_variants_differ_in_clip_and_noise_alone() -> None:
    plain, clipped, private = (
        membership.recipe(variant, epsilon).setup.plan
        for variant, epsilon in (("no_clip", None), ("no_privacy", None), ("private", 3.0))
    )
    spent = private.spent()
    assert spent is not None
    assert 2.9 < spent.epsilon_pld <= 3.0
    assert clipped.spent() is None
    assert replace(private, noise_multiplier=0.0, entropy=clipped.entropy) == clipped
    assert replace(clipped, clip=replace(clipped.clip, clipping_norm=float("inf")), entropy=plain.entropy) == plain


def test_shadows_never_saw_the_candidates(quick: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is trained on units of its own, and the public ones are nobody's."""
    seeds: list[int] = []

    def watched(units: int, steps: int, seed: int) -> Units:
        seeds.append(seed)
        return population(units, steps, seed)

    monkeypatch.setattr(membership, "population", watched)
    monkeypatch.setattr(membership, "release", lambda recipe, members, public, on_round: None)
    monkeypatch.setattr(membership, "_scores", lambda release, candidates: {})
    attacker = membership.Attacker(quick, 3, lambda: None)
    with contextlib.suppress(AttributeError):  # there is no victim whose error could be read
        attacker.attack(1)
    public = membership._PUBLIC_SEED
    drawn = [seed for seed in seeds if seed != public]
    assert len(drawn) == len(set(drawn)) == 4
