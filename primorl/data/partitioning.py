"""The split into a private and a public partition, by privacy unit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from primorl.base.dvc import REMAKE
from primorl.base.errors import PipelineError
from primorl.base.files import replaced_directory, replaced_file, write_json
from primorl.data.checks import RowCheck
from primorl.data.identity.consent import Consent, HashDraw, PublicRule
from primorl.data.identity.membership import (
    NOBODY,
    Fingerprint,
    Membership,
    project_secret,
    secret_check,
)
from primorl.data.storage.parquet import PartReader, PartWriter
from primorl.data.storage.schema import Manifest, whole


def partition(
    source: Path,
    target: Path,
    *,
    public_fraction: float | None,
    public: Any = None,
    check_units: Callable[[Manifest, bytes, bytes], None] | None = None,
) -> Manifest:
    """Split the dataset in ``source`` into ``target``'s ``private/``, ``public/`` and
    ``manifest.json``.

    ``units.bin`` is the `Membership` of the private side, ``public_units.bin`` that of the public
    one. All are written in full before the first is exchanged.

    Args:
        source: the folder that ``ingest`` wrote.
        target: the folder of the partitions.
        public_fraction: the expected share of units that are public; 0: none is, and ``public/``
            has no rows. It is not used where ``public`` is given.
        public: how consent is told: an object with ``file``, or with ``column`` and ``values``;
            None: units are drawn.
        check_units: raises where these units may not be split so; it is called with the manifest
            and the digests of both sides before ``target`` changes.

    Raises:
        PipelineError: if the dataset is damaged, out of order or changed since it was ingested, if
            consent does not fit it, or if a partition would be empty; the content of ``target`` is
            untouched.
    """
    rule = _read_rule(source, public_fraction, public)
    reader = PartReader(source, made_by="ingest")
    schema = reader.info.schema
    check, fingerprint = RowCheck(reader.info, source), Fingerprint(schema)
    whose = project_secret(), reader.info.population
    members = Membership(*whose)
    # Where equal records of different people are to be expected, some public ones equal private
    # ones.
    public_members = Membership(*whose, by_rows=reader.info.duplicates == "refuse")
    counts = {"private": 0, "public": 0}
    # Opened here, exchanged when the block ends, the manifest last: nothing in `target` changes
    # before everything is written, and a kill in between leaves an old manifest that does not fit.
    with (
        replaced_file(target / "manifest.json") as manifest_file,
        replaced_file(target / "public_units.bin") as public_units_file,
        replaced_file(target / "units.bin") as units_file,
        replaced_directory(target / "public") as public,
        replaced_directory(target / "private") as private,
    ):
        with (
            PartWriter(private, schema) as private_writer,
            PartWriter(public, schema) as public_writer,
        ):
            for table in reader.tables():
                check(table)
                fingerprint.update(table)
                units = whole(table["unit_id"]).dictionary_encode()
                drawn = rule(units.dictionary)
                counts["public"] += int(drawn.sum())
                counts["private"] += int((~drawn).sum())
                mask = pa.array(drawn[units.indices.to_numpy()])
                shown = table.filter(mask)
                public_members.update(shown)
                public_writer.write(shown)
                kept = table.filter(pc.invert(mask))
                members.update(kept)
                private_writer.write(kept)
            check.finish()
            if fingerprint.keyed(whose[0]) != reader.info.dataset_fingerprint:
                raise PipelineError(
                    f"{source}: rows or secret are not the ingested ones; run {REMAKE}"
                )
            rule.finish()
            _refuse_empty(rule, counts)
            private_writer.finish(reader.info)
            public_writer.finish(reader.info)
        if members.shares_with(public_members):
            raise PipelineError(
                f"{source}: a unit's rows are also those of another unit, and one is drawn "
                "private, the other public; drop the duplicate; or, where the id of a trajectory "
                "is that of another unit, give it one of its own (in a log: set "
                "options.trajectory_ids: per_unit)"
            )
        manifest = Manifest(
            reader.info, counts["private"], counts["public"], rule.by, secret_check(whose[0])
        )
        of_private, of_public = members.to_bytes(), public_members.to_bytes()
        if check_units is not None:
            check_units(manifest, of_private, of_public)
        units_file.write_bytes(of_private)
        public_units_file.write_bytes(of_public or NOBODY)
        write_json(manifest_file, manifest.to_json())
    return manifest


def _read_rule(source: Path, public_fraction: float | None, public: Any) -> PublicRule:
    """Make the rule that the settings ask for."""
    if hasattr(public, "file"):
        return Consent.in_file(public.file)
    if public is not None:
        return Consent.in_column(source, public.column, public.values)
    if public_fraction is None:
        raise PipelineError("params.yaml: partition: found neither public_fraction nor public")
    return HashDraw(public_fraction)


def _refuse_empty(rule: PublicRule, counts: dict[str, int]) -> None:
    """Refuse a split that leaves one side without units."""
    for side, count in counts.items():
        if count == 0 and not (side == "public" and rule.may_be_none):
            raise PipelineError(f"params.yaml: {rule.repair.format(side=side)}")
