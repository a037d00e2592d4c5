"""Types of settings that are no plain numbers, YAML as DVC reads it (YAML 1.2, by DVC's library),
and explanations of mistakes.

In YAML 1.1, as PyYAML reads it, ``1:30`` is the number 90, ``yes`` is true and ``1e-5`` is text. A
stage must not see other values than DVC tracks.
"""

import copy
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, dataclass_transform, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import core_schema
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import YAMLError

from primorl.base import PipelineError
from primorl.base.files import home, read_text
from primorl.base.records import Finite, LogVariance, Seed

_MOST_CHARACTERS = 1000


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Block:
    """A part of ``params.yaml`` or of a dataset's file: a frozen dataclass that refuses unknown
    keys, and in which an empty key that has a default is one that is not there.
    """

    def __init_subclass__(cls) -> None:
        """Make the class a dataclass of keyword arguments."""
        dataclass(frozen=True, kw_only=True)(cls)

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
    named, root = Path(path).expanduser(), home().resolve()
    if not named.is_absolute() and not (root / named).resolve().is_relative_to(root):
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


def _refuse_placeholder(text: str) -> str:
    if text == "FILL IN":
        raise ValueError("replace what the draft left open")
    return text


def _text(value: Any) -> Any:
    if isinstance(value, bool | float):
        raise ValueError("allowed: a text; write it in quotes, as the log has it")
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
FilledText = Annotated[
    str, Field(min_length=1, max_length=_MOST_CHARACTERS), AfterValidator(_refuse_placeholder)
]
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


class _PlainData(SafeConstructor):
    """Leaves dates text."""

    yaml_constructors = SafeConstructor.yaml_constructors | {
        "tag:yaml.org,2002:timestamp": SafeConstructor.construct_yaml_str
    }


def read_yaml(path: Path, why: str) -> Any:
    """Read one YAML file of settings; ``why`` it is needed is said where it is not there.

    Raises:
        PipelineError: the file is missing, is not readable or valid YAML, or gives a key twice.
    """
    text = read_text(path, why)
    try:
        return copy.deepcopy(_content(text))
    except (RecursionError, ValueError, YAMLError) as broken:
        found = "not valid YAML"
        if "\n<<<<<<< " in f"\n{text}":
            found += ": git left both sides of a merge there; keep one"
        if isinstance(broken, DuplicateKeyError):  # its own words quote values
            found = "a key is given twice; keep one"
        place = getattr(broken, "problem_mark", None)
        line = "" if place is None else f", line {place.line + 1}"
        raise PipelineError(f"{path}{line}: {found}") from None


@lru_cache(maxsize=16)  # a command reads the same files two or three times
def _content(text: str) -> Any:
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _PlainData
    return reader.load(text)


def quote(value: Any) -> str:
    """A value as an error quotes it: at most 80 characters."""
    text = repr(value[:100] if isinstance(value, str) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_MOST = 10


def explanations(wrong: ValidationError, raw: Any) -> Iterator[tuple[str, str]]:
    """List wrong keys, dotted, with their mistakes; at most ten."""
    errors = [(key_of(error, raw), error) for error in wrong.errors()]
    within = {key[:place] for key, _ in errors for place, mark in enumerate(key) if mark == "."}
    # Pydantic does not count a list's broken entries, and then complains about its length too.
    kept = [(key, error) for key, error in errors if key not in within]
    for key, error in kept[:_MOST]:
        yield key, explain(key, error)
    if len(kept) > _MOST:
        yield "", f"and {len(kept) - _MOST} more mistakes"


def key_of(error: Any, raw: Any) -> str:
    """The path of keys as the file has them; pydantic's own also names the alternatives of
    a type.
    """
    path, inside = [], raw
    for part in error["loc"]:
        if (isinstance(inside, dict) and part in inside) or (
            isinstance(inside, list) and part in range(len(inside))
        ):
            path.append(str(part))
            inside = inside[part]
    if error["type"] == "missing":
        path.append(str(error["loc"][-1]))
    elif error["type"].startswith("union_tag") and isinstance(inside, dict):
        path.append("source")
    return ".".join(path)


UNKNOWN_KEY = "unknown key; remove it or check its spelling"


def explain(key: str, error: Any) -> str:
    """Describe the mistake of one key."""
    kind, found, message = error["type"], error["input"], error["msg"].removeprefix("Value error, ")
    if kind in ("unexpected_keyword_argument", "invalid_key"):
        return UNKNOWN_KEY
    if kind == "missing" or (kind == "union_tag_not_found" and isinstance(found, dict)):
        return "missing"
    if kind == "union_tag_invalid":
        return f"found {quote(error['ctx']['tag'])}; allowed are {error['ctx']['expected_tags']}"
    if kind in ("dataclass_type", "dict_type", "union_tag_not_found"):
        message = "a block of keys is needed"
    elif kind == "tuple_type":
        message = "a list is needed"
    else:
        allowed = re.sub(r"^\w+ should (be|have|match)( a valid| a)?\b", "allowed:", message)
        message = re.split(r", unable| after validation|, got", allowed)[0]
    if kind == "literal_error" and "word" in error["loc"]:
        message += ", or numbers"
    # A rule about several keys says itself what it found; a store's address may carry a password.
    quiet = isinstance(found, dict | list) or key.partition(".")[0] in ("", "tracking", "ledger")
    return message if quiet else f"found {'nothing' if found is None else quote(found)}; {message}"
