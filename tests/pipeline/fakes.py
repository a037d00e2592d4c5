"""A run that only remembers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self


class PipelineRun:
    """The run of the whole pipeline, as far as the stages before `evaluate` use it."""

    run_id = "0123"

    def __init__(self) -> None:
        self.artifacts: dict[str, bytes] = {}

    def params(self, values: Mapping[str, Any]) -> None:
        """Forget them."""

    def artifact(self, path: Path) -> None:
        self.artifacts[path.name] = path.read_bytes()


class FakeRun:
    """Everything a stage hands to MLflow, by kind."""

    run_id = "0123"

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}
        self.inner: dict[str, Self] = {}
        self.pipeline = PipelineRun()

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

    def note(self, text: str) -> None:
        self.logged["note"] = text

    def dataset(self, name: str, fingerprint: str, facts: Mapping[str, Any]) -> None:
        self.logged["dataset"] = (name, fingerprint, facts)

    def flush(self) -> None:
        """Nothing waits."""

    def send(self, call: object) -> None:
        """There is no store."""
