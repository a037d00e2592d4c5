"""Questions of private evaluation as settings name them: their cost, and the file where nothing was
asked.

Loading this module needs no torch: a stage with nothing to do takes less time than that does.
"""

from primorl.data.storage.schema import Manifest
from primorl.evaluate.private.results import PrivateEvaluation

MEAN_SHARE = 0.5
"""Share of the privacy budget of `behaviour` that its mean has; the rest is for the quantiles."""


def nothing_asked(manifest: Manifest, discount: float = 1.0) -> PrivateEvaluation:
    """Make the file's content where no question was asked."""
    return PrivateEvaluation(
        dataset=manifest.info.dataset,
        unit=manifest.info.unit,
        units=manifest.private_units,
        discount=discount,
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
