"""Files of the stage `evaluate_private`, also where nothing is asked.

Loading this module needs neither torch nor the accountant: a stage with nothing to do takes less time than they do.
"""

from pathlib import Path

from primorl.base.files import replaced_file
from primorl.base.paths import MANIFEST
from primorl.config.params import Params
from primorl.data.storage.schema import Manifest
from primorl.evaluate.figures import draw_evaluation
from primorl.evaluate.private.results import PrivateEvaluation


def nothing_asked(params: Params) -> PrivateEvaluation:
    """Make the file's content where no estimator was asked."""
    manifest = Manifest.load(MANIFEST)
    return PrivateEvaluation(
        dataset=params.dataset,
        unit=manifest.info.unit,
        units=manifest.private_units,
        discount=params.evaluation.private.discount,
        horizon=manifest.info.horizon,
        estimates=(),
        histograms=(),
        verdict=None,
        statements={},
        total=None,
        model_sha256=None,
        policy_sha256=None,
        clone_sha256=None,
    )


def write_evaluation(path: Path, figure: Path, record: PrivateEvaluation) -> None:
    """Write the file and its figure, each atomically."""
    record.write(path)
    with replaced_file(figure) as fresh:
        draw_evaluation(fresh, record)
