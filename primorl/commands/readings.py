"""How commands read the settings."""

from typing import TYPE_CHECKING

from primorl.commands.folders import PARAMS

if TYPE_CHECKING:
    from primorl.config.params import Params


def check_project() -> None:
    """Check ``params.yaml`` and the datasets.

    Raises:
        PipelineError: one line that names every wrong key.
    """
    from importlib import import_module, util

    if util.find_spec("primorl.config.checking") is None:
        from primorl.config.params import load

        load(PARAMS)
    else:
        import_module("primorl.config.checking").check_project()


def load_reading() -> "Params":
    """The settings for a command that only reads: the run's own settings need not be valid.

    Raises:
        PipelineError: the file is missing, or a setting that reading needs is wrong.
    """
    from primorl.config import params

    load = getattr(params, "load_reading", params.load)
    checked: Params = load(PARAMS)
    return checked
