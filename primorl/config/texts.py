"""Types of settings that are no plain numbers: names, paths, addresses of stores, ranges and
categories.
"""

import re
from collections import Counter
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import core_schema

from primorl.base.files import leaves_project
from primorl.base.records import Finite, LogVariance, Seed

_MOST_CHARACTERS = 1000


class Block:
    """A part of ``params.yaml`` or of a dataset's file: a frozen dataclass that refuses unknown
    keys, and in which an empty key that has a default is one that is not there.
    """

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # noqa: RUF012  the name and the form that pydantic looks for

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Pydantic's hook: how a block is checked."""
        decided = {
            each.name
            for each in fields(cls)  # type: ignore[arg-type]
            if (each.default, each.default_factory) != (MISSING, MISSING)
            and NoneType not in get_args(each.type)
        }

        def leave_out_empty(value: Any) -> Any:
            if not isinstance(value, dict):
                return {} if value is None else value
            return {key: own for key, own in value.items() if own is not None or key not in decided}

        check = {"type": "no-info", "function": leave_out_empty}
        return {"type": "function-before", "function": check, "schema": handler(source)}


class OneOf:
    """Choose among the alternatives of a type by what is given: a word, a list, or the block that
    knows most of the keys; else the first.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Pydantic's hook: how a value of the type is checked."""
        choices: dict[str, Any] = {}
        keys: dict[str, set[str]] = {}
        for kind in get_args(source):
            plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
            tag = "numbers" if get_origin(plain) is tuple else "word"
            if is_dataclass(plain):
                tag = f"as {plain}"
                keys[tag] = {each.name for each in fields(plain)}
            choices[tag] = handler.generate_schema(kind)
        first, *_ = choices

        def choose(value: Any) -> str:
            given = value if isinstance(value, dict) else getattr(value, "__dict__", {})
            tag = "numbers" if isinstance(value, list | tuple) else "word"
            if given and keys:
                tag = max(keys, key=lambda each: len(keys[each] & given.keys()))
            return tag if tag in choices else first

        return core_schema.tagged_union_schema(choices, choose)


def _increasing(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] >= pair[1]:
        raise ValueError(f"found {list(pair)}; must be [low, high] with low < high")
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


def _one_line(text: str) -> str:
    """Lines that YAML folded, as one."""
    line = " ".join(text.split())
    if not line or not line.isprintable():
        raise ValueError("found nothing, or a character that is not printable")
    if re.search(r"https?:|www\.", line, re.IGNORECASE):
        raise ValueError("found http: or www.; a card holds no links")
    return line


def check_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse a value that is there twice."""
    for value, count in Counter(values).items():
        if count > 1:
            raise ValueError(f"found {value!r} more than once; each stands once")
    return values


Text = Annotated[str, Field(max_length=_MOST_CHARACTERS)]
Sentence = Annotated[
    str, AfterValidator(_one_line), Field(min_length=1, max_length=_MOST_CHARACTERS)
]
FilledText = Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Column = FilledText
InnerPath = Annotated[Text, AfterValidator(_inside)]
StoreUrl = Annotated[Text, AfterValidator(_inside_if_file)]
Seeds = Annotated[
    tuple[Seed, ...], Field(min_length=1, max_length=1000), AfterValidator(check_once)
]
Range = Annotated[tuple[Finite, Finite], AfterValidator(_increasing)]
LogVariances = Annotated[tuple[LogVariance, LogVariance], AfterValidator(_increasing)]
Category = Annotated[str, BeforeValidator(_text), Field(min_length=1, max_length=_MOST_CHARACTERS)]
Categories = Annotated[
    tuple[Category, ...], Field(min_length=2, max_length=10_000), AfterValidator(check_once)
]
Variant = Literal["private", "no_privacy", "no_clip"]
