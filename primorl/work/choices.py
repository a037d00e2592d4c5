"""Checks of a run's settings against each other and the data, before any number of it is decided.

Reads no private byte.
"""

import math
import sys

from primorl.base.errors import PipelineError
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine.settings import LEAST_UNITS
from primorl.model.termination import LEARNED, NONE, RULES
from primorl.work.public_checks import observation_bounds


def check_choices(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse choices that fit neither each other nor the data.

    Raises:
        PipelineError: names the first such choice.
    """
    _check_declared(params, manifest, public)
    q, units = params.privacy.sampling_probability, manifest.private_units
    if q * units < 1:
        raise PipelineError(
            f"params.yaml: privacy.sampling_probability: found {q:g}, at which less than one of "
            f"{units} units joins a round; allowed is at least 1/{units}"
        )
    patience = params.dynamics.early_stopping.patience
    if patience is not None and not manifest.public_units:
        raise _needs_public(
            "params.yaml: dynamics.early_stopping.patience", patience, "null: all rounds are run"
        )
    if patience is not None and params.dynamics.model == "linear":
        raise PipelineError(
            f"params.yaml: dynamics.early_stopping.patience: found {patience}, with linear heads, "
            "which nobody public judges; allowed: null, all rounds are run"
        )
    if manifest.info.environment is None:
        _check_starts(params, manifest)
        manifest.declared_horizon()
    _check_termination(params, manifest, public)
    if params.dynamics.start == "public":
        _check_public_start(params, public)
    observation_bounds(params.chosen.bounds, manifest, public)


def warn_of_delta(params: Params, manifest: Manifest) -> None:
    """Warn where δ promises nothing: a mechanism that publishes a whole unit would pass."""
    delta, units = params.privacy.delta, manifest.private_units
    if params.dynamics.variant == "private" and delta >= 1 / units:
        print(
            f"warning: params.yaml: privacy.delta = {delta:g} is not below 1/{units}, one over "
            "the number of units: a mechanism that publishes a whole unit would pass; choose a "
            "smaller delta",
            file=sys.stderr,
        )


def _check_declared(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse parts of different datasets, public statistics where no unit is public, and infinite
    bounds of actions.
    """
    if public.info != manifest.info:
        raise PipelineError(
            "data/partitions: its parts are of different datasets; run `dvc repro partition`"
        )
    declared, normaliser = params.chosen.bounds, params.privacy.statistics.normaliser
    dataset = f"datasets/{params.dataset}.yaml"
    sides = (*manifest.info.spaces.action_low, *manifest.info.spaces.action_high)
    if normaliser != "public" and not all(map(math.isfinite, sides)):
        raise PipelineError(
            f"params.yaml: privacy.statistics.normaliser: found {normaliser}, which needs finite "
            f"bounds of actions, and those of dataset {params.dataset} are infinite; declare "
            "them, or use public"
        )
    for key, found, allowed in (
        ("params.yaml: privacy.statistics.normaliser", normaliser, "private (charged)"),
        (f"{dataset}: bounds.observation", declared.observation, "space, {low, high}"),
        (f"{dataset}: bounds.reward", declared.reward, "[low, high]"),
    ):
        if found == "public" and not manifest.public_units:
            raise _needs_public(key, found, allowed)


def _needs_public(key: str, found: object, allowed: str) -> PipelineError:
    """Build the refusal of a choice that needs public units where there are none."""
    return PipelineError(
        f"{key}: found {found}, which needs public units, and data/partitions has none (where "
        "partition in params.yaml was changed since, run `dvc repro partition`); allowed: "
        f"{allowed}"
    )


def _check_public_start(params: Params, public: UnitStore) -> None:
    """Refuse weights from a public split that is too small, or where the normaliser is not known
    beforehand.
    """
    key = "params.yaml: dynamics.start: found public"
    if public.units < LEAST_UNITS:
        raise PipelineError(f"{key}, and {public.units} units are; needed are {LEAST_UNITS}")
    if params.privacy.statistics.normaliser == "private":
        raise PipelineError(
            f"{key}, with privacy.statistics.normaliser: private, whose answer comes later; "
            "allowed: random"
        )


def _check_starts(params: Params, manifest: Manifest) -> None:
    """Refuse a model without an environment in which no policy could start: without public or
    released states.
    """
    if manifest.public_units or params.privacy.statistics.starts:
        return
    raise PipelineError(
        "params.yaml: privacy.statistics.starts: found false, and policies have nowhere to "
        f"start: nobody is public and datasets/{params.dataset}.yaml says environment: null; "
        "allowed is true (charged), or public units"
    )


def _check_termination(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse a termination rule that is unknown, or of another task, or contradicted by the public
    split.
    """
    chosen, size = manifest.info.termination, public.observation_size
    key = f"datasets/{params.dataset}.yaml: termination"
    fitting = sorted(name for name, rule in RULES.items() if rule.observation_size == size)
    if chosen not in (NONE, LEARNED, *fitting):
        allowed = ", ".join((NONE, LEARNED, *fitting))
        raise PipelineError(
            f"{key}: found {chosen!r}; allowed for observations of size {size} are {allowed}"
        )
    if chosen == NONE and public.terminates:
        raise PipelineError(
            f"{key}: found none, but episodes of data/partitions/public terminate; allowed is "
            f"{LEARNED} or a rule"
        )


def check_clone(params: Params, manifest: Manifest) -> None:
    """Refuse a clone of actions that cannot be scaled to [-1, 1]."""
    if not params.clones:
        return
    spaces = manifest.info.spaces
    sides = zip(spaces.action_low, spaces.action_high, strict=True)
    if not all(math.isfinite(high - low) and low < high for low, high in sides):
        raise PipelineError(
            "params.yaml: behaviour.target_epsilon: found a value, and a clone needs finite "
            f"bounds of actions, which dataset {params.dataset} does not have; declare them, or "
            "set it to null"
        )


def check_questions(params: Params, manifest: Manifest) -> None:
    """Refuse questions about a model without first states, or about returns without bounds: before
    the model is paid for, not after.
    """
    names = list(params.evaluation.private.estimators)
    nowhere = not manifest.public_units and not params.privacy.statistics.starts
    if names and nowhere:
        raise PipelineError(
            f"params.yaml: evaluation.private.estimators: found {', '.join(names)}, while no unit "
            "is public and privacy.statistics.starts is false, so rollouts have no first states; "
            "allowed: starts: true (charged), public units, or no estimators"
        )
    if names and manifest.info.horizon is None and params.evaluation.private.discount == 1.0:
        raise PipelineError(
            f"datasets/{params.dataset}.yaml: horizon: not declared, while "
            "evaluation.private.discount is 1, so nothing bounds a return; declare a horizon, or "
            "set a discount below 1"
        )
