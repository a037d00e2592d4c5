"""The estimators of private evaluation as settings name them: their subjects, and the data that they fit.

Only the plan of an estimator with rounds imports torch, which is slow.
"""

from typing import Literal

from primorl.base.errors import PipelineError
from primorl.config.blocks import EstimatorName
from primorl.data.storage.schema import DatasetInfo

EVALUATE_PRIVATE = "evaluate_private"
_WEIGHTED: EstimatorName = "doubly_robust"
MEAN_SHARE = 0.5
"""Share of the privacy budget of `behaviour` that its mean has; the rest is for the quantiles."""
ONE_RELEASE: frozenset[EstimatorName] = frozenset({"behaviour", "model_check", "lstd"})
"""Estimators without rounds, which cost as much as one Gaussian release."""
_ABOUT: dict[EstimatorName, tuple[Literal["model", "policy"], ...]] = {
    "behaviour": (),
    "model_check": ("model",),
}


def about(
    name: EstimatorName, info: DatasetInfo, *, cloned: bool
) -> tuple[Literal["model", "policy", "clone"], ...]:
    """Name the released artifacts that an estimator asks about; see `Estimator.about`."""
    found = _ABOUT.get(name, ("model", "policy"))
    weighted = name == _WEIGHTED and cloned and not info.behaviour_probabilities
    return (*found, "clone") if weighted else found


def check_question(name: EstimatorName, info: DatasetInfo) -> None:
    """Refuse an estimator that does not fit the data.

    Raises:
        PipelineError: the estimator weights logged actions, and actions are not discrete.
    """
    if name == _WEIGHTED and not info.spaces.discrete_actions:
        raise PipelineError(
            f"params.yaml: evaluation.private.estimators.{name}: needs discrete actions, and those of {info.dataset} "
            "are a box; take lstd"
        )
