"""Stage: SAC in the pessimistic model, regularised towards the clone if there is one.

Opens nothing private.
"""

import sys
from dataclasses import replace

import torch

from pipeline.runner import run_stage
from primorl.base.paths import BEHAVIOUR, MANIFEST, MODEL, POLICY
from primorl.base.processes import choose_device
from primorl.config.params import Params, plain
from primorl.data.storage.schema import Manifest
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.pessimism import PessimisticModel
from primorl.model.termination import LEARNED, NONE
from primorl.policy.config import BehaviourConfig
from primorl.policy.optimisation import ReleasedModel, optimise, write
from primorl.tracking import StageRun
from primorl.work.policy import (
    PublicLog,
    clone_reference,
    decide_policy,
    is_undecided,
    planned_policy,
    sac_config,
)


def body(params: Params, run: StageRun) -> None:
    """Train, then write ``models/policy``."""
    policy, variant = planned_policy(), params.dynamics.variant
    released = ReleasedModel.read(MODEL, variant=variant, environment=params.chosen.environment)
    near_clone, cpu = BehaviourConfig.read(BEHAVIOUR).made, torch.device("cpu")
    model = GaussianEnsemble.load(MODEL, cpu)

    asks = is_undecided(policy) or policy.starts == "public" or model.termination == LEARNED
    public = PublicLog.open(params) if near_clone or asks else PublicLog(MODEL, None)
    believed = public.believes(model)
    decided = decide_policy(policy, public, model, near_clone=near_clone)
    run.params({"seed": params.seed, "policy": plain(decided)})

    one_hot = Manifest.load(MANIFEST).info.spaces.one_hot if MANIFEST.exists() else ()
    width = len(params.policy_seeds) * max(decided.hidden)
    device = choose_device(params.compute.device, params.compute.threads, width)
    reference = None
    if near_clone:
        released = released.with_clone(BEHAVIOUR)
        own = model if believed else model.without_head()
        reference = clone_reference(params, public, own, device)
    model = GaussianEnsemble.load(MODEL, device)
    model = model if believed else model.without_head()
    assert decided.uncertainty is not None  # as the stage `plan` decided it
    assert decided.penalty is not None
    pessimistic = PessimisticModel(model, uncertainty=decided.uncertainty, penalty=decided.penalty)
    starts = public.start_states(params, str(decided.starts)).to(device)
    policies = optimise(
        pessimistic,
        starts,
        sac_config(decided),
        params.policy_seeds,
        decided.pool_reset_fraction if decided.starts == "pool" else 1.0,
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
