"""The estimators of private evaluation, with measured settings (docs/results.md), and what they are asked.

Reads no private byte.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from primorl.config.blocks import EstimatorName
from primorl.config.params import Params
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.dynamics.starts import StartModel, asked_of_private, survival_of
from primorl.dynamics.termination import NONE
from primorl.evaluation.private.behaviour import Behaviour
from primorl.evaluation.private.doubly_robust import BehaviourFit, Cloned, DoublyRobust
from primorl.evaluation.private.dptd import Dptd
from primorl.evaluation.private.estimator import Estimator
from primorl.evaluation.private.lstd import Lstd
from primorl.evaluation.private.model_check import ModelCheck
from primorl.evaluation.private.model_values import Clone
from primorl.evaluation.private.problem import Act, Problem, PublicTrajectories, in_float64, public_return_bounds
from primorl.policy.behaviour import BehaviourConfig, BehaviourPolicy, Drawn, released
from primorl.policy.exported import DeterministicPolicy
from primorl.project.errors import PipelineError
from primorl.project.paths import MODEL
from primorl.setup.partitions import Partitions
from primorl.setup.private_evaluation import Asked, plan_at
from primorl.setup.questions import check_question
from primorl.trajectories.storage.rows import UnitStore
from primorl.trajectories.storage.schema import DatasetInfo

BEHAVIOUR = Behaviour(levels=9, mean_share=0.5)
ROLLOUTS = 512
"""In each member of the model, of every policy whose value there is free."""
MODEL_CHECK = ModelCheck(horizons=(1, 5, 20), starts=8, cap=1.5)
_FIT = BehaviourFit(sampling_probability=0.02, rounds=40, clipping_norm=0.5, learning_rate=0.1, budget_share=0.5)


def estimator(name: EstimatorName, info: DatasetInfo, *, cloned: bool) -> Estimator:
    """The estimator of a name, for a dataset.

    The behaviour's probabilities are the log's, where it names them, or else the clone's, or else they are fitted.
    """
    behaviour = None if info.behaviour_probabilities else Cloned() if cloned else _FIT
    match name:
        case "behaviour":
            return BEHAVIOUR
        case "model_check":
            return MODEL_CHECK
        case "lstd":
            return Lstd(model_features=64, rollouts=512, rows=8, clipping_norm=0.05, query_share=0.3)
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
                largest_weight=50.0, behaviour=behaviour, model_features=64, rollouts=512, largest_correction=20.0
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


_STARTS = 4096  # drawn from the released first states


def evaluation_problem(
    params: Params,
    partitions: Partitions,
    policy: Act,
    *,
    discount: float,
    return_bounds: Sequence[float] | Literal["public"] | None,
    ends: str | None = None,
    clone: Clone | None = None,
) -> Problem:
    """The question that the estimators answer about a policy and the released model. Reads no private byte.

    Args:
        params: δ at which costs are stated, and the seed of features and initial weights.
        partitions: of whose public split first states and lengths are used where there are any.
        policy: the one in question.
        discount: γ.
        return_bounds: declared bounds of a trajectory's return, or from the public returns, if there are any; None:
            what the rewards' bounds allow.
        ends: how rollouts end, as the policy's ``config.json`` says: ``none``, or None for how the model says.
        clone: of the behaviour, if there is one.

    Raises:
        PipelineError: neither a horizon nor a discount bounds the return, or the model is missing or broken.
    """
    manifest, public = partitions.manifest, partitions.public
    info = manifest.info
    if info.horizon is None and discount == 1.0:
        raise PipelineError(
            f"datasets/{info.dataset}.yaml: horizon: not declared, while evaluation.private.discount is 1, so nothing "
            "bounds a return; declare a horizon, or set a discount below 1"
        )
    ensemble = GaussianEnsemble.load(MODEL, torch.device("cpu")).with_ends(ends)
    bounds, size = ensemble.bounds, ensemble.architecture.observation_size
    problem = Problem(
        units=manifest.private_units,
        unit=info.unit,
        delta=params.privacy.delta,
        horizon=info.horizon,
        discount=discount,
        observation_low=bounds.observation_low,
        observation_high=bounds.observation_high,
        observation_mean=ensemble.normaliser.input_mean[:size],
        observation_scale=ensemble.normaliser.input_scale[:size],
        action_low=bounds.action_low,
        action_high=bounds.action_high,
        discrete_actions=info.spaces.discrete_actions,
        reward_low=bounds.reward_low,
        reward_high=bounds.reward_high,
        return_low=0.0,
        return_high=0.0,
        policy=policy,
        ensemble=ensemble,
        starts=first_states(public, params.seed),
        seed=params.seed,
        clone=None if clone is None else clone.probabilities,
    )
    problem = problem.with_return_bounds(None if return_bounds == "public" else return_bounds)
    if return_bounds == "public" and public.units > 0:
        recorded = PublicTrajectories.of(public).in_rollouts(ends)
        problem = problem.with_return_bounds(public_return_bounds(recorded, problem))
    if public.units == 0 or asked_of_private(MODEL):
        return replace(problem, survival=survival_of(MODEL, by_model=ends != NONE))
    trajectories = PublicTrajectories.of(public).in_rollouts(ends)
    if info.horizon is None:
        return problem
    return replace(problem, survival=trajectories.survival(info.horizon))


def clone_of(folder: Path, seed: int) -> Clone | None:
    """The clone of the behaviour in ``folder``; None: none was made.

    Args:
        folder: ``models/behaviour``.
        seed: of actions that are drawn.

    Raises:
        PipelineError: a file is missing or broken.
    """
    if not BehaviourConfig.read(folder).made:
        return None
    cpu = torch.device("cpu")
    behaviour, generators = BehaviourPolicy.load(folder, cpu), SeedGenerators.of([seed], cpu)
    return Clone(
        released=act_of(released(behaviour, generators)),
        drawn=act_of(Drawn(behaviour, generators)),
        probabilities=_probabilities(behaviour) if behaviour.discrete_actions else None,
    )


def act_of(policy: DeterministicPolicy | Drawn) -> Act:
    """One policy as estimators ask it; an exported one in float64."""
    exact = in_float64(policy) if isinstance(policy, DeterministicPolicy) else policy
    return lambda observation: exact.act(observation.double()[None])[0]


def _probabilities(behaviour: BehaviourPolicy) -> Act:
    exact = replace(behaviour, policy=in_float64(behaviour.policy))
    return lambda observation: exact.log_probabilities(observation.double()).exp()


def first_states(public: UnitStore, seed: int) -> Tensor:
    """``[n, S]``: where public trajectories begin, or draws from the released start model where none stands for all."""
    if public.units > 0 and not asked_of_private(MODEL):
        return public.first_observations()
    return StartModel.load(MODEL, torch.device("cpu")).sample(_STARTS, torch.Generator().manual_seed(seed))
