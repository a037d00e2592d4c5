"""Values that are a share of the model's ε, for logs without an environment: the word ``share`` among suggestions.

Such a log has no other way to tell what a policy is worth, so where nobody says what to spend on it, the clone and the
questions get their shares. With an environment they get nothing.
"""

from collections.abc import Mapping
from typing import Any

from primorl.config.blocks import EstimatorName, Estimators
from primorl.config.reading import found_at
from primorl.project.paths import MODEL

SHARE = "share"
CLONE_SHARE = 0.35
"""ε of the clone over the model's."""
ESTIMATOR_SHARES: Mapping[EstimatorName, float] = {"behaviour": 0.2, "model_check": 0.2}
"""ε of each estimator that is asked over the model's."""
CLONE, ESTIMATORS = "behaviour.target_epsilon", "evaluation.private.estimators"
KEYS = (CLONE, ESTIMATORS)
STATED = f"{MODEL}/privacy.json"
"""Where the model's ε stands if a noise multiplier decides it."""
_DIGITS = 12  # 0.2 × 0.3 is 0.06


def decide(content: dict[str, Any], origins: dict[str, str], environment: object) -> None:
    """Put numbers in the place of ``share``, in both arguments.

    A noise multiplier decides the model's ε when it is trained. Then no clone is made, and the origin of the
    estimators is `STATED`: the stage asks them at `estimators` of the ε that the model's statement has.
    """
    target = found_at(content, "privacy.target_epsilon")
    for key in KEYS:
        block, _, last = key.rpartition(".")
        place = found_at(content, block)
        if not isinstance(place, dict) or place.get(last) != SHARE:
            continue
        if environment is None and isinstance(target, int | float):
            place[last] = clone(target) if key == CLONE else estimators(target)
            continue
        place[last] = None if key == CLONE else {}
        if environment is None and key == ESTIMATORS:
            origins[key] = STATED


def clone(epsilon: float) -> float:
    """ε of the clone beside a model of this ε."""
    return round(CLONE_SHARE * epsilon, _DIGITS)


def estimators(epsilon: float) -> Estimators:
    """What is asked of the private units beside a model of this ε."""
    return {name: round(share * epsilon, _DIGITS) for name, share in ESTIMATOR_SHARES.items()}
