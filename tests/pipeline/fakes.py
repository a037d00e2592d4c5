"""A run that only remembers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self


class FakeRun:
    """Everything a stage hands to MLflow, by kind."""

    run_id = "0123"

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}
        self.inner: dict[str, Self] = {}

    @contextmanager
    def nested(self, name: str) -> Iterator[Self]:
        self.inner[name] = type(self)()
        yield self.inner[name]

    def params(self, values: Mapping[str, Any]) -> None:
        self.logged |= values

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        self.logged[name] = value

    def tag(self, name: str, value: str) -> None:
        self.logged[name] = value
