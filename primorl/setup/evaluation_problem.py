"""The `Problem` of private evaluation, from the released model, policy and manifest. Reads no private byte."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from primorl.dynamics.ends import with_ends
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.dynamics.starts import StartModel
from primorl.evaluation.private.model_values import Clone
from primorl.evaluation.private.problem import Act, Problem, PublicTrajectories, in_float64, public_return_bounds
from primorl.policy.behaviour import BehaviourConfig, BehaviourPolicy, Drawn, released
from primorl.policy.exported import DeterministicPolicy
from primorl.project.errors import PipelineError
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import UnitStore

_STARTS = 4096  # drawn from the released first states


def evaluation_problem(
    manifest: Manifest,
    model: Path,
    policy: Act,
    public: UnitStore,
    *,
    delta: float,
    discount: float,
    return_bounds: Sequence[float] | Literal["public"] | None,
    seed: int,
    ends: str | None = None,
    clone: Clone | None = None,
) -> Problem:
    """The question that the estimators answer.

    Args:
        manifest: of the partitions.
        model: folder of the released model.
        policy: the one in question.
        public: the public split, whose first states and lengths are used where there are any.
        delta: δ at which costs are stated.
        discount: γ.
        return_bounds: declared bounds of a trajectory's return, or from the public returns, if there are any; None:
            what the rewards' bounds allow.
        seed: of features and initial weights.
        ends: how rollouts end, as the policy's ``config.json`` says: ``none``, or None for how the model says.
        clone: of the behaviour, if there is one.

    Raises:
        PipelineError: neither a horizon nor a discount bounds the return, or the model is missing or broken.
    """
    info = manifest.info
    if info.horizon is None and discount == 1.0:
        raise PipelineError(
            f"datasets/{info.dataset}.yaml: horizon: not declared, while evaluation.private.discount is 1, so nothing "
            "bounds a return; declare a horizon, or set a discount below 1"
        )
    ensemble = with_ends(GaussianEnsemble.load(model, torch.device("cpu")), ends)
    bounds, size = ensemble.bounds, ensemble.architecture.observation_size
    problem = Problem(
        units=manifest.private_units,
        unit=info.unit,
        delta=delta,
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
        starts=_starts(model, public, seed),
        seed=seed,
        clone=None if clone is None else clone.probabilities,
    )
    problem = problem.with_return_bounds(None if return_bounds == "public" else return_bounds)
    if public.units == 0:
        return problem
    trajectories = PublicTrajectories.of(public).in_rollouts(ends)
    if return_bounds == "public":
        problem = problem.with_return_bounds(public_return_bounds(trajectories, problem))
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


def _starts(model: Path, public: UnitStore, seed: int) -> Tensor:
    if public.units > 0:
        return public.first_observations()
    return StartModel.load(model, torch.device("cpu")).sample(_STARTS, torch.Generator().manual_seed(seed))
