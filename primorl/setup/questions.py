"""What the questions of private evaluation are about, and what they cost. Needs no torch."""

import math
from typing import Literal

from primorl.config.blocks import EstimatorName
from primorl.privacy.accounting.privacy_filter import gaussian_epsilon
from primorl.project.errors import PipelineError
from primorl.trajectories.storage.schema import DatasetInfo

STAGE = "evaluate_private"
_WEIGHTED: frozenset[EstimatorName] = frozenset({"doubly_robust"})
_ABOUT: dict[EstimatorName, tuple[Literal["model", "policy"], ...]] = {"behaviour": (), "model_check": ("model",)}


def about(name: EstimatorName, info: DatasetInfo, *, cloned: bool) -> tuple[Literal["model", "policy", "clone"], ...]:
    """What a question is about beside the data, as `primorl.setup.estimators.estimator` answers it.

    Args:
        name: as params.yaml has it.
        info: public facts of the dataset.
        cloned: whether there is a clone of the behaviour, with discrete actions.
    """
    found = _ABOUT.get(name, ("model", "policy"))
    weighted = name in _WEIGHTED and cloned and not info.behaviour_probabilities
    return (*found, "clone") if weighted else found


def check_question(name: EstimatorName, info: DatasetInfo) -> None:
    """Refuse an estimator that does not fit the data.

    Args:
        name: as params.yaml has it.
        info: public facts of the dataset.

    Raises:
        PipelineError: if the estimator weights logged actions, and actions are not discrete.
    """
    if name in _WEIGHTED and not info.spaces.discrete_actions:
        raise PipelineError(
            f"params.yaml: evaluation.private.estimators.{name}: needs discrete actions, and those of {info.dataset} "
            "are a box; take lstd"
        )


def gaussian_mean(epsilon: float, delta: float) -> float:
    """The mean of the Gaussian release that costs ε at δ."""
    low, high = 1e-9, 60.0
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(middle, delta) <= epsilon else (low, middle)
    return low
