"""Check the project's settings before DVC reads them.

DVC removes a stage's outputs before it finds out that ``params.yaml`` does not fit, and expands YAML aliases without a
limit. ``primorl check`` and ``make run`` call `check_project` first.
"""

from pathlib import Path

from primorl.config.params import Params, load
from primorl.project.errors import PipelineError
from primorl.project.paths import PARAMS


def check_project(folder: Path = Path()) -> Params:
    """Check ``params.yaml`` and the dataset's file in a project's folder.

    Returns:
        The checked settings.

    Raises:
        PipelineError: one line: a file is missing, is not YAML, does not fit, or repeats itself through aliases; or
            the dataset is unknown.
    """
    try:
        return load(folder / PARAMS)
    except OSError as refused:
        raise PipelineError(f"{refused.filename or PARAMS}: {refused.strerror or type(refused).__name__}") from None
