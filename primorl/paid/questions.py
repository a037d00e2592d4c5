"""What the questions of private evaluation are about, and what they are charged as.

Only the plan of an estimator with rounds imports torch, which is slow.
"""

from typing import TYPE_CHECKING, Literal, cast

from dp_accounting import dp_event

from primorl.base.errors import PipelineError
from primorl.config.blocks import EstimatorName
from primorl.config.params import Params
from primorl.data.storage.schema import DatasetInfo, Manifest
from primorl.privacy.accounting.gaussian import gaussian_mean

if TYPE_CHECKING:
    from primorl.evaluate.private.problem import Problem
    from primorl.model.ensemble import GaussianEnsemble

EVALUATE_PRIVATE = "evaluate_private"
_WEIGHTED: EstimatorName = "doubly_robust"
_ONE_RELEASE: frozenset[EstimatorName] = frozenset({"behaviour", "model_check", "lstd"})
"""Estimators without rounds: what they cost is what one Gaussian release costs."""
_ABOUT: dict[EstimatorName, tuple[Literal["model", "policy"], ...]] = {"behaviour": (), "model_check": ("model",)}


def about(name: EstimatorName, info: DatasetInfo, *, cloned: bool) -> tuple[Literal["model", "policy", "clone"], ...]:
    """Name what a question is about beside the data, as `primorl.paid.answers.estimator` answers it."""
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


def question_event(params: Params, name: EstimatorName, epsilon: float, manifest: Manifest | None) -> dp_event.DpEvent:
    """Build the event that an estimator is charged as at an ε, before there is a model or a policy to ask about.

    One with rounds costs more than a Gaussian release of the same ε where the ledger adds it to others, up to half as
    much again. Its event depends on public numbers alone, and neither on a model nor on a policy.

    Args:
        params: every choice.
        name: of the estimator.
        epsilon: what params.yaml asks for.
        manifest: of the partitions; None: not known, and the event is that of a Gaussian release.

    Raises:
        PipelineError: the estimator does not fit the data, or no noise is enough for its ε.
    """
    if manifest is not None:
        check_question(name, manifest.info)
    if manifest is None or name in _ONE_RELEASE:
        return dp_event.GaussianDpEvent(1 / gaussian_mean(epsilon, params.privacy.delta))
    from primorl.paid.answers import estimator, plan_at

    info = manifest.info
    cloned = info.spaces.discrete_actions and params.behaviour.target_epsilon is not None
    event: dp_event.DpEvent = plan_at(estimator(name, info, cloned=cloned), _problem(params, manifest), epsilon).event
    return event


def _problem(params: Params, manifest: Manifest) -> "Problem":
    """The numbers that a mechanism is planned from. Bounds are 0 and 1: noise multipliers do not depend on them."""
    import torch

    from primorl.evaluate.private.problem import Problem

    spaces = manifest.info.spaces
    states, actions = len(spaces.observation_low), len(spaces.action_low)
    return Problem(
        units=manifest.private_units,
        unit=manifest.info.unit,
        delta=params.privacy.delta,
        horizon=manifest.info.horizon,
        discount=params.evaluation.private.discount,
        observation_low=torch.zeros(states),
        observation_high=torch.ones(states),
        observation_mean=torch.zeros(states),
        observation_scale=torch.ones(states),
        action_low=torch.zeros(actions),
        action_high=torch.ones(actions),
        discrete_actions=spaces.discrete_actions,
        reward_low=0.0,
        reward_high=1.0,
        return_low=0.0,
        return_high=1.0,
        policy=lambda states: states,
        ensemble=cast("GaussianEnsemble", None),  # no plan looks at it
        starts=torch.zeros(1, states),
    )
