"""Settings of a private training fitted to public facts of the data, and whether they can learn.

Reads no private byte.

A rule decides: the noise of all rounds over what all rounds can move, s = z √d / (q K √T), must be
small, or of linear heads the variance that the noise adds to predictions (docs/fitted-plan.md).
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primorl.base.errors import PipelineError
from primorl.base.paths import MODEL
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine import heads
from primorl.engine.settings import LEAST_UNITS
from primorl.model.architecture import CanLearn
from primorl.paid.model import (
    TRAIN_MODEL,
    PrivateStage,
    architecture,
    check_choices,
    make_plan,
    model_identity,
    training_setup,
)
from primorl.privacy.mechanism.plan import Plan

if TYPE_CHECKING:
    from primorl.engine.policy_network import Network
    from primorl.engine.setup import TrainingSetup

_COMMON: dict[str, Any] = {
    "dynamics.ensemble_size": 3,
    "dynamics.log_variance_bounds": [-5.0, 3.0],
    "dynamics.server_momentum": 0.6,
    "dynamics.server_averaging": 0.9,
}
_SMALL = ((64, 64), (32, 32), (32,), (16,))
_FROM_SCRATCH: dict[str, Any] = {
    "dynamics.start": "random",
    "dynamics.beta_nll": 0.0,
    "dynamics.learning_rate": 0.01,
    "privacy.rounds": 100,
    "privacy.clipping_norm": 1.0,
}
"""Where no public split tells more; the network is the largest of `_SMALL` that the noise leaves
room for.
"""
_LARGE_STEPS, _NOISE_OF_CLIP = 0.03, 0.1
"""Learning rate of local steps where there is little noise, and s C, of which C is made: at
most 1.
"""
_FROM_PUBLIC: dict[str, Any] = {
    "dynamics.start": "public",
    "dynamics.beta_nll": 1.0,
    "dynamics.learning_rate": 0.0003,
    "privacy.rounds": 20,
    "privacy.clipping_norm": 0.02,
}
"""Where public units make first weights: a few small steps from there."""
_MOST_TRANSITIONS = 6e6  # that all rounds of a training read: some twenty seconds on two cores
_MOST_ROUNDS, _ROWS = 60, 64  # of a training, of one unit and round
_LINEAR: dict[str, Any] = {
    "dynamics.start": "random",
    "dynamics.hidden": [],
    "dynamics.beta_nll": 0.0,
    "dynamics.learning_rate": heads.RATE,
    "dynamics.ensemble_size": 5,
    "dynamics.log_variance_bounds": [-12.0, 4.0],
    "dynamics.server_momentum": heads.MOMENTUM,
    "dynamics.server_averaging": heads.AVERAGING,
    "dynamics.max_transitions_per_unit": heads.ROWS,
    "privacy.rounds": heads.ROUNDS,
    "privacy.clipping_norm": heads.NORM,
}
"""Settings of linear heads; their degree is the largest whose noise is small enough."""
_MOST_ROWS_OF_HEADS = 1.2e8  # that all rounds read
_SHARES = 0.05, 0.5
_BLURRED_YES, _BLURRED_NO = 0.35, 1.0
"""Noise of the variances that scale the features, as a share of them: up to which heads learn, and
from which not.
"""
_LOST_NO = 1.0
"""Share of a target's variance that the noise adds to predictions, from which heads do not learn
(`heads.LOST_YES`).
"""
_NOISE_YES, _NOISE_SOME, _NOISE_NO = 0.2, 0.37, 0.55
"""s up to which runs learned, up to which most did, and from which none did."""


@dataclass(frozen=True)
class Fit:
    """Fitted settings and their expected success.

    Attributes:
        values: fitted settings, by dotted key of params.yaml.
        answer: whether these settings can learn.
        reason: why, in one line.
    """

    values: Mapping[str, Any]
    answer: CanLearn
    reason: str


def fitted(params: Params, manifest: Manifest, public: UnitStore) -> tuple[Params, Fit]:
    """Fit the settings that are to be fitted, and judge all of them.

    Returns:
        The choices with fitted values in place, and the fit.

    Raises:
        PipelineError: the choices fit neither each other nor the data, or no noise multiplier
            reaches the target ε.
    """
    rule = _of_heads if params.dynamics.model == "linear" else _of_network
    fit = rule(params, manifest, public)
    return params.fitted(fit.values), fit


def check_verdict(params: Params, fit: Fit) -> None:
    """Refuse to pay for a private training that cannot learn, unless params.yaml says to train
    anyway.

    Raises:
        PipelineError: the verdict is no.
    """
    dynamics = params.dynamics
    if fit.answer == "no" and dynamics.variant == "private" and not dynamics.train_anyway:
        raise PipelineError(
            f"params.yaml: {params.target_key}: {fit.reason}. Nothing was charged; to train all "
            "the same, set dynamics.train_anyway: true"
        )


def say_fit(stage: str, chosen: Params, fit: Fit) -> None:
    """Print the fitted settings and their expected success."""
    if fit.values:
        said = ", ".join(f"{key} {value}" for key, value in sorted(fit.values.items()))
        print(f"{stage}: fitted to public facts of the data: {said}", file=sys.stderr)
    if chosen.dynamics.variant == "private":
        print(f"{stage}: {fit.reason}", file=sys.stderr)


def noise_share(plan: Plan, shape: "Network") -> float:
    """Return the noise norm of all rounds over the most that all rounds can move: s = z √d / (q K
    √T).
    """
    return plan.noise_multiplier * math.sqrt(shape.parameters / plan.rounds) / plan.expected_cohort


def _of_network(params: Params, manifest: Manifest, public: UnitStore) -> Fit:
    """Fit the largest network that the noise leaves room for."""
    from_public = (
        public.units >= LEAST_UNITS
        and params.privacy.statistics.normaliser == "public"
        and ("dynamics.start" in params.unfitted or params.dynamics.start == "public")
    )
    usual = min(_ROWS, math.ceil(public.size / public.units)) if public.units else _ROWS
    share = _MOST_TRANSITIONS / (manifest.private_units * usual * _MOST_ROUNDS)
    common = _COMMON | (_FROM_PUBLIC if from_public else _FROM_SCRATCH)
    common["dynamics.max_transitions_per_unit"] = _ROWS
    common["privacy.sampling_probability"] = _rounded(min(max(share, _SHARES[0]), _SHARES[1]), 2)
    values, noise = {}, math.inf
    for hidden in _SMALL if "dynamics.hidden" in params.unfitted else (params.dynamics.hidden,):
        values = _wanted(params, common | {"dynamics.hidden": list(hidden)})
        tried = params.fitted(values)
        check_choices(tried, manifest, public)
        noise = noise_share(make_plan(tried, manifest), architecture(tried, manifest))
        if noise <= _NOISE_SOME:
            break
    if not from_public:
        steps = {"privacy.clipping_norm": _rounded(_NOISE_OF_CLIP / max(noise, _NOISE_OF_CLIP), 4)}
        if noise <= _NOISE_YES:
            steps["dynamics.learning_rate"] = _LARGE_STEPS
        values |= _wanted(params, steps)
    answer: CanLearn = "yes" if noise <= _NOISE_YES else "marginal" if noise < _NOISE_NO else "no"
    return _judged(
        values,
        answer,
        f"the noise is {noise:.2f} of what the rounds can move (yes to {_NOISE_YES}, no from "
        f"{_NOISE_NO})",
    )


def _of_heads(params: Params, manifest: Manifest, public: UnitStore) -> Fit:
    """Fit linear heads: features of the largest degree at which the noise is small enough, or else
    of degree 1.

    Degree 3 makes members disagree away from the data, which holds policies back: it is tried where
    no environment can tell a wrong policy from a good one.
    """
    everybody = min(1.0, _MOST_ROWS_OF_HEADS / (manifest.private_units * heads.ROWS * heads.ROUNDS))
    common = _LINEAR | {"privacy.sampling_probability": _rounded(everybody, 2)}
    values, lost, blurred = {}, math.inf, None
    spaces = manifest.info.spaces
    sizes = spaces.observation_size + spaces.action_size, spaces.one_hot
    degrees = heads.degrees(*sizes, cubes=params.chosen.environment is None)
    for degree in degrees if "dynamics.degree" in params.unfitted else (params.dynamics.degree,):
        values = _wanted(params, common | {"dynamics.degree": degree})
        tried = params.fitted(values)
        check_choices(tried, manifest, public)
        plan = make_plan(tried, manifest)
        shape, blurred = architecture(tried, manifest), heads.blurred(plan)
        lost = heads.lost_to_noise(plan, tried.dynamics, tried.dynamics.learning_rate, shape)
        if heads.affords(lost, shape):
            break
    why = (
        f"the noise in what linear heads predict has {lost:.2g} of the variance of the target "
        f"(yes to {heads.LOST_YES:g}, no from {_LOST_NO:g}), before small weights are shrunk; "
        "whether polynomials fit these data is known after training"
    )
    blur = 0.0
    if blurred is not None:
        blur = blurred
        why += (
            f"; the variances that scale their features have a noise of {blur:.0%} (yes to "
            f"{_BLURRED_YES:.0%}, no from {_BLURRED_NO:.0%})"
        )
    answer: CanLearn = "marginal" if lost < _LOST_NO and blur < _BLURRED_NO else "no"
    if lost <= heads.LOST_YES and blur <= _BLURRED_YES:
        answer = "yes"
    return _judged(values, answer, why)


def _judged(values: Mapping[str, Any], answer: CanLearn, why: str) -> Fit:
    words = {"yes": "can learn", "marginal": "may learn little", "no": "cannot learn"}
    return Fit(values, answer, f"these settings {words[answer]}: {why}")


def _rounded(number: float, digits: int) -> float:
    return float(f"{number:.{digits}g}")


def _wanted(params: Params, values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in params.unfitted}


def _fitted_setup(params: Params, manifest: Manifest, public: UnitStore) -> "TrainingSetup":
    return training_setup(fitted(params, manifest, public)[0], manifest, public)


MODEL_TRAINING = PrivateStage(
    name=TRAIN_MODEL,
    output=MODEL,
    what="model",
    setup=_fitted_setup,
    identity=model_identity,
    diverged=(
        "params.yaml: dynamics: training diverged (weights that are not finite); lower "
        "dynamics.learning_rate or privacy.clipping_norm"
    ),
    must_learn=True,
)
