"""What the library needs of a run's log. `primorl.tracking` writes it to MLflow."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol


class Log(Protocol):
    """One run to write to."""

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters; nested mappings become dotted keys."""

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Log one number."""

    def tag(self, name: str, value: object) -> None:
        """Set one tag."""

    def artifact(self, path: Path) -> None:
        """Copy a file or a folder to the run."""

    def note(self, text: str) -> None:
        """Describe the run, in Markdown."""

    def dataset(self, name: str, fingerprint: str, facts: Mapping[str, Any]) -> None:
        """Name the dataset that the run learned from, by its keyed fingerprint."""


class StageLog(Log, Protocol):
    """A stage's run, which may have runs inside it."""

    def nested(self, name: str) -> AbstractContextManager[Log]:
        """A run inside this one. It ends with the block."""
