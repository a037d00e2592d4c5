"""Stage: the MOPO baseline's policy. NOT PRIVATE: real transitions are in its batches and begin its rollouts."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch
from dp_accounting import dp_event
from torch import Tensor

from pipeline.policy_training import Released, load_model, write_trained
from pipeline.runner import run_stage
from primorl.config.params import Params
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.config import PolicyPointer
from primorl.policy.replay import ReplayBuffer, Scaling
from primorl.policy.sac import Sampler
from primorl.project.files import replaced_directory
from primorl.setup import accounts
from primorl.setup.accounts import dataset_version, project_ledger
from primorl.tracking import StageRun
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

PARTITIONS = Path("data/partitions")
OUTPUT = Path("models/mopo")
_POLICY = Path("models/policy")


def body(params: Params, run: StageRun) -> None:
    """Train and write ``models/mopo`` for variant mopo; for the others read no data and point to their policy."""
    if params.dynamics.variant != "mopo":
        with replaced_directory(OUTPUT) as fresh:
            PolicyPointer(variant=params.dynamics.variant, policy="models/policy").write(fresh)
        return
    released = Released.read(params)
    model, device = load_model(params)
    manifest = Manifest.load(PARTITIONS / "manifest.json")
    version = dataset_version(manifest, PARTITIONS)
    wanted = accounts.request(
        params, run, manifest, version, stage="optimize_mopo", event=dp_event.NonPrivateDpEvent(), identity=""
    )
    with closing(project_ledger(params)) as ledger:
        charge = ledger.reserve(wanted, accounts.budget(params, manifest))
        data = accounts.open_private(manifest, version, PARTITIONS, sys.maxsize)
        assert isinstance(data, UnitStore)
        scaling = Scaling.of(model, params.policy.reward_scale)
        write_trained(
            OUTPUT,
            params,
            run,
            released=released,
            model=model,
            starts=data.flat()[0][:, : data.observation_size].to(device),
            reset_fraction=1.0,
            sampler=with_real(real_transitions(data, scaling, device), params.policy.mopo_real_fraction),
        )
        ledger.commit(charge.id)


def real_transitions(data: UnitStore, scaling: Scaling, device: torch.device) -> ReplayBuffer:
    """Every transition of ``data`` with its own reward and termination, on SAC's scales."""
    inputs, targets = (part.to(device) for part in data.flat())
    S = data.observation_size
    observation, action, change, reward = inputs[:, :S], inputs[:, S:], targets[:, :S], targets[:, S]
    rows = scaling.rows(observation, action, reward, observation + change, data.terminated().to(device))
    buffer = ReplayBuffer(len(rows), scaling.columns.width, device)
    buffer.extend(rows.unsqueeze(0))
    return buffer


def with_real(real: ReplayBuffer, fraction: float) -> Sampler:
    """A sampler of batches with ``fraction`` of their rows (rounded, at least one) from ``real``."""

    def batches(generated: ReplayBuffer, updates: int, batch_size: int, streams: SeedGenerators) -> Iterator[Tensor]:
        from_real = max(1, round(fraction * batch_size))
        of_model = generated.batches(updates, batch_size - from_real, streams)
        of_data = real.batches(updates, from_real, streams)
        return (torch.cat(parts, dim=1) for parts in zip(of_model, of_data, strict=True))

    return batches


if __name__ == "__main__":
    sys.exit(run_stage("optimize_mopo", "Train the MOPO baseline's policy. Not private.", body))
