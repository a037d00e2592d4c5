"""The split into a private and a public partition, by privacy unit."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import PipelineError
from pipeline.files import read_json, replaced_directory, replaced_file, write_json
from pipeline.trajectories.fingerprint import Fingerprint, project_secret
from pipeline.trajectories.parquet import PartReader, PartWriter
from pipeline.trajectories.schema import DatasetInfo, RowCheck

_HASH_BITS = 64


@dataclass(frozen=True)
class Manifest:
    """What is declared public about a partitioned dataset: its facts and the numbers of its units."""

    info: DatasetInfo
    private_units: int
    public_units: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, flat: the dataset's facts, its sizes and the counts."""
        return self.info.to_json() | {
            "observation_size": self.info.spaces.observation_size,
            "action_size": self.info.spaces.action_size,
            "private_units": self.private_units,
            "public_units": self.public_units,
        }

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read ``manifest.json``.

        Raises:
            PipelineError: missing, not JSON, or without the keys of a manifest.
        """
        content = read_json(path)
        try:
            return cls(DatasetInfo.from_json(content), content["private_units"], content["public_units"])
        except (KeyError, TypeError, AttributeError):
            raise PipelineError(f"{path}: not a manifest; run `dvc repro partition` to make it again") from None


def is_public(unit_id: str, public_fraction: float, salt: str) -> bool:
    """Whether a unit is public: a hash of salt and id, uniform in [0, 1), lies below ``public_fraction``.

    It depends on nothing but the unit's own id, so no unit's presence moves another whose id stays the same.
    """
    digest = hashlib.sha256(f"{len(salt)}:{salt}{unit_id}".encode()).digest()
    drawn = int.from_bytes(digest[: _HASH_BITS // 8], "big")
    return drawn < int(public_fraction * 2**_HASH_BITS)


def partition(source: Path, target: Path, *, public_fraction: float, salt: str) -> Manifest:
    """Split the dataset in ``source`` into ``target``'s ``private/``, ``public/`` and ``manifest.json``.

    All three are written in full before the first is exchanged.

    Args:
        source: the folder that ``ingest`` wrote.
        target: the folder of the partitions.
        public_fraction: the expected share of units that are public.
        salt: separates this draw from others with the same ids.

    Raises:
        PipelineError: the dataset is damaged, out of order or changed since it was ingested, or a
            partition would be empty; what was in ``target`` is untouched.
    """
    reader = PartReader(source, made_by="ingest")
    spaces = reader.info.spaces
    check = RowCheck(spaces, source)
    fingerprint = Fingerprint(spaces)
    counts = {True: 0, False: 0}
    # Opened here, exchanged when the block ends: nothing in `target` changes before everything is written.
    with (
        replaced_directory(target / "private") as private,
        replaced_directory(target / "public") as public,
        replaced_file(target / "manifest.json") as manifest_file,
    ):
        with PartWriter(private, spaces) as private_writer, PartWriter(public, spaces) as public_writer:
            for table in reader.tables():
                check(table)
                fingerprint.update(table)
                units = table["unit_id"].combine_chunks().dictionary_encode()
                drawn = np.array(
                    [is_public(unit, public_fraction, salt) for unit in units.dictionary.to_pylist()], dtype=bool
                )
                counts[True] += int(drawn.sum())
                counts[False] += int((~drawn).sum())
                mask = pa.array(drawn).take(units.indices)
                public_writer.write(table.filter(mask))
                private_writer.write(table.filter(pc.invert(mask)))
            if fingerprint.keyed(project_secret()) != reader.info.dataset_fingerprint:
                raise PipelineError(
                    f"{source}: its rows, or the project's secret, are not those that were ingested; "
                    "run `dvc repro ingest` again"
                )
            for side, count in (("private", counts[False]), ("public", counts[True])):
                if count == 0:
                    raise PipelineError(
                        f"partition.public_fraction: found {public_fraction}, which leaves no {side} unit; "
                        "allowed is a share that leaves both partitions at least one; change it, or partition.salt"
                    )
            private_writer.finish(reader.info)
            public_writer.finish(reader.info)
        check_disjoint(private, public)
        manifest = Manifest(reader.info, private_units=counts[False], public_units=counts[True])
        write_json(manifest_file, manifest.to_json())
    return manifest


def check_disjoint(private: Path, public: Path) -> None:
    """Check that no unit is in both partitions.

    Raises:
        PipelineError: one is; it is not named.
    """
    if not _units(private).isdisjoint(_units(public)):
        raise PipelineError(
            f"{private}: found a unit that is in {public} too; allowed: every unit in one partition; "
            "run `dvc repro partition` again"
        )


def _units(folder: Path) -> set[str]:
    tables = PartReader(folder, made_by="partition").tables(columns=["unit_id"])
    return {unit for table in tables for unit in pc.unique(table["unit_id"]).to_pylist()}
