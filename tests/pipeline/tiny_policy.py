"""A tiny dynamics model on disk, tiny policy choices, and partitions."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from primorl.base.files import write_json
from primorl.base.paths import BEHAVIOUR, MODEL, PARTITIONS
from primorl.config import params
from primorl.config.params import Params
from primorl.data.identity.membership import Membership, project_secret, secret_check
from primorl.data.storage.rows import PartWriter
from primorl.data.storage.schema import DatasetInfo, Manifest
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser
from primorl.policy.config import write_nothing
from tests.data.builders import INFO, SPACES
from tests.projects import from_plain

_TINY = {"epochs": 2, "updates_per_epoch": 6, "rollout_every": 4, "rollout_batch": 8, "horizon": 5}
_TINY |= {"buffer_size": 100, "hidden": [8, 8], "batch_size": 40}


def tiny(small: Params, variant: str = "private", **policy: Any) -> Params:
    raw = params.plain(small)
    raw["dynamics"]["variant"] = variant
    raw["policy"] |= _TINY | policy
    return from_plain(raw)


def write_model(
    statement: dict[str, Any],
    *,
    variant: str = "private",
    actions: int | None = None,
    termination: str = "none",
) -> GaussianEnsemble:
    size = actions or 1
    shape = Architecture(3, size, 2, (8,), -10.0, 0.5, termination == "learned")
    maps = (
        torch.tensor([0.1, 0.2, 0.3] + [0.0] * size),
        torch.tensor([0.7, 0.7, 3.0] + [1.0] * size),
    )
    low, high = (
        (SPACES.action_low, SPACES.action_high)
        if actions is None
        else ((0.0,) * actions, (1.0,) * actions)
    )
    box = (
        torch.tensor(side) for side in (SPACES.observation_low, SPACES.observation_high, low, high)
    )
    bounds = Bounds(*box, reward_low=-17.0, reward_high=0.0, discrete_actions=actions is not None)
    normaliser = Normaliser(*maps, torch.zeros(4), torch.ones(4))
    ensemble = GaussianEnsemble(shape, shape.initial_weights(0), normaliser, bounds, termination)
    MODEL.mkdir(parents=True, exist_ok=True)
    ensemble.save(MODEL, environment="Pendulum-v1", variant=variant, rounds=1)
    write_json(MODEL / "privacy.json", statement)
    write_nothing(BEHAVIOUR)
    return ensemble


def write_partitions(private: pa.Table, public: pa.Table, info: DatasetInfo | None = None) -> None:
    info, counts = info or INFO, []
    for content, name, units in (
        (private, "private", "units.bin"),
        (public, "public", "public_units.bin"),
    ):
        write_partition(PARTITIONS / name, content, info)
        members = Membership(
            project_secret(),
            info.population,
            by_rows=name == "private" or info.duplicates == "refuse",
        )
        members.update(content)
        (PARTITIONS / units).write_bytes(members.to_bytes())
        counts.append(pc.count_distinct(content["unit_id"]).as_py())
    manifest = Manifest(info, *counts, secret_check=secret_check(project_secret()))
    write_json(PARTITIONS / "manifest.json", manifest.to_json())


def write_partition(folder: Path, content: pa.Table, info: DatasetInfo | None = None) -> None:
    info = info or INFO
    folder.mkdir(parents=True)
    with PartWriter(folder, info.schema) as writer:
        writer.write(content)
        writer.finish(info)
