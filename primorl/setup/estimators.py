"""The estimators of private evaluation by name, with settings that were measured (docs/evaluation-results.md)."""

from collections.abc import Mapping
from dataclasses import replace

from primorl.config.blocks import EstimatorName
from primorl.evaluation.private.behaviour import Behaviour
from primorl.evaluation.private.doubly_robust import BehaviourFit, Cloned, DoublyRobust
from primorl.evaluation.private.dptd import Dptd
from primorl.evaluation.private.estimator import Estimator
from primorl.evaluation.private.lstd import Lstd
from primorl.evaluation.private.model_check import ModelCheck
from primorl.evaluation.private.model_values import Clone, values_in_model
from primorl.evaluation.private.problem import Problem
from primorl.evaluation.private.results import Answer
from primorl.setup.private_evaluation import Asked, plan_at
from primorl.setup.questions import check_question
from primorl.trajectories.storage.schema import DatasetInfo

BEHAVIOUR = Behaviour(levels=9, mean_share=0.5)
ROLLOUTS = 512
"""In each member of the model, of every policy whose value there is free."""
MODEL_CHECK = ModelCheck(horizons=(1, 5, 20), starts=8, cap=1.5)
_FIT = BehaviourFit(sampling_probability=0.02, rounds=40, clipping_norm=0.5, learning_rate=0.1, budget_share=0.5)


def estimator(name: EstimatorName, info: DatasetInfo, *, cloned: bool) -> Estimator:
    """The estimator of a name, for a dataset.

    The behaviour's probabilities are the log's, where it names them, or else the clone's, or else they are fitted.

    Args:
        name: as params.yaml has it.
        info: public facts of the dataset.
        cloned: whether there is a clone of the behaviour, with discrete actions.
    """
    behaviour = None if info.behaviour_probabilities else Cloned() if cloned else _FIT
    match name:
        case "behaviour":
            return BEHAVIOUR
        case "model_check":
            return MODEL_CHECK
        case "lstd":
            return Lstd(
                model_features=64,
                rollouts=512,
                rows=8,
                clipping_norm=0.05,
                query_share=0.3,
            )
        case "dptd":
            return Dptd(
                of="policy",
                hidden=(16,),
                members=4,
                rounds=300,
                sampling_probability=0.01,
                clipping_norm=0.01,
                alpha=3.0,
                beta=3.0,
                kappa=2.0,
                eta=20.0,
                query_share=0.1,
            )
        case "doubly_robust":
            return DoublyRobust(
                largest_weight=50.0,
                behaviour=behaviour,
                model_features=64,
                rollouts=512,
                largest_correction=20.0,
            )


def asked_for(epsilons: Mapping[EstimatorName, float], problem: Problem, info: DatasetInfo) -> tuple[Asked, ...]:
    """The estimators that params.yaml names, each at its ε.

    Raises:
        PipelineError: an estimator does not fit the data, or no noise is enough for its ε.
    """
    cloned, found = problem.clone is not None, []
    for name, epsilon in epsilons.items():
        check_question(name, info)
        made = estimator(name, info, cloned=cloned)
        asked = Asked(made, plan_at(made, problem, epsilon))
        if "clone" in made.about:  # who paid for an answer with a fitted behaviour does not pay again
            fitted = estimator(name, info, cloned=False)
            asked = replace(asked, earlier=Asked(fitted, plan_at(fitted, problem, epsilon)))
        found.append(asked)
    return tuple(found)


def free_estimates(problem: Problem, clone: Clone | None) -> tuple[Answer, ...]:
    """Values of the policy, the clone and the baselines in the released model; costs nothing."""
    return values_in_model(problem, ROLLOUTS, clone)
