"""The estimators of private evaluation by name, with settings that were measured (docs/evaluation-results.md)."""

from collections.abc import Mapping

from primorl.config.blocks import EstimatorName
from primorl.evaluation.private.behaviour import Behaviour
from primorl.evaluation.private.estimator import Estimate, Estimator
from primorl.evaluation.private.model_check import ModelCheck
from primorl.evaluation.private.problem import Problem
from primorl.setup.private_evaluation import Asked, plan_at

ESTIMATORS: Mapping[str, Estimator] = {
    each.name: each
    for each in (
        Behaviour(levels=9, mean_share=0.5),
        ModelCheck(horizons=(1, 5, 20), starts=8, cap=1.5, bins=16, histogram_share=0.1),
    )
}
"""What `evaluation.private.estimators` may name."""


def asked_for(epsilons: Mapping[EstimatorName, float], problem: Problem) -> tuple[Asked, ...]:
    """The estimators that params.yaml names, each at its ε.

    Raises:
        PipelineError: an estimator does not fit the data, or no noise is enough for its ε.
    """
    return tuple(
        Asked(ESTIMATORS[name], plan_at(ESTIMATORS[name], problem, epsilon)) for name, epsilon in epsilons.items()
    )


def free_estimates(problem: Problem) -> tuple[Estimate, ...]:
    """What the released model says of the policy and of the baselines; costs nothing."""
    return ()
