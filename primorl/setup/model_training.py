"""The training of the dynamics model as paid work: what it is, and when its result is refused."""

import hashlib
import json
from typing import Any

from primorl.config.params import Params, plain
from primorl.project.paths import MODEL
from primorl.setup.compute import Place
from primorl.setup.fitting import TRAINING_KEYS, fitted
from primorl.setup.paid_training import PrivateStage
from primorl.setup.partitions import Partitions
from primorl.setup.pooled import train_baseline
from primorl.setup.training import training_setup
from primorl.training.setup import TrainingSetup
from primorl.training.training import Trained
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore


def model_identity(params: Params, setup: TrainingSetup, partitions: Partitions) -> str:
    """A digest of everything that determines a model but chance and code. Equal digests are one piece of paid work.

    Code is left out: an edited comment or an upgrade must not charge the same people again. δ is left out too: it reads
    the same release's ε elsewhere on its curve. `privacy.draw` is in it: another number pays for another draw.
    """
    plan, statistics = setup.plan, params.privacy.statistics
    uses_bounds = statistics.normaliser != "public" or statistics.starts
    if params.unfitted & TRAINING_KEYS:
        return _fitted_identity(params, setup, partitions)
    content = {
        "data": partitions.identity,
        "seed": params.seed,
        "architecture": vars(setup.architecture),
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
        "normaliser": statistics.normaliser,
        "bounds": plain(params.chosen.bounds) if uses_bounds else None,
        "draw": params.privacy.draw,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _fitted_identity(params: Params, setup: TrainingSetup, partitions: Partitions) -> str:
    """The identity of a training with fitted settings: what they were fitted to, never what they came to.

    So another version of the fit does not charge the same people again.
    """
    unfitted, privacy = params.unfitted & TRAINING_KEYS, plain(params.privacy)
    content = {
        "data": partitions.identity,
        "seed": params.seed,
        "dynamics": {
            key: value for key, value in _asked_of_dynamics(params).items() if f"dynamics.{key}" not in unfitted
        },
        "privacy": {
            key: value for key, value in privacy.items() if key != "budget" and f"privacy.{key}" not in unfitted
        },
        "fitted": sorted(unfitted),
        "bounds": plain(params.chosen.bounds),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _asked_of_dynamics(params: Params) -> dict[str, Any]:
    """What params.yaml says of the ensemble and its training.

    Keys that came later are left out where they say what was meant before: the same work keeps its identity.
    """
    said = {key: value for key, value in plain(params.dynamics).items() if key not in ("mopo", "train_anyway")}
    for key, before in (("start", "random"), ("beta_nll", 0.0)):
        if said[key] == before:
            del said[key]
    return said


def _setup(params: Params, manifest: Manifest, public: UnitStore, place: Place) -> TrainingSetup:
    """The training with what is to be fitted in place."""
    return training_setup(fitted(params, manifest, public)[0], manifest, public, place)


def _asked(params: Params) -> bool:
    return params.dynamics.variant != "mopo"


def _refusal(trained: Trained) -> str | None:
    """Why weights that are not finite, or whose public loss beats no constant, are refused."""
    if not trained.finite:
        return (
            "params.yaml: dynamics: training diverged (weights that are not finite); lower dynamics.learning_rate or "
            "privacy.clipping_norm"
        )
    loss = trained.public_loss
    if loss is not None and loss.diverged:
        return (
            "params.yaml: dynamics: the trained model is no better than a constant: its public loss is "
            f"{loss.final:.4g}, that of the initial weights {loss.initial:.4g}, of a constant {loss.constant:.4g}; "
            "lower dynamics.learning_rate, raise privacy.sampling_probability or the target ε, or train a smaller "
            "dynamics.hidden"
        )
    return None


MODEL_TRAINING = PrivateStage(
    name="train_model",
    output=MODEL,
    what="model",
    setup=_setup,
    identity=model_identity,
    asked=_asked,
    pooled=train_baseline,
    refusal=_refusal,
)
