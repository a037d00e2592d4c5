"""Stage ``partition``: the dataset, split by privacy unit into ``data/partitions``."""

import sys

from pipeline.runner import run_stage
from primorl.base.paths import PARTITIONS
from primorl.config.params import Params
from primorl.data.storage.schema import PUBLIC_BY
from primorl.stages.splitting import split
from primorl.tracking import StageRun


def body(params: Params, run: StageRun) -> None:
    """Split; the numbers of units are declared public, and nothing else is logged."""
    manifest = split(params, PARTITIONS)
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
