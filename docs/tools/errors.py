"""Write docs/errors.md, every error message of the source: `python -m docs.tools.errors`.

A message is found where an error that a user reads is made: `PipelineError`, a class that inherits from it, or, in
primorl/config, a `ValueError`, whose text stands behind the key that it is about. What differs from case to case is
shown in braces.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.tools.markdown import ROOT

PAGE = ROOT / "docs" / "errors.md"
SOURCES = ("primorl", "pipeline")
_CHECKED_KEYS = "primorl/config"  # its ValueErrors become lines about keys
_LEAST_WORDS = 3
_INTRODUCTION = """\
# Error messages

An error is one line on stderr that begins with `error:`. It names the file, key, column or row, what was found, what is
allowed and what to do. Search this page for the words of a message. Braces stand for what differs from case to case.

The messages are grouped by what they begin with. Beside each is the module that it comes from. This page is written
from the source by `python -m docs.tools.errors`. Messages that only join the words of others are left out.
"""


@dataclass(frozen=True, order=True)
class Message:
    """One message: its text, with braces, and the module that makes it."""

    text: str
    module: str


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(ROOT), encoding="utf-8")


def page(root: Path) -> str:
    """The text of the page, for the source in ``root``."""
    groups: dict[str, set[Message]] = defaultdict(set)
    for message in messages(root):
        groups[_group(message)].add(message)
    parts = [_INTRODUCTION]
    for group in sorted(groups, key=lambda name: (not name.startswith("`"), name.lower())):
        parts.append(f"## {group}\n")
        parts += [f"- {_code(message.text)} ({message.module})" for message in sorted(groups[group])]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def messages(root: Path) -> Iterator[Message]:
    """Every message of the source that has words of its own."""
    trees = {
        file.relative_to(root).as_posix(): ast.parse(file.read_text(encoding="utf-8"))
        for folder in SOURCES
        for file in sorted((root / folder).rglob("*.py"))
    }
    errors, shared = _error_classes(list(trees.values())), _constants(list(trees.values()))
    for module, tree in trees.items():
        made = errors | {"ValueError"} if module.startswith(_CHECKED_KEYS) else errors
        known = shared | _assigned_once(tree.body)
        for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
            calls = [node for node in _own(function) if isinstance(node, ast.Call) and node.args]
            found = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in made]
            local = _assigned_once(list(_own(function))) if found and function is not tree else known
            for call in found:
                text = " ".join(_text(call.args[0], known, local).split())
                if len(re.findall(r"[A-Za-z]+", re.sub(r"\{[^}]*\}", "", text))) >= _LEAST_WORDS:
                    yield Message(text, module)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, or of a module, without those of the functions inside."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef):
            yield node
            yield from _own(node)


def _error_classes(trees: Sequence[ast.Module]) -> set[str]:
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"PipelineError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def _constants(trees: Sequence[ast.Module]) -> dict[str, ast.expr]:
    """The constants of all modules that are called alike in none with another value."""
    values: dict[str, list[ast.expr]] = defaultdict(list)
    for tree in trees:
        for name, value in _assigned_once(tree.body).items():
            values[name].append(value)
    return {name: same[0] for name, same in values.items() if len({ast.dump(value) for value in same}) == 1}


def _assigned_once(nodes: Sequence[ast.AST]) -> dict[str, ast.expr]:
    """Names that one assignment gives a value, and the value."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node):
                found[target].append(value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _pairs(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            names = zip(target.elts, node.value.elts, strict=False)
            yield from ((name.id, value) for name, value in names if isinstance(name, ast.Name))


def _text(node: ast.expr, known: Mapping[str, ast.expr], local: Mapping[str, ast.expr]) -> str:
    """What an expression says, with braces around what is only known when it runs."""
    match node:
        case ast.Constant():
            return str(node.value)
        case ast.JoinedStr():
            return "".join(_text(part, known, {}) for part in node.values)
        case ast.FormattedValue(value=ast.BinOp(op=ast.Add()) as total) if not _has_text(total):  # a number
            return f"{{{_name(total)}}}"
        case ast.FormattedValue():
            return _text(node.value, known, {})
        case ast.BinOp(op=ast.Add()):
            return _text(node.left, known, local) + _text(node.right, known, local)
        case ast.BinOp(op=ast.Div()):
            return _text(node.left, known, local) + "/" + _text(node.right, known, local)
        case ast.Call(func=ast.Name(id="Path" | "str"), args=[inner]):
            return _text(inner, known, local)
        case ast.Name() if node.id in local:
            return _text(local[node.id], known, {})
        case ast.Name() if isinstance(known.get(node.id), ast.Constant | ast.JoinedStr | ast.BinOp | ast.Call):
            others = {name: value for name, value in known.items() if name != node.id}
            return _text(known[node.id], others, {})
    return f"{{{_name(node)}}}"


def _has_text(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node))


def _name(node: ast.expr) -> str:
    """A short name for the value of an expression."""
    match node:
        case ast.BinOp(left=left):
            return _name(left)
        case ast.Name():
            return node.id.strip("_").lower()
        case ast.Attribute(attr="__name__", value=inner) | ast.Subscript(value=inner):
            return _name(inner)
        case ast.Attribute():
            return node.attr.strip("_").lower()
        case ast.Call(func=ast.Attribute(attr="join"), args=[inner]) | ast.Call(func=ast.Name(), args=[inner, *_]):
            return _name(inner)
        case ast.Call(func=ast.Attribute(value=inner)):
            return _name(inner)
    return "…"


def _group(message: Message) -> str:
    """What a message begins with: a file, a block of settings, an option; or else the package that it comes from."""
    start = message.text.split(": ")[0].split(", ")[0]
    if file := re.match(r"\.?[\w-]+(/[\w.*{}-]+)+|[\w-]+\.(yaml|lock|json|toml)\b", start):
        return f"`{re.sub(r'{.*?}', 'NAME', file[0])}`"
    if start.startswith("--"):
        return "Options of commands"
    if ":" in message.text and (key := re.fullmatch(r"([a-z_]+)(\.[a-z_{}]+)+", start)):
        return f"`{key[1]}`"
    return "Others, from " + "/".join(message.module.split("/")[:2]).removesuffix(".py")


if __name__ == "__main__":
    main()
