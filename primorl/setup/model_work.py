"""The training of the dynamics model as paid work: what tells it from another. Needs no torch."""

import hashlib
import json
from typing import Any

from primorl.config.params import Params, plain
from primorl.setup.fitting import TRAINING_KEYS
from primorl.setup.partitions import Partitions
from primorl.setup.planning import architecture, make_plan

STAGE = "train_model"


def model_identity(params: Params, partitions: Partitions) -> str:
    """A digest of everything that determines a model but chance and code. Equal digests are one piece of paid work.

    Code is left out: an edited comment or an upgrade must not charge the same people again. δ is left out too: it reads
    the same release's ε elsewhere on its curve. `privacy.draw` is in it: another number pays for another draw.
    """
    if params.unfitted & TRAINING_KEYS:
        return _fitted_identity(params, partitions)
    manifest = partitions.manifest
    plan = make_plan(params, manifest)
    content = {
        "data": partitions.identity,
        "seed": params.seed,
        "architecture": vars(architecture(params, manifest)),
        "dynamics": _asked_of_dynamics(params),
        "plan": None
        if params.dynamics.variant == "mopo"
        else [
            plan.sampling_probability,
            plan.noise_multiplier,
            str(plan.clip),
            plan.rounds,
            [[query.what, query.sensitivity, query.noise_multiplier] for query in plan.queries],
        ],
        "normaliser": params.privacy.statistics.normaliser,
        "bounds": plain(params.chosen.bounds) if _uses_bounds(params) else None,
        "draw": params.privacy.draw,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _fitted_identity(params: Params, partitions: Partitions) -> str:
    """The identity of a training with fitted settings: what they were fitted to, never what they came to.

    So another version of the fit does not charge the same people again.
    """
    unfitted = params.unfitted & TRAINING_KEYS
    asked = {f"dynamics.{key}": value for key, value in _asked_of_dynamics(params).items()} | _asked_of_privacy(params)
    content = {
        "data": partitions.identity,
        "seed": params.seed,
        "asked": {key: value for key, value in asked.items() if key not in unfitted},
        "fitted": sorted(unfitted),
        "bounds": plain(params.chosen.bounds) if _uses_bounds(params) else None,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _asked_of_privacy(params: Params) -> dict[str, Any]:
    """What params.yaml says of the mechanism, by key, where the mechanism depends on it.

    δ decides about the noise where an ε is given, and about nothing where the noise is.
    """
    privacy, statistics = params.privacy, params.privacy.statistics
    of_noise = ("noise_multiplier",) if privacy.target_epsilon is None else ("target_epsilon", "delta")
    keys = (*of_noise, "sampling_probability", "rounds", "clipping_norm", "clipping", "draw")
    queries = ["noise_multiplier"] if statistics.normaliser == "private" or statistics.starts else []
    said = {f"privacy.{key}": getattr(privacy, key) for key in keys}
    return said | {f"privacy.statistics.{key}": getattr(statistics, key) for key in ("normaliser", "starts", *queries)}


def _uses_bounds(params: Params) -> bool:
    """Whether the declared bounds decide about a training."""
    return params.privacy.statistics.normaliser != "public" or params.privacy.statistics.starts


def _asked_of_dynamics(params: Params) -> dict[str, Any]:
    """What params.yaml says of the ensemble and its training.

    Keys that came later are left out where they say what was meant before: the same work keeps its identity.
    """
    said = {key: value for key, value in plain(params.dynamics).items() if key not in ("mopo", "train_anyway")}
    for key, before in (("start", "random"), ("beta_nll", 0.0)):
        if said[key] == before:
            del said[key]
    return said
