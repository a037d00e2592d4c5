"""How commands read the settings."""

from typing import TYPE_CHECKING

from primorl.commands.folders import PARAMS

if TYPE_CHECKING:
    from primorl.config.params import Reading


def check_project() -> None:
    """Check ``params.yaml`` and the datasets.

    Raises:
        PipelineError: one line that names every wrong key.
    """
    from primorl.config import checking

    checking.check_project(PARAMS.parent)


def load_reading() -> "Reading":
    """The settings for a command that only reads: the run's own settings need not be valid.

    Raises:
        PipelineError: the file is missing, or a setting that reading needs is wrong.
    """
    from primorl.config import params

    return params.load_reading(PARAMS)
