"""Read YAML as DVC reads it (YAML 1.2), and refuse what would hang, mislead or execute.

PyYAML follows YAML 1.1, where ``1:30`` is the number 90, ``yes`` is true and ``1e-5`` is text. DVC follows YAML 1.2,
where they are text, text and a number. A stage must not see other values than DVC tracks.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from primorl.project.errors import PipelineError

_MOST_BYTES = 1_000_000
_MOST_NODES = 100_000
_MOST_DIGITS = 400
_TAG = "tag:yaml.org,2002:"


class _RefusedError(Exception):
    def __init__(self, line: int, reason: str) -> None:
        self.line, self.reason = line, reason


class _Yaml12(yaml.SafeLoader):
    """A loader for plain data in YAML 1.2. Equal keys are refused: YAML 1.1 lets the last one win silently."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  PyYAML's own table is of YAML 1.1
    yaml_constructors = {
        f"{_TAG}{kind}": yaml.SafeLoader.yaml_constructors[f"{_TAG}{kind}"]
        for kind in ("null", "bool", "float", "str", "seq", "map")
    } | {None: yaml.SafeLoader.yaml_constructors[None]}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for named, _ in node.value:
            if named.tag == f"{_TAG}merge":
                continue
            key = self.construct_object(named, deep=True)
            if isinstance(key, str | int | float | bool | None):
                if key in seen:
                    raise _RefusedError(_line(named), f"key {shown(key)} given twice; keep one")
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: Any) -> str:
        text: str = super().construct_scalar(node)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise _RefusedError(_line(node), "found half of a surrogate pair; allowed is text in Unicode")
        return text

    def construct_integer(self, node: Any) -> int:
        text = self.construct_scalar(node).replace("_", "")
        if len(text) > _MOST_DIGITS:
            raise _RefusedError(_line(node), f"found a number of {len(text)} digits; allowed are up to {_MOST_DIGITS}")
        digits = text.lstrip("+-")
        bases = {"0b": 2, "0o": 8, "0x": 16}
        return int(text, bases[digits[:2]]) if digits[:2] in bases else int(text or "0")


_Yaml12.add_constructor(f"{_TAG}int", _Yaml12.construct_integer)
for _kind, _first, _pattern in (
    ("bool", "tTfF", r"true|True|TRUE|false|False|FALSE"),
    ("null", ["~", "n", "N", ""], r"~|null|Null|NULL|"),
    ("merge", "<", r"<<"),
    ("int", "-+0123456789", r"[-+]?(?:0b[01_]*[01][01_]*|0o[0-7_]*[0-7][0-7_]*|0x[\da-fA-F_]*[\da-fA-F][\da-fA-F_]*)"),
    ("int", "-+0123456789", r"[-+]?[0-9][0-9_]*"),
    (
        "float",
        "-+0123456789.",
        r"[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
        r"|[-+]?\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    ),
):
    _Yaml12.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(f"^(?:{_pattern})$"), list(_first))


def read_yaml(path: Path, why: str) -> Any:
    """Read one YAML file of settings.

    Args:
        path: the file.
        why: what the file is for; ends the message where it is missing.

    Raises:
        PipelineError: the file is missing, too large or not valid YAML, gives a key twice, or repeats itself through
            aliases beyond 100,000 values.
    """
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise PipelineError(f"{path}: found {size} bytes; allowed are up to {_MOST_BYTES}")
        return _constructed(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise PipelineError(f"{path}: not there; {why}") from None
    except _RefusedError as refused:
        raise PipelineError(f"{path}, line {refused.line}: {refused.reason}") from None
    except (UnicodeDecodeError, RecursionError, ValueError, yaml.YAMLError) as broken:
        where = getattr(broken, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise PipelineError(f"{path}{line}: not valid YAML") from None


def _constructed(text: str) -> Any:
    loader = _Yaml12(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values below a node with aliases written out; a node that contains itself has no end."""
    if id(node) in known:
        if known[id(node)] == 0:
            raise _RefusedError(_line(node), "found an alias that contains itself; write the values out")
        return known[id(node)]
    known[id(node)] = 0
    parts = node.value if isinstance(node, yaml.CollectionNode) else []
    inner = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
    known[id(node)] = total = 1 + sum(_count(part, known) for part in inner)
    if total > _MOST_NODES:
        raise _RefusedError(_line(node), f"found more than {_MOST_NODES} values, aliases written out; write fewer")
    return total


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def shown(value: Any) -> str:
    """A value as an error quotes it: at most 80 characters."""
    if isinstance(value, str):
        text = repr(value[:100])
    else:
        try:
            text = repr(value)
        except ValueError:  # Python prints no integer of thousands of digits
            return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
