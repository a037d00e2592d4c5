"""What a question to the private units is charged as, before there is a model or a policy to ask about.

Only the plan of an estimator with rounds imports torch, which is slow.
"""

from typing import TYPE_CHECKING, cast

from dp_accounting import dp_event

from primorl.config.blocks import EstimatorName
from primorl.config.params import Params
from primorl.setup.questions import check_question, gaussian_mean
from primorl.trajectories.storage.manifest import Manifest

if TYPE_CHECKING:
    from primorl.dynamics.ensemble import GaussianEnsemble
    from primorl.evaluation.private.problem import Problem

_ONE_RELEASE: frozenset[EstimatorName] = frozenset({"behaviour", "model_check", "lstd"})
"""Estimators without rounds: what they cost is what one Gaussian release costs."""


def question_event(params: Params, name: EstimatorName, epsilon: float, manifest: Manifest | None) -> dp_event.DpEvent:
    """The event of an estimator at an ε.

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
    from primorl.setup.estimators import estimator
    from primorl.setup.private_evaluation import plan_at

    info = manifest.info
    cloned = info.spaces.discrete_actions and params.behaviour.target_epsilon is not None
    event: dp_event.DpEvent = plan_at(estimator(name, info, cloned=cloned), _problem(params, manifest), epsilon).event
    return event


def _problem(params: Params, manifest: Manifest) -> "Problem":
    """The numbers that a mechanism is planned from. Bounds are 0 and 1: noise multipliers do not depend on them."""
    import torch

    from primorl.evaluation.private.problem import Problem

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
