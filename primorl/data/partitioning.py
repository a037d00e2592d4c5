"""The split into a private and a public partition, by privacy unit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.base.dvc import REMAKE
from primorl.base.errors import PipelineError
from primorl.base.files import replaced_directory, replaced_file, write_json
from primorl.base.paths import CONSENT
from primorl.data.identity.membership import (
    NOBODY,
    Fingerprint,
    IdList,
    Membership,
    draw_public,
    project_secret,
    read_ids,
    secret_check,
)
from primorl.data.storage.rows import PartReader, PartWriter
from primorl.data.storage.schema import Manifest, whole


@dataclass
class _Side:
    """One side of a split while it is written."""

    writer: PartWriter
    members: Membership
    units: int = 0

    def add(self, rows: pa.Table) -> None:
        self.members.update(rows)
        self.writer.write(rows)


def partition(
    source: Path,
    target: Path,
    *,
    public_fraction: float | None,
    public: str | None = None,
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
        public: the file with the ids of those who consented; None: units are drawn.
        check_units: raises where these units may not be split so; it is called with the manifest
            and the digests of both sides before ``target`` changes.

    Raises:
        PipelineError: if the dataset is damaged, out of order or changed since it was ingested, if
            consent does not fit it, or if a partition would be empty; the content of ``target`` is
            untouched.
    """
    ids = None
    if public is not None:
        ids = IdList(read_ids(public, CONSENT, "params.yaml: partition.public.file"), public)
    choose = (
        partial(draw_public, public_fraction=public_fraction or 0) if ids is None else ids.contains
    )
    reader = PartReader(source, made_by="ingest")
    secret, schema = project_secret(), reader.info.schema
    whose = secret, reader.info.population
    # Opened here, exchanged when the block ends, the manifest last: nothing in `target` changes
    # before everything is written, and a kill in between leaves an old manifest that does not fit.
    with (
        replaced_file(target / "manifest.json") as manifest_file,
        replaced_file(target / "public_units.bin") as public_units_file,
        replaced_file(target / "units.bin") as units_file,
        replaced_directory(target / "public") as public_folder,
        replaced_directory(target / "private") as private_folder,
    ):
        with (
            PartWriter(private_folder, schema) as private_writer,
            PartWriter(public_folder, schema) as public_writer,
        ):
            private = _Side(private_writer, Membership(*whose))
            # Where equal records of different people are to be expected, some public ones equal
            # private ones.
            by_rows = reader.info.duplicates == "refuse"
            shown = _Side(public_writer, Membership(*whose, by_rows=by_rows))
            _divide(source, reader, choose, private, shown)
            if ids is not None:
                ids.check_all_met()
            _refuse_empty(public_fraction, public, private.units, shown.units)
            private_writer.finish(reader.info)
            public_writer.finish(reader.info)
        if private.members.shares_with(shown.members):
            raise PipelineError(
                f"{source}: a unit's rows or ids are also those of another unit, one private, the "
                "other public; drop the duplicate, or set options.trajectory_ids: per_unit"
            )
        by = "hash" if ids is None else "file"
        manifest = Manifest(reader.info, private.units, shown.units, by, secret_check(secret))
        of_private, of_public = private.members.to_bytes(), shown.members.to_bytes()
        if check_units is not None:
            check_units(manifest, of_private, of_public)
        units_file.write_bytes(of_private)
        public_units_file.write_bytes(of_public or NOBODY)
        write_json(manifest_file, manifest.to_json())
    return manifest


def _refuse_empty(fraction: float | None, file: str | None, private: int, public: int) -> None:
    """Refuse a split that leaves one side without units; a fraction of 0 asks for no public one."""
    if private > 0 and (public > 0 or (file is None and fraction == 0)):
        return
    side = "private" if private == 0 else "public"
    if file is not None:
        raise PipelineError(
            f"params.yaml: partition.public.file: found {file!r}, which leaves no {side} unit"
        )
    raise PipelineError(
        f"params.yaml: partition.public_fraction: found {fraction}, which leaves no {side} unit"
    )


def _divide(
    source: Path,
    reader: PartReader,
    choose: Callable[[pa.Array], npt.NDArray[np.bool_]],
    private: _Side,
    public: _Side,
) -> None:
    """Write every row to the side of its unit; all must be those that ingest checked."""
    fingerprint = Fingerprint(reader.info.schema)
    for table in reader.tables():
        fingerprint.update(table)
        units = whole(table["unit_id"]).dictionary_encode()
        drawn = choose(units.dictionary)
        public.units += int(drawn.sum())
        private.units += int((~drawn).sum())
        mask = pa.array(drawn[units.indices.to_numpy()])
        public.add(table.filter(mask))
        private.add(table.filter(pc.invert(mask)))
    if fingerprint.keyed(project_secret()) != reader.info.dataset_fingerprint:
        raise PipelineError(f"{source}: rows or secret are not the ingested ones; run {REMAKE}")
