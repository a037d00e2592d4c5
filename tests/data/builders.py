"""Small datasets with known content, for the tests of the data room."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import minari
import numpy as np
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Space
from minari.data_collector import EpisodeBuffer as Episode

from primorl.config.datasets import AnyDataset, MinariDataset, validate
from primorl.data.ingestion import ingest
from primorl.data.sources import source_of
from primorl.data.storage.rows import ROWS_PER_GROUP, PartReader, PartWriter
from primorl.data.storage.schema import DatasetInfo, Spaces, Transitions

T = TypeVar("T", bound=AnyDataset)
SPACES = Spaces((-1.0, -1.0, -8.0), (1.0, 1.0, 8.0), (-2.0,), (2.0,))
SIDE = np.array([1, 1, 8], np.float32)
PENDULUM: dict[str, Any] = {
    "observation_space": Box(-SIDE, SIDE),
    "action_space": Box(-2, 2, (1,), np.float32),
}
INFO = DatasetInfo("small", "Pendulum-v1", "trajectory", SPACES, 200, "learned", "refuse", "0" * 64)


def dataset(kind: type[T], source: str, options: dict[str, Any], **changes: Any) -> T:
    """A dataset's entry with plain values for all that is not given."""
    plain: dict[str, Any] = dict.fromkeys(("trajectories_per_person", "horizon", "score"))
    plain |= {"source": source, "options": options, "environment": "Pendulum-v1"}
    plain["unit"] = "trajectory"
    plain |= {"population": "tests", "termination": "learned", "ingestion": {}}
    plain["bounds"] = {"observation": "space", "reward": "public"}
    return validate(kind, plain | changes)


def entry(**changes: Any) -> MinariDataset:
    """A dataset for what `write_raw` writes; some of its episodes terminate."""
    options = {"root": None, "remote": False, "parts": ["small-v0"]}
    plain = {"source": "minari", "options": options, "population": "small"} | changes
    return dataset(MinariDataset, **plain)


def episode(length: int, seed: int, terminated: bool = False) -> Episode:
    """An episode of random numbers in Pendulum's spaces; no two numbers agree by chance."""
    rng = np.random.default_rng([length, seed])
    observations = rng.uniform(-1, 1, (length + 1, 3)).astype(np.float32)
    actions = rng.uniform(-2, 2, (length, 1)).astype(np.float32)
    last = np.arange(length) == length - 1
    return Episode(
        observations=observations,
        actions=actions,
        rewards=rng.uniform(-16, 0, length),
        terminations=last & terminated,
        truncations=last & (not terminated),
    )


def episodes(count: int) -> list[Episode]:
    """Episodes of several lengths, one step long among them, some terminated."""
    return [episode(1 + 3 * i % 7, seed=i, terminated=i % 3 == 0) for i in range(count)]


def write_raw(root: Path, content: list[Episode]) -> Path:
    """A Minari dataset with that content; returns its HDF5 file."""
    return create(root, "small-v0", content, **PENDULUM) / "main_data.hdf5"


def create(
    root: Path,
    dataset_id: str,
    content: list[Episode],
    data_format: str = "hdf5",
    **spaces: Space[Any],
) -> Path:
    """Have Minari write a dataset under ``root``; returns its ``data`` folder."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # Minari asks for authors and links
        patch.setenv("MINARI_DATASETS_PATH", str(root.resolve()))
        minari.create_dataset_from_buffers(dataset_id, content, data_format=data_format, **spaces)
    return root / dataset_id / "data"


def table(
    content: list[Episode], units: list[str] | None = None, names: list[str] | None = None
) -> pa.Table:
    """The same content in the dataset's schema."""
    names = names or [f"{i:03d}" for i in range(len(content))]
    found = []
    for item, name in zip(content, names, strict=True):
        seen, ends = np.array(item.observations), (item.terminations, item.truncations)
        columns = map(np.array, (item.actions, item.rewards, seen[1:], *ends))
        found.append(Transitions.of_episode(name, seen[:-1], *columns))
    return replace(Transitions.join(found), unit=units or names).table(SPACES)


def write_parts(
    folder: Path, *tables: pa.Table, info: DatasetInfo = INFO, rows_per_group: int = ROWS_PER_GROUP
) -> Path:
    """Tables of whole units as the parts of a dataset."""
    folder.mkdir(exist_ok=True)
    with PartWriter(folder, info.schema, rows_per_group) as writer:
        for each in tables:
            writer.write(each)
        writer.finish(info)
    return folder


def collected(chosen: T, name: str = "small", raw: Path = Path("raw")) -> T:
    """The same dataset, collected."""
    raw.mkdir(parents=True, exist_ok=True)
    source_of(name, chosen).collect(raw)
    return chosen


def ingested(chosen: Any, name: str = "small", raw: Path = Path("raw")) -> pa.Table:
    """What `ingest` makes of a dataset that was collected."""
    ingest(raw, Path("trajectories"), name, chosen)
    return pa.concat_tables(made().tables())


def made() -> PartReader:
    """What `ingest` wrote last."""
    return PartReader(Path("trajectories"), made_by="ingest")


def exchanged(rows: pa.Table, column: str, values: list[Any]) -> pa.Table:
    """The same rows with other values in a column."""
    place, field = rows.schema.get_field_index(column), rows.schema.field(column)
    return rows.set_column(place, field, pa.array(values, field.type))


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, hidden ones included."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
