"""The split into a private and a public partition, by privacy unit."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from primorl.project.errors import PipelineError
from primorl.project.files import replaced_directory, replaced_file, write_json
from primorl.trajectories.checks import RowCheck
from primorl.trajectories.identity.fingerprint import Fingerprint, project_secret
from primorl.trajectories.identity.membership import Membership
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.parquet import RANDOM, PartReader, PartWriter

_HASH_BITS = 64


def is_public(unit_id: str, public_fraction: float, salt: str) -> bool:
    """Whether a unit is public: a hash of salt and id, uniform in [0, 1), lies below ``public_fraction``.

    It depends on nothing but the unit's own id, so no unit's presence moves another whose id stays the same.
    """
    digest = hashlib.sha256(f"{len(salt)}:{salt}{unit_id}".encode()).digest()
    drawn = int.from_bytes(digest[: _HASH_BITS // 8], "big")
    return drawn < int(public_fraction * 2**_HASH_BITS)


def partition(source: Path, target: Path, *, public_fraction: float, salt: str) -> Manifest:
    """Split the dataset in ``source`` into ``target``'s ``private/``, ``public/`` and ``manifest.json``.

    ``units.bin`` is the `Membership` of the private side, ``public_units.bin`` that of the public one. All are written
    in full before the first is exchanged.

    Args:
        source: the folder that ``ingest`` wrote.
        target: the folder of the partitions.
        public_fraction: the expected share of units that are public; 0: none is, and ``public/`` has no rows.
        salt: separates this draw from others with the same ids.

    Raises:
        PipelineError: the dataset is damaged, out of order or changed since it was ingested, or a
            partition would be empty; what was in ``target`` is untouched.
    """
    reader = PartReader(source, made_by="ingest")
    spaces = reader.info.spaces
    check = RowCheck(spaces, source, may_terminate=reader.info.termination != "none", horizon=reader.info.horizon)
    fingerprint = Fingerprint(spaces)
    members = Membership(project_secret(), reader.info.dataset)
    # Where equal records of different people are to be expected, some public ones equal private ones.
    public_members = Membership(project_secret(), reader.info.dataset, by_rows=reader.info.duplicates == "refuse")
    counts = {True: 0, False: 0}
    # Opened here, exchanged when the block ends, the manifest last: nothing in `target` changes before everything is
    # written, and what a kill leaves half exchanged has an old manifest that does not fit.
    with (
        replaced_file(target / "manifest.json") as manifest_file,
        replaced_file(target / "public_units.bin") as public_units_file,
        replaced_file(target / "units.bin") as units_file,
        replaced_directory(target / "public") as public,
        replaced_directory(target / "private") as private,
    ):
        with PartWriter(private, spaces, RANDOM) as private_writer, PartWriter(public, spaces) as public_writer:
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
                shown = table.filter(mask)
                public_members.update(shown)
                public_writer.write(shown)
                kept = table.filter(pc.invert(mask))
                members.update(kept)
                private_writer.write(kept)
            check.finish()
            if fingerprint.keyed(project_secret()) != reader.info.dataset_fingerprint:
                raise PipelineError(
                    f"{source}: its rows, or the project's secret, are not those that were ingested; "
                    "run `dvc repro ingest` again"
                )
            for side, count in (("private", counts[False]), ("public", counts[True])):
                if count == 0 and (side == "private" or public_fraction > 0):
                    raise PipelineError(
                        f"params.yaml: partition.public_fraction: found {public_fraction}, which leaves no {side} "
                        "unit; allowed is 0 (no public split), or a share that leaves both partitions at least one; "
                        "change it, or partition.salt"
                    )
            private_writer.finish(reader.info)
            public_writer.finish(reader.info)
        check_disjoint(private, public)
        if members.shares_with(public_members):
            raise PipelineError(
                f"{source}: a unit's rows are also those of another unit, and one is drawn private, the other public; "
                "drop the duplicate"
            )
        units_file.write_bytes(members.to_bytes())
        public_units_file.write_bytes(public_members.to_bytes())
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
