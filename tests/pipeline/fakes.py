"""A run that only remembers."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self


class FakeRun:
    """Everything a stage hands to MLflow, by kind."""

    run_id = "0123"

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}
        self.steps: dict[str, list[int | None]] = {}
        self.artifacts: dict[str, bytes] = {}

    @cached_property
    def pipeline(self) -> Self:
        return type(self)()

    def params(self, values: Mapping[str, Any]) -> None:
        self.logged |= values

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        self.logged[name] = value
        self.steps.setdefault(name, []).append(step)

    def tag(self, name: str, value: str) -> None:
        self.logged[name] = value

    def artifact(self, path: Path) -> None:
        self.artifacts[path.name] = path.read_bytes()

    def forget(self, *_: object, **__: object) -> None:
        """Take it and do nothing."""

    note = flush = send = forget
