"""Stage ``collect``: the raw files of whatever source, in ``data/raw``."""

import sys

from pipeline.runner import run_stage
from primorl.base.files import RAW, replaced_directory
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.data.sources import source_of


def body(params: Params, log: StageLog) -> None:
    """Bring the chosen dataset here; its returns are private and go nowhere."""
    source = source_of(params.dataset, params.chosen)
    with replaced_directory(RAW) as fresh:
        source.collect(fresh)


if __name__ == "__main__":
    sys.exit(run_stage("collect", __doc__, body))
