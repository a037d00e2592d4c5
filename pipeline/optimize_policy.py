"""Stage: SAC on the pessimistic model. Opens nothing private, so its output is as private as the model."""

import sys
from pathlib import Path

import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from torch import Tensor

from pipeline.policy_training import MODEL, Released, load_model, write_trained
from pipeline.runner import run_stage
from primorl.config.params import Params
from primorl.dynamics.starts import StartModel
from primorl.policy.config import PolicyPointer
from primorl.policy.replay import ReplayBuffer
from primorl.project.errors import PipelineError
from primorl.project.files import replaced_directory
from primorl.simulators import environments
from primorl.tracking import StageRun
from primorl.trajectories.storage.store import UnitStore

PUBLIC = Path("data/partitions/public")
OUTPUT = Path("models/policy")
_MOPO = Path("models/mopo")
_RESETS, _SIDE_BY_SIDE = 4096, 32


def body(params: Params, run: StageRun) -> None:
    """Train, then write ``models/policy``; variant mopo only points to where its policy will be."""
    released = Released.read(params)
    if params.dynamics.variant == "mopo":
        with replaced_directory(OUTPUT) as fresh:
            PolicyPointer(variant="mopo", policy="models/mopo").write(fresh)
            released.statement.write(fresh)
        return
    model, device = load_model(params)
    chosen = params.policy
    write_trained(
        OUTPUT,
        params,
        run,
        released=released,
        model=model,
        starts=_start_states(params, released.environment).to(device),
        reset_fraction=chosen.pool_reset_fraction if chosen.starts == "pool" else 1.0,
        sampler=ReplayBuffer.batches,
    )


def _start_states(params: Params, environment: str | None) -> Tensor:
    """``[n, S]``: every state of the public split, drawn from the released first states, or environment's resets.

    Raises:
        PipelineError: no unit is public, or no first states were released.
    """
    if params.policy.starts == "released":
        generator = torch.Generator().manual_seed(params.seed)
        return StartModel.load(MODEL, torch.device("cpu")).sample(_RESETS, generator)
    if params.policy.starts != "public":
        assert environment is not None  # params.py refuses it
        return reset_states(environment, _RESETS, params.seed)
    public = UnitStore.open(PUBLIC)
    if public.units == 0:
        raise PipelineError(
            "params.yaml: policy.starts: found public, and no unit is public (partition.public_fraction); allowed: "
            "reset, pool, released (privacy.statistics.starts)"
        )
    return public.flat()[0][:, : public.observation_size]


def reset_states(environment: str, count: int, seed: int) -> Tensor:
    """First observations of ``count`` episodes (rounded up to full vectors), float32 ``[n, S]``.

    Raises:
        PipelineError: the environment cannot be built.
    """
    envs = SyncVectorEnv([lambda: environments.make(environment)] * _SIDE_BY_SIDE)
    try:
        rounds = -(-count // _SIDE_BY_SIDE)
        observations = [envs.reset(seed=seed if number == 0 else None)[0] for number in range(rounds)]
    finally:
        envs.close()
    return torch.from_numpy(np.concatenate(observations).astype(np.float32))


if __name__ == "__main__":
    sys.exit(run_stage("optimize_policy", "Train a policy in the pessimistic model; sees no private data.", body))
