"""A tiny dynamics model on disk, tiny policy choices, and a run that also remembers artifacts."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from primorl.config import params
from primorl.config.params import Params
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.project.files import write_json
from primorl.setup.paid_training import write_nothing
from primorl.trajectories.identity.fingerprint import project_secret, secret_check
from primorl.trajectories.identity.membership import Membership
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.parquet import PartWriter
from tests.pipeline.fakes import FakeRun
from tests.trajectories.builders import INFO, SPACES

_TINY = {
    "epochs": 2,
    "updates_per_epoch": 6,
    "rollout_every": 4,
    "rollout_batch": 8,
    "horizon": 5,
    "buffer_size": 100,
    "hidden": [8, 8],
    "batch_size": 40,
}


class RememberingRun(FakeRun):
    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[str, list[int | None]] = {}
        self.artifacts: dict[str, bytes] = {}

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        super().metric(name, value, step)
        self.steps.setdefault(name, []).append(step)

    def artifact(self, path: Path) -> None:
        self.artifacts[path.name] = path.read_bytes()


def tiny(small: Params, variant: str = "private", **policy: Any) -> Params:
    raw = params.plain(small)
    raw["dynamics"]["variant"] = variant
    raw["policy"] |= _TINY | policy
    return params.from_plain(raw)


def write_model(
    statement: dict[str, Any],
    *,
    variant: str = "private",
    action_high: float = 2.0,
    actions: int | None = None,
    termination: str = "none",
) -> GaussianEnsemble:
    size = actions or 1
    shape = Architecture(3, size, 2, (8,), -10.0, 0.5, termination == "learned")
    action_box = box("action") if actions is None else ((0.0,) * actions, (1.0,) * actions)
    ensemble = GaussianEnsemble(
        shape,
        shape.initial_weights(0),
        Normaliser(
            torch.tensor([0.1, 0.2, 0.3] + [0.0] * size),
            torch.tensor([0.7, 0.7, 3.0] + [1.0] * size),
            torch.zeros(4),
            torch.ones(4),
        ),
        Bounds(
            *(torch.tensor(side) for side in (*box("observation"), *action_box)),
            reward_low=-17.0,
            reward_high=0.0,
            discrete_actions=actions is not None,
        ),
        termination,
    )
    if action_high != 2.0:
        ensemble.bounds.action_high.fill_(action_high)
    folder = Path("models/dynamics")
    folder.mkdir(parents=True, exist_ok=True)
    ensemble.save(folder, environment="Pendulum-v1", variant=variant, rounds=1)
    write_json(folder / "privacy.json", statement)
    write_nothing(Path("models/behaviour"))
    return ensemble


def box(what: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return getattr(SPACES, f"{what}_low"), getattr(SPACES, f"{what}_high")


def write_partitions(private: pa.Table, public: pa.Table) -> None:
    folder, counts = Path("data/partitions"), []
    for content, name, units in ((private, "private", "units.bin"), (public, "public", "public_units.bin")):
        write_partition(folder / name, content)
        members = Membership(project_secret(), INFO.dataset, by_rows=name == "private" or INFO.duplicates == "refuse")
        members.update(content)
        (folder / units).write_bytes(members.to_bytes())
        counts.append(pc.count_distinct(content["unit_id"]).as_py())
    manifest = Manifest(INFO, *counts, secret_check=secret_check(project_secret()))
    write_json(folder / "manifest.json", manifest.to_json())


def write_partition(folder: Path, content: pa.Table) -> None:
    folder.mkdir(parents=True)
    with PartWriter(folder, INFO.schema) as writer:
        writer.write(content)
        writer.finish(INFO)
