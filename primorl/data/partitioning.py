"""The split into a private and a public partition, by privacy unit."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

from primorl.base import PipelineError
from primorl.base.dvc import REMAKE
from primorl.base.files import CONSENT, replaced_directory, replaced_file, write_json
from primorl.data.identity.membership import (
    NOBODY,
    Fingerprint,
    IdList,
    Membership,
    draw_public,
    id_digests,
    project_secret,
    read_ids,
    remember_units,
    secret_check,
)
from primorl.data.storage.rows import PartReader, PartWriter
from primorl.data.storage.schema import DatasetInfo, Flags, Manifest, whole


class _Side(PartWriter):
    """One side of a split while it is written, with the digests and the number of its units."""

    def __init__(self, folder: Path, info: DatasetInfo, secret: bytes, by_rows: bool = True):
        super().__init__(folder, info.schema)
        self.members, self.units = Membership(secret, info.population, by_rows), 0

    def write(self, table: pa.Table) -> None:
        self.members.update(table)
        super().write(table)


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
    reader = PartReader(source, made_by="ingest")
    # Opened here, exchanged when the block ends, the manifest last: nothing in `target` changes
    # before everything is written, and a kill in between leaves an old manifest that does not fit.
    with (
        replaced_file(target / "manifest.json") as manifest_file,
        replaced_file(target / "public_units.bin") as public_units_file,
        replaced_file(target / "units.bin") as units_file,
        replaced_directory(target / "public") as public_folder,
        replaced_directory(target / "private") as private_folder,
    ):
        folders = private_folder, public_folder
        manifest, of_private, of_public = _split(reader, folders, public_fraction, public)
        if check_units is not None:
            check_units(manifest, of_private, of_public)
        units_file.write_bytes(of_private)
        public_units_file.write_bytes(of_public or NOBODY)
        write_json(manifest_file, manifest.to_json())
    return manifest


def _split(
    reader: PartReader, folders: tuple[Path, Path], fraction: float | None, public: str | None
) -> tuple[Manifest, bytes, bytes]:
    """Write the private and the public side into their folders; return the manifest, and the
    digests of the units of both.
    """
    ids, secret = None, project_secret()
    choose: Callable[[pa.Array], Flags] = partial(draw_public, public_fraction=fraction or 0)
    if public is not None:
        ids = IdList(read_ids(public, CONSENT, "params.yaml: partition.public.file"), public)
        choose = ids.contains
    # Where equal records of different people are to be expected, some public ones equal private
    # ones.
    by_rows = reader.info.duplicates == "refuse"
    with (
        _Side(folders[0], reader.info, secret) as private,
        _Side(folders[1], reader.info, secret, by_rows) as shown,
    ):
        digests = _divide(reader, secret, choose, private, shown)
        if ids is not None:
            ids.check_all_met()
        _refuse_empty(fraction, public, private.units, shown.units)
        private.finish(reader.info)
        shown.finish(reader.info)
    if private.members.shares_with(shown.members):
        found = "a private unit's rows or ids are also those of another unit, a public one"
        raise PipelineError(
            f"{reader.folder}: {found}; drop the duplicate, or set options.trajectory_ids: per_unit"
        )
    by = "hash" if ids is None else "file"
    manifest = Manifest(reader.info, private.units, shown.units, by, secret_check(secret))
    remember_units(reader.info.dataset, reader.info.dataset_fingerprint, digests)
    return manifest, private.members.to_bytes(), shown.members.to_bytes()


def _refuse_empty(fraction: float | None, file: str | None, private: int, public: int) -> None:
    """Refuse a split that leaves one side without units; a fraction of 0 asks for no public one."""
    if private > 0 and (public > 0 or (file is None and fraction == 0)):
        return
    side = "private" if private == 0 else "public"
    key, found = ("public_fraction", fraction) if file is None else ("public.file", repr(file))
    said = f"found {found}, which leaves no {side} unit; allowed is one that leaves some of both"
    raise PipelineError(f"params.yaml: partition.{key}: {said}")


def _divide(
    reader: PartReader, secret: bytes, choose: Callable[..., Flags], private: _Side, public: _Side
) -> bytes:
    """Write every row to the side of its unit; all must be those that ingest checked. Return the
    digests of the units' ids.
    """
    info, fingerprint, digests = reader.info, Fingerprint(reader.info.schema), bytearray()
    for table in reader.tables():
        fingerprint.update(table)
        units = whole(table["unit_id"]).dictionary_encode()
        chosen = choose(units.dictionary)
        # of any population: it may be named anew, and these are only compared with each other
        digests += id_digests(secret, "", units.dictionary.to_pylist())
        for side, own in ((public, chosen), (private, ~chosen)):
            side.units += int(own.sum())
            side.write(table.filter(pa.array(own[units.indices.to_numpy()])))
    if fingerprint.keyed_digest(secret) != info.dataset_fingerprint:
        raise PipelineError(
            f"{reader.folder}: rows or secret are not the ingested ones; run {REMAKE}"
        )
    return bytes(digests)
