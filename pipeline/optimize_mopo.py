"""Stage: the MOPO baseline's policy. NOT PRIVATE: real transitions are in its batches and begin its rollouts."""

import sys
from contextlib import closing

from pipeline.runner import run_stage
from primorl.base.paths import MODEL, MOPO, PARTITIONS
from primorl.config.params import Params, plain
from primorl.policy.config import PolicyPointer, write_pointer
from primorl.tracking import StageRun


def idle(params: Params) -> bool:
    """For variants other than mopo read no data and point to their policy."""
    if params.dynamics.variant == "mopo":
        return False
    write_pointer(MOPO, PolicyPointer(variant=params.dynamics.variant, policy="models/policy"))
    return True


def body(params: Params, run: StageRun) -> None:
    """Train and write ``models/mopo``."""
    import torch
    from dp_accounting import dp_event

    from primorl.data.storage.rows import UnitStore
    from primorl.model.ensemble import GaussianEnsemble
    from primorl.model.pessimism import PessimisticModel
    from primorl.paid import accounts
    from primorl.paid.compute import policy_device
    from primorl.paid.partitions import Partitions
    from primorl.paid.policy_fitting import PublicLog, fitted_policy, unfitted
    from primorl.paid.private import open_private
    from primorl.policy.replay import Scaling, real_transitions, with_real
    from primorl.policy.training import Released, write_trained

    released = Released.read(MODEL, variant="mopo", environment=params.chosen.environment)
    if unfitted(params):
        public, model = PublicLog.open(params), GaussianEnsemble.load(MODEL, torch.device("cpu"))
        params = params.fitted(fitted_policy(params, public, model, near_clone=False))
    chosen = params.policy
    device = policy_device(params.compute, len(params.policy_seeds) * max(chosen.hidden))
    ensemble = GaussianEnsemble.load(MODEL, device)
    pessimistic = PessimisticModel(ensemble, uncertainty=chosen.uncertainty, penalty=chosen.penalty)
    partitions = Partitions.open(PARTITIONS, params)
    manifest, version = partitions.manifest, partitions.version
    wanted = accounts.request(
        params,
        run,
        manifest.info.dataset,
        version,
        "optimize_mopo",
        dp_event.NonPrivateDpEvent(),
        "",
    )
    with closing(accounts.project_ledger(params)) as ledger:
        charge = ledger.reserve(wanted, accounts.budget(params, manifest.private_units))
        data = open_private(partitions, charge, sys.maxsize)
        assert isinstance(data, UnitStore)
        inputs, targets, terminated = (
            part.to(device) for part in (*data.flat(), data.terminated())
        )
        real = real_transitions(
            inputs, targets, terminated, Scaling.of(pessimistic, chosen.reward_scale)
        )
        write_trained(
            MOPO,
            released,
            pessimistic,
            chosen,
            starts=inputs[:, : data.observation_size],
            reset_fraction=1.0,
            sampler=with_real(real, chosen.mopo_real_fraction),
            seed=params.seed,
            seeds=chosen.seeds,
            settings=plain(chosen),
            run=run,
        )
        ledger.commit(charge.id)


if __name__ == "__main__":
    sys.exit(
        run_stage("optimize_mopo", "Train the MOPO baseline's policy. Not private.", body, idle)
    )
