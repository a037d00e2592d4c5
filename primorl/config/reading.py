"""Read YAML as DVC reads it (YAML 1.2, by DVC's library), and explain mistakes in settings.

In YAML 1.1, as PyYAML reads it, ``1:30`` is the number 90, ``yes`` is true and ``1e-5`` is text. A
stage must not see other values than DVC tracks.
"""

import copy
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent

from primorl.base.errors import PipelineError
from primorl.base.files import read_text

_MOST_CHARACTERS = 1_000_000
_TAG = "tag:yaml.org,2002:"
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")


class _NoAliases(Composer):
    """Refuses aliases: a few lines of them make a billion values."""

    def compose_node(self, parent: Any, index: int) -> Any:
        if self.parser.check_event(AliasEvent):
            place = self.parser.peek_event().start_mark
            raise ComposerError(None, None, "found an alias; write the values out", place)
        return super().compose_node(parent, index)


class _PlainData(SafeConstructor):
    """Makes plain data, and nothing of any other tag; a date stays text."""

    yaml_constructors = {
        f"{_TAG}{kind}": SafeConstructor.yaml_constructors[f"{_TAG}{kind}"] for kind in _KINDS
    } | {
        f"{_TAG}timestamp": SafeConstructor.construct_yaml_str,
        None: SafeConstructor.construct_undefined,
    }


def read_yaml(path: Path, why: str) -> Any:
    """Read one YAML file of settings; ``why`` it is needed is said where it is not there.

    Raises:
        PipelineError: the file is missing or not readable, too large or not valid YAML, gives a key
            twice, or repeats itself through an alias.
    """
    text = read_text(path, why)
    if len(text) > _MOST_CHARACTERS:
        raise PipelineError(
            f"{path}: found {len(text)} characters; allowed are up to {_MOST_CHARACTERS}"
        )
    try:
        return copy.deepcopy(_content(text))
    except (RecursionError, ValueError, YAMLError) as broken:
        found = "not valid YAML"
        if isinstance(broken, ComposerError):
            found = broken.problem
        elif isinstance(broken, DuplicateKeyError):  # its own words quote values
            found = "a key is given twice; keep one"
        place = getattr(broken, "problem_mark", None)
        line = "" if place is None else f", line {place.line + 1}"
        raise PipelineError(f"{path}{line}: {found}") from None


@lru_cache(maxsize=16)  # a command reads the same files two or three times
def _content(text: str) -> Any:
    reader = YAML(typ="safe", pure=True)
    reader.Composer, reader.Constructor = _NoAliases, _PlainData
    return reader.load(text)


def shown(value: Any) -> str:
    """A value as an error quotes it: at most 80 characters."""
    try:
        text = repr(value[:100] if isinstance(value, str) else value)
    except ValueError:  # Python prints no integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


_MOST = 10


def explanations(wrong: ValidationError, raw: Any) -> Iterator[tuple[str, str]]:
    """List wrong keys, dotted, with their mistakes; at most ten."""
    errors = [
        (key_of(error, raw), error)
        for error in wrong.errors(include_url=False, include_context=True)
    ]
    named = {key for key, _ in errors}
    within = {key[:place] for key in named for place, mark in enumerate(key) if mark == "."}
    # Pydantic does not count a list's broken entries, and then complains about its length too.
    kept = [(key, error) for key, error in errors if key not in within]
    for key, error in kept[:_MOST]:
        yield key, explain(key, error)
    if len(kept) > _MOST:
        yield "", f"and {len(kept) - _MOST} more"


def shown_key(key: str) -> str:
    """A key as an error names it: at most 100 characters."""
    return key if len(key) <= 100 else f"{key[:97]}..."


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
        return f"found {shown(error['ctx']['tag'])}; allowed are {error['ctx']['expected_tags']}"
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
    quiet = (
        isinstance(found, dict | list) or not key or key.partition(".")[0] in ("tracking", "ledger")
    )
    return message if quiet else f"found {'nothing' if found is None else shown(found)}; {message}"
