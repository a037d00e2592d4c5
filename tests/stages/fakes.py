"""A run that only remembers."""

from collections.abc import Mapping
from typing import Any


class FakeRun:
    """Everything a stage hands to MLflow, by kind."""

    run_id = "0123"

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}

    def params(self, values: Mapping[str, Any]) -> None:
        self.logged |= values

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        self.logged[name] = value

    def tag(self, name: str, value: str) -> None:
        self.logged[name] = value
