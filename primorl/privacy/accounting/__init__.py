"""ε of an event, and the settings that meet a target ε."""

from importlib import import_module
from typing import Any, TypeAlias


class _Accountant:
    """dp_accounting, loaded when it is first used: it takes longer than most commands."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("dp_accounting"), name)


dp: Any = _Accountant()
DpEvent: TypeAlias = Any
"""An event of dp_accounting, which has no types."""
