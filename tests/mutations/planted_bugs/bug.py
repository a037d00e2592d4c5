"""The description of a planted bug."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """One way to break a promise.

    Attributes:
        name: to ask for it by.
        family: what part of the promise.
        file: where.
        old: text that is in the file exactly once.
        new: what replaces it.
        breaks: what is wrong then.
        tests: files of which at least one must fail.
    """

    name: str
    family: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
