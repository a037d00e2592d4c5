"""Stage: SAC in the pessimistic model, regularised towards the clone if there is one.

Opens nothing private.
"""

import sys
from dataclasses import replace

import torch

from pipeline.runner import run_stage
from primorl.base.paths import BEHAVIOUR, MANIFEST, MODEL, POLICY
from primorl.config.params import Params, plain
from primorl.data.storage.schema import Manifest
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.pessimism import PessimisticModel
from primorl.model.termination import NONE
from primorl.policy.config import BehaviourConfig
from primorl.policy.replay import ReplayBuffer
from primorl.policy.training import Released, write_trained
from primorl.tracking import StageRun
from primorl.work.compute import policy_device
from primorl.work.policy_fitting import (
    PublicLog,
    clone_reference,
    fitted_policy,
    needs_public,
    planned_policy,
    unfitted,
)


def body(params: Params, run: StageRun) -> None:
    """Train, then write ``models/policy``."""
    params = params.fitted(planned_policy())
    released = Released.read(
        MODEL, variant=params.dynamics.variant, environment=params.chosen.environment
    )
    near_clone, cpu = BehaviourConfig.read(BEHAVIOUR).made, torch.device("cpu")
    model = GaussianEnsemble.load(MODEL, cpu)
    public = (
        PublicLog.open(params)
        if near_clone or needs_public(params, model.termination)
        else PublicLog(None)
    )
    believed = public.believes(model)
    if unfitted(params):
        found = params.fitted(fitted_policy(params, public, model, near_clone=near_clone))
        run.pipeline.params(found.values(params.unfitted - found.unfitted))
        params = found
    chosen, reference = params.policy, None
    one_hot = Manifest.load(MANIFEST).info.spaces.one_hot if MANIFEST.exists() else ()
    device = policy_device(params.compute, len(params.policy_seeds) * max(chosen.hidden))
    if near_clone:
        released = released.with_clone(BEHAVIOUR)
        reference = clone_reference(
            params, public, model if believed else model.without_head(), device
        )
    model = GaussianEnsemble.load(MODEL, device)
    model = model if believed else model.without_head()
    write_trained(
        POLICY,
        replace(released, ends=None if believed else NONE, one_hot=one_hot),
        PessimisticModel(model, uncertainty=chosen.uncertainty, penalty=chosen.penalty),
        chosen,
        starts=public.start_states(params).to(device),
        reset_fraction=chosen.pool_reset_fraction if chosen.starts == "pool" else 1.0,
        sampler=ReplayBuffer.batches,
        seed=params.seed,
        seeds=chosen.seeds,
        settings=plain(chosen),
        run=run,
        reference=reference,
    )


if __name__ == "__main__":
    sys.exit(
        run_stage(
            "optimize_policy",
            "Train a policy in the pessimistic model; sees no private data.",
            body,
        )
    )
