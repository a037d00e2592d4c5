"""The estimators of private evaluation by name, with the settings that params.yaml gives them."""

from primorl.config.blocks import PrivateEvaluation
from primorl.evaluation.private.estimator import Estimate
from primorl.evaluation.private.problem import Problem
from primorl.setup.private_evaluation import Asked, plan_at


def asked_for(chosen: PrivateEvaluation, problem: Problem) -> tuple[Asked, ...]:
    """The estimators that params.yaml names, each at its ε.

    Raises:
        PipelineError: an estimator does not fit the data, or no noise is enough for its ε.
    """
    estimators = [getattr(chosen, name) for name in chosen.estimators]
    epsilons = chosen.estimators.values()
    return tuple(
        Asked(each, plan_at(each, problem, epsilon)) for each, epsilon in zip(estimators, epsilons, strict=True)
    )


def free_estimates(problem: Problem) -> tuple[Estimate, ...]:
    """What the released model says of the policy and of the baselines; costs nothing."""
    return ()
