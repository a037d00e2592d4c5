"""A policy as an MLflow model: MLflow runs this file (models from code) beside the policy's own files.

Nothing of it is pickled. It needs the wheel `primorl`, NumPy and MLflow, and no torch.
"""

from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.pyfunc.model import PythonModel

from primorl.policy.loaded import ObservationError, Policy, read_policy


class Refused(MlflowException):
    """An observation that the policy cannot be asked about, in one line (status 400).

    MLflow's server puts the values that were sent in front of a message; this one stays as it is.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, BAD_REQUEST)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "message" or not hasattr(self, "message"):
            super().__setattr__(name, value)


class ServedPolicy(PythonModel):
    """`Policy.act` for MLflow."""

    policy: Policy

    def load_context(self, context: Any) -> None:
        """Read the policy's files."""
        self.policy = read_policy(Path(context.artifacts["policy"]))

    def predict(self, context: Any, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Actions for a table or an array of observations, see `Policy.act`.

        Raises:
            Refused: the observations do not fit; the message names no value.
        """
        del context, params
        try:
            return self.policy.act(model_input)
        except ObservationError as wrong:
            raise Refused(str(wrong)) from None


set_model(ServedPolicy())
