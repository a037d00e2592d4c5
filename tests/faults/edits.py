"""Edits of a function's syntax tree.

In a new expression, ``_`` stands for the expression that it replaces.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Scope = ast.Module | ast.ClassDef | ast.FunctionDef
Edit = Callable[[Scope], None]
"""Changes one place of a scope. Raises LookupError unless there is exactly one such place."""


def planted(source: str, function: str, edit: Edit) -> str:
    """The source with ``edit`` applied to a function.

    Args:
        source: of a module.
        function: its qualified name; empty: the edit is of the module's own statements.
        edit: to apply.

    Raises:
        LookupError: the function or the place of the edit is gone, or nothing changed.
    """
    tree = ast.parse(source)
    before = ast.dump(tree)
    scope: Scope = tree
    for name in filter(None, function.split(".")):
        inner = [
            n
            for n in scope.body
            if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name
        ]
        scope = only(inner, f"definition of {function}")
    edit(scope)
    if ast.dump(tree) == before:
        raise LookupError(f"{function}: the edit changes nothing")
    return ast.unparse(ast.fix_missing_locations(tree))


def expression(old: str, new: str) -> Edit:
    """Replace the only expression that equals ``old``."""
    wanted = ast.dump(parsed(old))
    return _replacing(lambda node: ast.dump(node) == wanted, new, old)


def call(name: str, new: str) -> Edit:
    """Replace the only call of ``name``, such as ``discrete_gaussian`` or ``.clamp`` (a method of
    whatever).
    """
    return _replacing(
        lambda node: isinstance(node, ast.Call) and _calls(node, name), new, f"call of {name}"
    )


def _replacing(matches: Callable[[ast.expr], bool], new: str, what: str) -> Edit:
    class Replacement(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.expr) and matches(node):
                return _filled(new, node)
            return self.generic_visit(node)

    def edit(scope: Scope) -> None:
        only(
            [node for node in ast.walk(scope) if isinstance(node, ast.expr) and matches(node)], what
        )
        Replacement().visit(scope)

    return edit


def value_of(name: str, new: str) -> Edit:
    """Replace what the only assignment to ``name`` assigns."""

    def edit(scope: Scope) -> None:
        assignments = [
            n
            for n in ast.walk(scope)
            if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name
        ]
        assignment = only(assignments, f"assignment to {name}")
        assignment.value = _filled(new, assignment.value)

    return edit


def returned(new: str) -> Edit:
    """Replace what the last ``return`` of the function returns."""

    def edit(scope: Scope) -> None:
        last = scope.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            raise LookupError("the function does not end with a return")
        last.value = _filled(new, last.value)

    return edit


def condition(mentioning: str, new: str) -> Edit:
    """Replace the condition of the only ``if`` (also of a comprehension) that mentions a name or an
    attribute.
    """

    def mentions(test: ast.expr) -> bool:
        names = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
        return mentioning in names | {
            n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)
        }

    def edit(scope: Scope) -> None:
        statements = [
            n for n in ast.walk(scope) if isinstance(n, ast.If | ast.IfExp) and mentions(n.test)
        ]
        loops = [
            n
            for n in ast.walk(scope)
            if isinstance(n, ast.comprehension) and any(map(mentions, n.ifs))
        ]
        found = only([*statements, *loops], f"condition on {mentioning}")
        if isinstance(found, ast.comprehension):
            found.ifs = [_filled(new, test) if mentions(test) else test for test in found.ifs]
        else:
            found.test = _filled(new, found.test)

    return edit


def dropped(name: str) -> Edit:
    """Drop the only statement that consists of a call of ``name``, or assigns its result."""

    def edit(scope: Scope) -> None:
        def drops(node: ast.AST) -> bool:
            value = node.value if isinstance(node, ast.Expr | ast.Assign) else None
            return isinstance(value, ast.Call) and _calls(value, name)

        only([n for n in ast.walk(scope) if drops(n)], f"statement that calls {name}")
        for node in ast.walk(scope):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [ast.Pass() if drops(each) else each for each in body]  # type: ignore[attr-defined]

    return edit


def handler(new: str) -> Edit:
    """Replace the exception that the function's only ``except`` catches."""

    def edit(scope: Scope) -> None:
        found = only([n for n in ast.walk(scope) if isinstance(n, ast.ExceptHandler)], "except")
        found.type = parsed(new)

    return edit


def only(found: list[T], what: str) -> T:
    """The only one found.

    Raises:
        LookupError: there is none, or more than one.
    """
    if len(found) != 1:
        raise LookupError(f"found {len(found)} places for: {what}")
    return found[0]


def parsed(text: str) -> ast.expr:
    """An expression's tree."""
    return ast.parse(text, mode="eval").body


def module_file(root: Path, module: str) -> Path:
    """The file of a dotted module below ``root``."""
    return root / Path(*module.split(".")).with_suffix(".py")


def _calls(node: ast.Call, name: str) -> bool:
    if name.startswith("."):
        return isinstance(node.func, ast.Attribute) and node.func.attr == name[1:]
    return ast.unparse(node.func) == name


def _filled(new: str, old: ast.expr) -> ast.expr:
    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return old if node.id == "_" else node

    filled: ast.expr = Fill().visit(parsed(new))
    return filled
