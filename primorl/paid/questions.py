"""Questions of private evaluation as settings name them: their cost, and the file where nothing was
asked.

Loading this module needs no torch: a stage with nothing to do takes less time than that does.
"""

from dp_accounting.dp_event import DpEvent

from primorl.base.paths import MANIFEST
from primorl.config.blocks import EstimatorName
from primorl.config.params import Params
from primorl.data.storage.schema import Manifest
from primorl.evaluate.private.results import PrivateEvaluation
from primorl.paid.accounts import solved_noise
from primorl.privacy.accounting.epsilon import training_event

EVALUATE_PRIVATE = "evaluate_private"
MEAN_SHARE = 0.5
"""Share of the privacy budget of `behaviour` that its mean has; the rest is for the quantiles."""


def question_noise(name: EstimatorName, epsilon: float, delta: float) -> float:
    """Solve for the noise multiplier of a question at ε: it is one release over all units.

    Raises:
        PipelineError: none is enough.
    """
    key = f"evaluation.private.estimators.{name}"
    return solved_noise(key, epsilon, delta, 1.0, 1, remedy="leave the question out")


def question_event(name: EstimatorName, epsilon: float, delta: float) -> DpEvent:
    """Build the event that a question is charged as at ε; raises what `question_noise` raises."""
    return training_event(1.0, question_noise(name, epsilon, delta), 1)


def nothing_asked(params: Params) -> PrivateEvaluation:
    """Make the file's content where no question was asked."""
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
