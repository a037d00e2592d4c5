"""Stage ``ingest``: the raw trajectories become one validated Parquet dataset in
``data/trajectories``.
"""

import sys

from pipeline.runner import run_stage
from primorl.base.paths import RAW, TRAJECTORIES
from primorl.config.datasets import TabularDataset
from primorl.config.params import Params
from primorl.data.ingestion import ingest
from primorl.tracking import StageRun


def body(params: Params, run: StageRun) -> None:
    """Validate and convert; only the keyed fingerprint is logged."""
    chosen = params.chosen
    if isinstance(chosen, TabularDataset) and chosen.options.beyond_bounds == "clip":
        print(
            "ingest: values beyond the entry's bounds are cut, as options.beyond_bounds says",
            file=sys.stderr,
        )
    info = ingest(RAW, TRAJECTORIES, params.dataset, chosen)
    run.params({"dataset": params.dataset, "environment": chosen.environment, "unit": chosen.unit})
    run.tag("dataset_fingerprint", info.dataset_fingerprint)


if __name__ == "__main__":
    sys.exit(run_stage("ingest", "any source becomes one validated Parquet schema", body))
