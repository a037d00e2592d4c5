"""Stage: SAC in the pessimistic model, regularised towards the clone if there is one.

Opens nothing private.
"""

import sys
from dataclasses import fields

import torch

from pipeline.runner import run_stage
from primorl.base.files import BEHAVIOUR, MANIFEST, MODEL, POLICY
from primorl.base.processes import choose_device
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.data.storage.schema import Manifest
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.pessimism import PessimisticModel
from primorl.model.termination import LEARNED
from primorl.policy.config import BehaviourConfig, SacConfig
from primorl.policy.optimisation import count_clone, optimise, read_released, write
from primorl.stages.policy import (
    PublicLog,
    compare_clone,
    decide_policy,
    find_ends,
    is_undecided,
    read_planned_policy,
)


def body(params: Params, log: StageLog) -> None:
    """Train, then write ``models/policy``."""
    # The released model, the clone if one was made, and the public rows.
    planned, variant = read_planned_policy(), params.dynamics.variant
    environment = params.chosen.environment
    facts, statement = read_released(MODEL, variant=variant, environment=environment)
    model = GaussianEnsemble.load(MODEL, torch.device("cpu"))
    near_clone = BehaviourConfig.read(BEHAVIOUR).made
    undecided = is_undecided(planned) or planned.starts == "public"
    looks = near_clone or undecided or model.termination == LEARNED
    public = PublicLog.open(params) if looks else PublicLog(MODEL, None)

    # How episodes end, and what the plan left to the released model.
    ends = find_ends(params, public, model, near_clone=near_clone)
    model = model.with_ends(ends)
    policy = decide_policy(planned, public, model, near_clone=near_clone)

    # What policies are trained in, where rollouts begin, and what holds them near the clone.
    config = SacConfig(**{each.name: getattr(policy, each.name) for each in fields(SacConfig)})
    width = len(params.policy_seeds) * max(config.hidden)
    device = choose_device(params.compute.device, width)
    assert policy.uncertainty is not None  # as the stage `plan` decided it
    assert policy.penalty is not None
    assert policy.reset_fraction is not None
    on_device = GaussianEnsemble.load(MODEL, device).with_ends(ends)
    world = PessimisticModel(on_device, uncertainty=policy.uncertainty, penalty=policy.penalty)
    starts = public.start_states(params, str(policy.starts)).to(device)
    reference = compare_clone(params, public, model, device) if near_clone else None

    policies = optimise(
        world, starts, config, params.policy_seeds, policy.reset_fraction, reference, log
    )
    one_hot = Manifest.load(MANIFEST).info.spaces.one_hot if MANIFEST.exists() else ()
    if near_clone:
        statement = count_clone(statement, BEHAVIOUR, variant)
    write(POLICY, policies, statement, world, ends=ends, one_hot=one_hot or None, **facts)


if __name__ == "__main__":
    sys.exit(run_stage("optimize_policy", __doc__, body))
