"""A trained dynamics model, ready for use."""

import os
from pathlib import Path

import torch

from primorl.dynamics.ensemble import GaussianEnsemble


def load_model(folder: str | os.PathLike[str], device: str = "cpu") -> GaussianEnsemble:
    """Read a trained dynamics model: ``models/dynamics``, or ``dynamics`` in a released bundle.

    Nothing in the files runs. ``model.predict(observation [B, S], action [B, A])`` gives what every member predicts.

    Raises:
        PipelineError: a file is missing or broken, or the files contradict each other; one line.
    """
    return GaussianEnsemble.load(Path(folder), torch.device(device))
