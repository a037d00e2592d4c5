"""Stage: SAC on the pessimistic model, near the clone of the behaviour if there is one.

It opens nothing private, so its output is as private as model and clone together.
"""

import sys
from dataclasses import replace

import torch
from torch import Tensor

from pipeline.runner import run_stage
from primorl.config.params import Params, plain
from primorl.dynamics.ends import without_head
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.pessimism import PessimisticModel
from primorl.dynamics.starts import StartModel
from primorl.dynamics.termination import NONE
from primorl.policy.behaviour import BehaviourConfig
from primorl.policy.config import PolicyPointer
from primorl.policy.replay import ReplayBuffer
from primorl.policy.training import Released, write_pointer, write_trained
from primorl.project.errors import PipelineError
from primorl.project.paths import BEHAVIOUR, MODEL, POLICY
from primorl.setup.compute import policy_device
from primorl.setup.policy_fitting import RESETS, PublicLog, fitted_policy, near_the_clone, needs_public, unfitted
from primorl.simulators.environments import reset_states
from primorl.tracking import StageRun


def body(params: Params, run: StageRun) -> None:
    """Train, then write ``models/policy``; variant mopo only points to where its policy will be."""
    variant = params.dynamics.variant
    released = Released.read(MODEL, variant=variant, environment=params.chosen.environment)
    if variant == "mopo":
        write_pointer(POLICY, PolicyPointer(variant="mopo", policy="models/mopo"), released.statement)
        return
    near_clone, cpu = BehaviourConfig.read(BEHAVIOUR).made, torch.device("cpu")
    model = GaussianEnsemble.load(MODEL, cpu)
    public = PublicLog.open() if near_clone or needs_public(params, model.termination) else PublicLog(None)
    believed = public.believes(model)
    if unfitted(params):
        found = params.fitted(fitted_policy(params, public, model, near_clone=near_clone))
        run.pipeline.params(found.values(params.unfitted - found.unfitted))
        params = found
    chosen, near = params.policy, None
    device = policy_device(params.compute, len(params.policy_seeds) * max(chosen.hidden))
    if near_clone:
        released = released.with_clone(BEHAVIOUR)
        near = near_the_clone(params, public, model if believed else without_head(model), device)
    model = GaussianEnsemble.load(MODEL, device)
    write_trained(
        POLICY,
        replace(released, ends=None if believed else NONE),
        PessimisticModel(
            model if believed else without_head(model), uncertainty=chosen.uncertainty, penalty=chosen.penalty
        ),
        chosen,
        starts=_start_states(params, public, released.environment).to(device),
        reset_fraction=chosen.pool_reset_fraction if chosen.starts == "pool" else 1.0,
        sampler=ReplayBuffer.batches,
        seed=params.seed,
        seeds=chosen.seeds,
        settings=plain(chosen),
        run=run,
        near=near,
    )


def _start_states(params: Params, public: PublicLog, environment: str | None) -> Tensor:
    """``[n, S]``: all states of the public split, draws from the released start model, or resets of the environment.

    Raises:
        PipelineError: if no unit is public, or no start model was released.
    """
    if params.policy.starts == "released":
        generator = torch.Generator().manual_seed(params.seed)
        return StartModel.load(MODEL, torch.device("cpu")).sample(RESETS, generator)
    if params.policy.starts != "public":
        assert environment is not None  # checked when params.yaml is read
        return reset_states(environment, RESETS, params.seed)
    if public.store is None:
        raise PipelineError(
            "params.yaml: policy.starts: found public, and no unit is public (partition.public_fraction); allowed: "
            "reset, pool, released (privacy.statistics.starts)"
        )
    return public.store.flat()[0][:, : public.store.observation_size]


if __name__ == "__main__":
    sys.exit(run_stage("optimize_policy", "Train a policy in the pessimistic model; sees no private data.", body))
