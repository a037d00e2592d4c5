"""Stage: SAC on the pessimistic model. Opens nothing private, so its output is as private as the model."""

import sys

import torch
from torch import Tensor

from pipeline.runner import run_stage
from primorl.config.params import Params, plain
from primorl.dynamics.pessimism import PessimisticModel
from primorl.dynamics.starts import StartModel
from primorl.policy.config import PolicyPointer
from primorl.policy.replay import ReplayBuffer
from primorl.policy.training import Released, write_pointer, write_trained
from primorl.project.errors import PipelineError
from primorl.project.paths import MODEL, POLICY, PUBLIC
from primorl.setup.compute import policy_device
from primorl.simulators.environments import reset_states
from primorl.tracking import StageRun
from primorl.trajectories.storage.store import UnitStore

_RESETS = 4096


def body(params: Params, run: StageRun) -> None:
    """Train, then write ``models/policy``; variant mopo only points to where its policy will be."""
    chosen, variant = params.policy, params.dynamics.variant
    released = Released.read(MODEL, variant=variant, environment=params.chosen.environment)
    if variant == "mopo":
        write_pointer(POLICY, PolicyPointer(variant="mopo", policy="models/mopo"), released.statement)
        return
    device = policy_device(params.compute, len(params.policy_seeds) * max(chosen.hidden))
    write_trained(
        POLICY,
        released,
        PessimisticModel.load(MODEL, uncertainty=chosen.uncertainty, penalty=chosen.penalty, device=device),
        chosen,
        starts=_start_states(params, released.environment).to(device),
        reset_fraction=chosen.pool_reset_fraction if chosen.starts == "pool" else 1.0,
        sampler=ReplayBuffer.batches,
        seed=params.seed,
        seeds=chosen.seeds,
        settings=plain(chosen),
        run=run,
    )


def _start_states(params: Params, environment: str | None) -> Tensor:
    """``[n, S]``: all states of the public split, draws from the released start model, or resets of the environment.

    Raises:
        PipelineError: if no unit is public, or no start model was released.
    """
    if params.policy.starts == "released":
        generator = torch.Generator().manual_seed(params.seed)
        return StartModel.load(MODEL, torch.device("cpu")).sample(_RESETS, generator)
    if params.policy.starts != "public":
        assert environment is not None  # checked when params.yaml is read
        return reset_states(environment, _RESETS, params.seed)
    public = UnitStore.open(PUBLIC)
    if public.units == 0:
        raise PipelineError(
            "params.yaml: policy.starts: found public, and no unit is public (partition.public_fraction); allowed: "
            "reset, pool, released (privacy.statistics.starts)"
        )
    return public.flat()[0][:, : public.observation_size]


if __name__ == "__main__":
    sys.exit(run_stage("optimize_policy", "Train a policy in the pessimistic model; sees no private data.", body))
