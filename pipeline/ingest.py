"""Stage ``ingest``: the raw trajectories become one validated Parquet dataset in
``data/trajectories``.
"""

import sys

from pipeline.runner import run_stage
from primorl.base import BadRows, PipelineError
from primorl.base.files import RAW, TRAJECTORIES
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.data.ingestion import ingest


def body(params: Params, log: StageLog) -> None:
    """Validate and convert; an error about rows says how a corrected source is read."""
    try:
        ingest(RAW, TRAJECTORIES, params.dataset, params.chosen)
    except BadRows as wrong:
        entry = f"datasets/{params.dataset}.yaml"
        source = f"{RAW} is a copy: correct the source itself, then `dvc repro -f collect`"
        raise PipelineError(f"{wrong}; {source}; or correct {entry}") from None


if __name__ == "__main__":
    sys.exit(run_stage("ingest", __doc__, body))
