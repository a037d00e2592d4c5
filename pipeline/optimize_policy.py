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
from primorl.policy.optimisation import ReleasedModel, optimise, write
from primorl.tracking import StageRun
from primorl.work.compute import policy_device
from primorl.work.policy import (
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
    released = ReleasedModel.read(
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
    run.params({"seed": params.seed, "policy": plain(chosen)})
    pessimistic = PessimisticModel(model, uncertainty=chosen.uncertainty, penalty=chosen.penalty)
    policies = optimise(
        pessimistic,
        public.start_states(params).to(device),
        chosen,
        params.policy_seeds,
        chosen.pool_reset_fraction if chosen.starts == "pool" else 1.0,
        reference,
        run,
    )
    released = replace(released, ends=None if believed else NONE, one_hot=one_hot)
    write(POLICY, policies, released, pessimistic, run)


if __name__ == "__main__":
    sys.exit(
        run_stage(
            "optimize_policy",
            "Train a policy in the pessimistic model; sees no private data.",
            body,
        )
    )
