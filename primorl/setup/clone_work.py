"""The private clone of the behaviour as paid work: what it costs, and what tells it from another. Needs no torch."""

import hashlib
import json
import math
from typing import Literal

from dp_accounting import dp_event

from primorl.config.blocks import FIRST_CLONE
from primorl.config.params import Params, plain
from primorl.privacy.accounting.epsilon import training_event
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.project.errors import PipelineError
from primorl.setup.partitions import Partitions
from primorl.trajectories.storage.manifest import Manifest

STAGE = "clone_behaviour"
SAMPLING_PROBABILITY, ROUNDS = 0.3, 40


def asked(params: Params) -> bool:
    """Whether params.yaml asks for a clone. Variant mopo, which is not private, has none."""
    return params.behaviour.target_epsilon is not None and params.dynamics.variant != "mopo"


def noise_for(epsilon: float, delta: float) -> float:
    """The noise multiplier of a clone at ε.

    Raises:
        PipelineError: none is enough.
    """
    try:
        return solve_noise_multiplier(epsilon, delta, SAMPLING_PROBABILITY, ROUNDS)
    except ValueError as impossible:
        raise PipelineError(
            f"params.yaml: behaviour.target_epsilon = {epsilon:.12g}: {impossible}; raise it, or set it to null"
        ) from None


def clone_event(epsilon: float, delta: float) -> dp_event.DpEvent:
    """What a clone at ε is charged as.

    Raises:
        PipelineError: no noise is enough.
    """
    return training_event(SAMPLING_PROBABILITY, noise_for(epsilon, delta), ROUNDS)


def check_actions(params: Params, manifest: Manifest) -> None:
    """Refuse actions that cannot be scaled to [-1, 1], and a spread of discrete ones.

    Raises:
        PipelineError: names what was found.
    """
    spaces, bounds = manifest.info.spaces, params.behaviour.log_variance_bounds
    if spaces.discrete_actions and bounds != FIRST_CLONE[1]:
        raise PipelineError(
            f"params.yaml: behaviour.log_variance_bounds: found {list(bounds)}, and the actions of dataset "
            f"{params.dataset} are discrete, which have none; set it to auto"
        )
    sides = zip(spaces.action_low, spaces.action_high, strict=True)
    if not all(math.isfinite(high - low) and low < high for low, high in sides):
        raise PipelineError(
            f"params.yaml: behaviour.target_epsilon: found a value, and a clone needs finite bounds of actions, which "
            f"dataset {params.dataset} does not have; declare them, or set it to null"
        )


def normaliser_of_clone(params: Params) -> Literal["public", "bounds"]:
    """Where its normaliser comes from. One from private rows would be one more query; declared bounds cost nothing."""
    return "public" if params.privacy.statistics.normaliser == "public" else "bounds"


def clone_identity(params: Params, partitions: Partitions) -> str:
    """A digest of all that was asked for. What this module makes of it is left out, as in `model_work`.

    So a version with other constants does not charge the same people again: `TrainingSetup.digest` tells a plan from
    another, and a charge is neither resumed nor restored under another one.
    """
    normaliser = normaliser_of_clone(params)
    content = {
        "stage": STAGE,
        "data": partitions.identity,
        "seed": params.seed,
        "variant": params.dynamics.variant,
        "epsilon": [params.behaviour.target_epsilon, params.privacy.delta],
        "normaliser": normaliser,
        "bounds": None if normaliser == "public" else plain(params.chosen.bounds),
        "draw": params.privacy.draw,
    }
    if (network := params.behaviour.chosen_network()) is not None:
        content["network"] = network
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
