"""The split into private and public units, which the ledger must allow."""

import tempfile
from pathlib import Path

from primorl.base.files import STATE, TRAJECTORIES, home
from primorl.config.datasets import TabularDataset
from primorl.config.params import Params
from primorl.data.partitioning import partition
from primorl.data.storage.schema import Manifest
from primorl.work.data import open_to_charge, refuse_published, version_of


def split(params: Params, folder: Path, confirmed: str | None = None) -> Manifest:
    """Split ``data/trajectories`` into a folder.

    A unit that was charged for as private does not become public, nor the other way round; people
    who were private in an earlier split become public only where ``confirmed`` names them.

    Args:
        params: who is public.
        folder: of the partitions.
        confirmed: the word of the refusal.

    Raises:
        Refused: the ledger does not allow it. Nothing was written.
        PipelineError: see `partition`.
    """

    def check_units(manifest: Manifest, private: bytes, public: bytes) -> None:
        info = manifest.info
        people = isinstance(params.chosen, TabularDataset) or info.unit != "trajectory"
        version = version_of(manifest, private, public)
        if people or confirmed is not None:
            # the ledger remembers splits of people, also those with nobody public
            open_to_charge(params).publish(info.dataset, version, confirmed)
        else:
            refuse_published(params, info.dataset, version)

    return partition(
        TRAJECTORIES,
        folder,
        public_fraction=params.partition.public_fraction,
        public=None if params.partition.public is None else params.partition.public.file,
        check_units=check_units,
    )


def confirm(params: Params, word: str) -> Manifest:
    """Record in the ledger that the public units of the settings' split may be public, for ever.

    Args:
        params: who is public.
        word: that the refusal of `split` gave; it stands for these units and no others.

    Raises:
        Refused: it is another word, or one of them was charged for as private.
    """
    with tempfile.TemporaryDirectory(dir=home() / STATE) as folder:
        return split(params, Path(folder) / "partitions", word)
