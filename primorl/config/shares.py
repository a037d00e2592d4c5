"""Values that are a share of the model's ε, for logs without an environment: the word ``share`` among suggestions.

Such a log has no other way to tell what a policy is worth, so where nobody says what to spend on it, the clone and the
questions get their shares. With an environment they get nothing.

``privacy.total_epsilon`` is what model, clone and questions cost together. For such a log the model's ε is what the
shares leave of it, whatever is asked: a model that is paid for stays the same when another question is added. With an
environment it is the total.
"""

import math
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
TOTAL, TARGET = "privacy.total_epsilon", "privacy.target_epsilon"
KEYS = (CLONE, ESTIMATORS)
STATED = f"{MODEL}/privacy.json"
"""Where the model's ε stands if a noise multiplier decides it."""
_DIGITS = 12  # 0.2 × 0.3 is 0.06
_LEFT, _LEFT_PER_EPSILON, _LEAST_LEFT = 0.985, 0.01, 0.9
"""Share of a total that the closed form may take. The ledger's filter, which lets a run be chosen by the results of
earlier ones, counts up to 7% more for sampled rounds at ε 8, and less than 2% more at ε 1."""


def decide_shares(content: dict[str, Any], origins: dict[str, str], environment: object) -> None:
    """Put numbers in the place of ``share``, in both arguments, and the model's ε in that of ``target_epsilon``.

    A noise multiplier decides the model's ε when it is trained. Then no clone is made, and the origin of the
    estimators is `STATED`: the stage asks them at `estimators` of the ε that the model's statement has.
    """
    total, delta = found_at(content, TOTAL), found_at(content, "privacy.delta")
    given = found_at(content, TARGET) is not None
    if not given and all(isinstance(value, int | float) and 0 < value < math.inf for value in (total, delta)):
        content["privacy"]["target_epsilon"] = total if environment is not None else model_of(total, delta)
        origins[TARGET] = TOTAL
    target = found_at(content, TARGET)
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


def model_of(total: float, delta: float) -> float:
    """ε of a model that costs ``total`` at ``delta`` together with its shares, to three digits, rounded down.

    All count as Gaussian releases, which they are with linear heads. `primorl.setup.next_charges` holds what they are
    to the total.
    """
    from primorl.privacy.accounting.gaussian import composed_epsilon

    def together(model: float) -> float:
        return composed_epsilon((model, clone(model), *estimators(model).values()), delta)

    low, high, most = 0.0, total, max(_LEFT - _LEFT_PER_EPSILON * total, _LEAST_LEFT) * total
    while high - low > 1e-4 * total:
        middle = (low + high) / 2
        low, high = (middle, high) if together(middle) <= most else (low, middle)
    if low == 0:  # so small that δ alone decides; what all of it costs is checked before a charge
        return total / 2
    scale: float = 10.0 ** (2 - math.floor(math.log10(low)))
    return math.floor(low * scale) / scale


def clone(epsilon: float) -> float:
    """ε of the clone beside a model of this ε."""
    return round(CLONE_SHARE * epsilon, _DIGITS)


def estimators(epsilon: float) -> Estimators:
    """What is asked of the private units beside a model of this ε."""
    return {name: round(share * epsilon, _DIGITS) for name, share in ESTIMATOR_SHARES.items()}
