"""Membership inference: how often an attacker who holds a release tells who was in the data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from primorl.attacks.population import ACTION_SIZE, OBSERVATION_SIZE, bounds, population
from primorl.attacks.scores import Floats, likelihood_ratio, model_scores, policy_scores
from primorl.attacks.success import Success
from primorl.attacks.units import Units
from primorl.attacks.victims import ON_ONE_CORE, Recipe, Release, release
from primorl.dynamics.architecture import Architecture
from primorl.policy.settings import SacConfig
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training.normaliser_query import ObservationColumns
from primorl.training.settings import EarlyStopping, LocalTraining, ServerTraining
from primorl.training.setup import TrainingSetup

Variant = Literal["no_clip", "no_privacy", "private"]

MEMBERS, OTHERS, PUBLIC, STEPS = 100, 2000, 500, 20
# The attack that a table's column is about, of four on each: for the model the strongest against private variants.
HEADLINE = {"model": "loss, likelihood ratio", "policy": "rewards"}
_PROBABILITY, _ROUNDS, _CLIPPING_NORM, _DELTA, _ENSEMBLE = 0.5, 400, 0.5, 1e-5, 2
_HIDDEN = (64, 64)
# Seeds of units: none is used for two purposes.
_PUBLIC_SEED, _SHADOW_SEED, _TARGET_SEED = 1_000_000, 2_000_000, 3_000_000


def recipe(variant: Variant, epsilon: float | None = None) -> Recipe:
    """Training on a small population until a model without noise knows its members by heart.

    So few units and so many rounds are how not to train privately: at these ε no useful model comes of them. But
    there an attack on the model without noise succeeds, and private training differs in nothing but clip and noise.

    Args:
        variant: which of the pipeline's variants.
        epsilon: of variant private, at δ = 1e-5.
    """
    multiplier = 0.0
    if epsilon is not None:
        multiplier = solve_noise_multiplier(epsilon, _DELTA, _PROBABILITY, _ROUNDS)
    shape = Architecture(OBSERVATION_SIZE, ACTION_SIZE, _ENSEMBLE, _HIDDEN, -1.0, 0.5)
    plan = Plan(
        units=MEMBERS,
        unit="trajectory",
        sampler=PoissonSampler(_PROBABILITY),
        clip=EnsembleClip(math.inf if variant == "no_clip" else _CLIPPING_NORM, "flat", _ENSEMBLE, len(shape.layers)),
        noise_multiplier=multiplier,
        rounds=_ROUNDS,
        delta=_DELTA,
    )
    setup = TrainingSetup(
        plan=plan,
        architecture=shape,
        bounds=bounds(),
        columns=ObservationColumns(OBSERVATION_SIZE, (), discrete_actions=False),
        normaliser="public",
        local=LocalTraining(
            learning_rate=0.02,
            batch_size=5,
            local_epochs=2,
            weight_decay=0.0,
            max_transitions_per_unit=None,
            beta_nll=0.0,
        ),
        server=ServerTraining(
            server_momentum=0.8, server_averaging=0.0, early_stopping=EarlyStopping(every=_ROUNDS, patience=None)
        ),
        seed=0,
        execution=ON_ONE_CORE,
    )
    return Recipe(
        setup,
        SacConfig(
            hidden=_HIDDEN,
            learning_rate=1e-3,
            discount=0.1,  # the reward follows the dose at once
            target_rate=0.01,
            target_entropy=-2.0,
            discrete_target_entropy=0.3,
            reward_scale=1.0,
            batch_size=256,
            epochs=1,
            updates_per_epoch=2000,
            rollout_every=50,
            rollout_batch=512,
            horizon=3,
            buffer_size=20_000,
        ),
    )


def public_units() -> Units:
    """The public split of every victim and every shadow."""
    return population(PUBLIC, STEPS, _PUBLIC_SEED)


@dataclass(frozen=True)
class Attack:
    """Scores of one victim's candidates by every attack, members first.

    Attributes:
        members: how many of the candidates were in the data.
        scores: for "model" and "policy", ``[candidates]`` by the attack's name.
        error: the model's squared error on public units in units of their variance.
    """

    members: int
    scores: dict[str, dict[str, Floats]]
    error: float


class Attacker:
    """Somebody with the recipe, units of their own, and shadow models trained on those.

    Args:
        recipe: the victim's.
        shadows: how many models to train.
        on_round: called after every round of training.
    """

    def __init__(self, recipe: Recipe, shadows: int, on_round: Callable[[], object]) -> None:
        self._recipe = recipe
        self._on_round = on_round
        self._shadows = [self._release(population(MEMBERS, STEPS, _SHADOW_SEED + i)) for i in range(shadows)]

    def attack(self, seed: int) -> Attack:
        """Train a victim on members drawn by ``seed`` and score them and fresh units from the same population."""
        candidates = population(MEMBERS + OTHERS, STEPS, _TARGET_SEED + seed)
        victim = self._release(Units(candidates.inputs[:MEMBERS], candidates.targets[:MEMBERS]))
        shadows = [_scores(shadow, candidates) for shadow in self._shadows]
        scores = _scores(victim, candidates)
        for kind, plain in scores.items():
            ratios = {name: likelihood_ratio(score, [s[kind][name] for s in shadows]) for name, score in plain.items()}
            scores[kind] = plain | {f"{name}, likelihood ratio": ratio for name, ratio in ratios.items()}
        return Attack(MEMBERS, scores, victim.error)

    def _release(self, members: Units) -> Release:
        return release(self._recipe, members, public_units(), self._on_round)


def _scores(released: Release, candidates: Units) -> dict[str, dict[str, Floats]]:
    return {"model": model_scores(released.model, candidates), "policy": policy_scores(released.policy, candidates)}


def successes(attacks: Sequence[Attack]) -> dict[str, dict[str, Success]]:
    """Success of every attack over several victims, for "model" and "policy" by the attack's name."""
    return {
        kind: {
            name: Success.of(
                [attack.scores[kind][name][: attack.members] for attack in attacks],
                [attack.scores[kind][name][attack.members :] for attack in attacks],
            )
            for name in names
        }
        for kind, names in attacks[0].scores.items()
    }
