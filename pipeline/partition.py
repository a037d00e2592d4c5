"""Stage ``partition``: the dataset, split by privacy unit into ``data/partitions``."""

import sys

from pipeline.runner import run_stage
from primorl.base import say
from primorl.base.files import PARTITIONS
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.data.storage.schema import PUBLIC_BY
from primorl.stages.splitting import split


def body(params: Params, log: StageLog) -> None:
    """Split; only the numbers of units are told, which are declared public."""
    manifest = split(params, PARTITIONS)
    if manifest.public_units:
        by = PUBLIC_BY[manifest.public_by]
        say(f"partition: {manifest.public_units} units are public, {by}")


if __name__ == "__main__":
    sys.exit(run_stage("partition", __doc__, body))
