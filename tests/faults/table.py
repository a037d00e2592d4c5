"""The faults, each with the test that must notice it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHARGES = "primorl.privacy.ledger.charges"
ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("faults.txt").read_text(encoding="utf-8")
"""Below each file its tests, below each test its faults: name, place, and old => new."""


class Fault(NamedTuple):
    """One way to break the guarantee.

    Attributes:
        name: to ask for it by.
        module: dotted name.
        function: qualified name; empty: the whole module.
        old: a piece of its text, as `ast.unparse` writes it.
        new: what takes its place.
        test: pytest's node id of the test that must fail.
    """

    name: str
    module: str
    function: str
    old: str
    new: str
    test: str = ""

    def file(self, root: Path) -> Path:
        """Return the module's file below ``root``."""
        return root / Path(*self.module.split(".")).with_suffix(".py")

    def plant(self, root: Path) -> str:
        """Return the module's source with the fault in it.

        Raises:
            LookupError: the function is gone, or ``old`` is not there exactly once.
        """
        tree = ast.parse(self.file(root).read_text(encoding="utf-8"))
        scope: ast.Module | ast.ClassDef | ast.FunctionDef = tree
        for name in filter(None, self.function.split(".")):
            inner = [n for n in scope.body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
            found = [each for each in inner if each.name == name]
            if len(found) != 1:
                raise LookupError(f"{self.function}: found {len(found)} times")
            scope = found[0]
        text = ast.unparse(scope)
        if text.count(self.old) != 1:
            raise LookupError(f"{self.old}: found {text.count(self.old)} times")
        (*body,) = ast.parse(text.replace(self.old, self.new)).body
        if self.function:  # what stands there is the function itself
            (function,) = body
            assert isinstance(function, ast.ClassDef | ast.FunctionDef)
            body = function.body
        scope.body = body
        return ast.unparse(tree)


def _faults(table: str) -> Iterator[Fault]:
    file = test = ""
    for line in table.replace("\n" + " " * 12, " ").strip().splitlines():
        depth, text = len(line) - len(line.lstrip()), line.strip()
        if depth == 0:
            file = text
        elif depth == 4:
            test = f"tests/{file}::{text}"
        else:
            name, place, edit = text.split(": ", 2)
            short, _, function = place.partition(" ")
            (file_of,) = ROOT.glob(f"primorl/**/{short.replace('.', '/')}.py")
            module = ".".join(file_of.relative_to(ROOT).with_suffix("").parts)
            old, new = edit.split(" => ")
            yield Fault(name, module, function, old, new, test)


FAULTS = list(_faults(TABLE))
