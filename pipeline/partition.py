"""Stage ``partition``: the dataset, split by privacy unit into ``data/partitions``."""

import sys

from pipeline.runner import run_stage
from primorl.base.paths import PARTITIONS, TRAJECTORIES
from primorl.config.datasets import TabularDataset
from primorl.config.params import Params
from primorl.data.partitioning import partition
from primorl.data.storage.schema import PUBLIC_BY, Manifest
from primorl.tracking import StageRun
from primorl.work.accounts import publish, version_of


def body(params: Params, run: StageRun) -> None:
    """Split; the numbers of units are declared public, and nothing else is logged.

    A unit that was charged for as private does not become public, nor the other way round; people
    who were private in an earlier split become public only where ``partition.publish`` confirms it.
    """

    def check_units(manifest: Manifest, private: bytes, public: bytes) -> None:
        info = manifest.info
        people = isinstance(params.chosen, TabularDataset) or info.unit != "trajectory"
        publish(params, info.dataset, version_of(manifest, private, public), people=people)

    manifest = partition(
        TRAJECTORIES,
        PARTITIONS,
        public_fraction=params.partition.public_fraction,
        public=params.partition.public,
        check_units=check_units,
    )
    run.params({"public_by": manifest.public_by})
    if manifest.public_by == "hash":
        run.params({"public_fraction": params.partition.public_fraction})
    run.metric("private_units", manifest.private_units)
    run.metric("public_units", manifest.public_units)
    run.tag("dataset_fingerprint", manifest.info.dataset_fingerprint)
    if manifest.public_units:
        print(
            f"partition: {manifest.public_units} units are public, {PUBLIC_BY[manifest.public_by]}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(run_stage("partition", "split by privacy unit into private and public", body))
