"""Types of settings that are no plain numbers: names, paths, addresses of stores, ranges and
categories.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from primorl.base.files import leaves_project
from primorl.base.records import Finite, LogVariance, Seed

_MOST_CHARACTERS = 1000


class Block:
    """A part of ``params.yaml`` or of a dataset's file: a frozen dataclass that refuses unknown
    keys.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  the name and the form that pydantic looks for


def _increasing(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] >= pair[1]:
        raise ValueError(f"found {list(pair)}; must be [low, high] with low < high")
    return pair


def _ordered(pair: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    if pair[0] is not None and pair[1] is not None and pair[0] > pair[1]:
        raise ValueError(
            f"found {list(pair)}; must be [low, high] with low <= high, or null for an open end"
        )
    return pair


def _inside(path: str) -> str:
    if leaves_project(path):
        raise ValueError("leaves the project; allowed are paths within it, or an absolute path")
    return path


def _inside_if_file(url: str) -> str:
    """A SQLite file, a ``file:`` address and a plain path must stay in the project; other addresses
    are servers.
    """
    scheme, separator, path = url.partition(":")
    if scheme.startswith("sqlite"):
        _inside(path.removeprefix("///").partition("?")[0])
    elif scheme == "file" or not separator:
        _inside((path if separator else url).removeprefix("//"))
    return url


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _word(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else _text(value)


def _one_line(text: str) -> str:
    """Lines that YAML folded, as one."""
    line = " ".join(text.split())
    if not line or not line.isprintable():
        raise ValueError(
            "found nothing, or a character that is not printable; allowed is text, or null"
        )
    if re.search(r"https?:|www\.", line, re.IGNORECASE):
        raise ValueError(
            "found http: or www., and a card holds no links; write the address without, as "
            "example.org/x"
        )
    return line


def word_or_numbers(value: Any) -> str:
    """Tell the tag of a value that is a word, or else numbers."""
    return "word" if isinstance(value, str) else "numbers"


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("found one twice; every category stands once")
    return names


def _once(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds:
        raise ValueError("found an empty list; must name at least one seed, or be null")
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(f"found {seed} more than once; every seed stands once")
    return seeds


Text = Annotated[str, Field(max_length=_MOST_CHARACTERS)]
Sentence = Annotated[
    str, AfterValidator(_one_line), Field(min_length=1, max_length=_MOST_CHARACTERS)
]
FilledText = Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Column = FilledText
InnerPath = Annotated[Text, AfterValidator(_inside)]
StoreUrl = Annotated[Text, AfterValidator(_inside_if_file)]
Seeds = Annotated[tuple[Seed, ...], Field(max_length=1000), AfterValidator(_once)]
Range = Annotated[tuple[Finite, Finite], AfterValidator(_increasing)]
LogVariances = Annotated[tuple[LogVariance, LogVariance], AfterValidator(_increasing)]
OpenRange = Annotated[tuple[Finite | None, Finite | None], AfterValidator(_ordered)]
Category = Annotated[str, BeforeValidator(_text), Field(min_length=1, max_length=_MOST_CHARACTERS)]
ConsentValue = Annotated[
    str, BeforeValidator(_word), Field(min_length=1, max_length=_MOST_CHARACTERS)
]
Categories = Annotated[
    tuple[Category, ...], Field(min_length=2, max_length=10_000), AfterValidator(_different)
]
Variant = Literal["private", "no_privacy", "no_clip"]
