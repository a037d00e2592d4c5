"""Pydantic's errors as one line: the key as the file has it, what was found and what is allowed."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from primorl.config.reading import shown

_MOST = 10


def explanations(wrong: ValidationError, raw: Any) -> Iterator[tuple[str, str]]:
    """Each wrong key, dotted, with what is wrong; at most ten.

    Args:
        wrong: pydantic's error.
        raw: what was checked.
    """
    errors = [(key_of(error, raw), error) for error in wrong.errors(include_url=False, include_context=True)]
    named = {key for key, _ in errors}
    within = {key[:place] for key in named for place, mark in enumerate(key) if mark == "."}
    # Pydantic does not count a list's broken entries, and then complains about its length too.
    kept = [(key, error) for key, error in errors if key not in within]
    for key, error in kept[:_MOST]:
        yield _short(key), explain(key, error)
    if len(kept) > _MOST:
        yield "", f"and {len(kept) - _MOST} more"


def _short(key: str) -> str:
    return key if len(key) <= 100 else f"{key[:97]}..."


def key_of(error: Any, raw: Any) -> str:
    """The path of keys as the file has them; pydantic's own also names the alternatives of a type."""
    path, inside = [], raw
    for part in error["loc"]:
        if (isinstance(inside, dict) and part in inside) or (isinstance(inside, list) and part in range(len(inside))):
            path.append(str(part))
            inside = inside[part]
    if error["type"] == "missing":
        path.append(str(error["loc"][-1]))
    elif error["type"].startswith("union_tag") and isinstance(inside, dict):
        path.append("source")
    return ".".join(path)


def unknown_key(key: str) -> str:
    """Say why a dotted key is refused; keys that moved are told where."""
    if key.endswith("dynamics.processes"):
        return "unknown key; it is compute.processes, on which no charge depends"
    return "unknown key; remove it or check its spelling"


def explain(key: str, error: Any) -> str:
    """What is wrong with one key.

    Args:
        key: dotted; empty for the whole file.
        error: one of pydantic's.
    """
    kind, found, message = error["type"], error["input"], error["msg"].removeprefix("Value error, ")
    if kind in ("unexpected_keyword_argument", "invalid_key"):
        return unknown_key(key)
    if kind == "missing" or (kind == "union_tag_not_found" and isinstance(found, dict)):
        return "missing"
    if kind == "union_tag_invalid":
        return f"found {shown(error['ctx']['tag'])}; allowed are {error['ctx']['expected_tags']}"
    if kind in ("dataclass_type", "dict_type", "union_tag_not_found"):
        message = "a block of keys is needed"
    if kind == "tuple_type":
        message = "a list is needed"
    message = (message[0].lower() + message[1:]).replace("input should be", "allowed is", 1)
    # A rule about several keys says itself what it found; a store's address may carry a password.
    quiet = isinstance(found, dict | list) or not key or key.partition(".")[0] in ("tracking", "ledger")
    return message if quiet else f"found {'nothing' if found is None else shown(found)}; {message}"
