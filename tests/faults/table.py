"""The faults, each with the test that must notice it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.faults import edits
from tests.faults.edits import Edit


class Fault(NamedTuple):
    """One way to break the guarantee.

    Attributes:
        name: to ask for it by.
        module: dotted name.
        function: qualified name; empty: the module's own statements.
        edit: of its syntax tree.
        test: pytest's node id of the test that must fail.
    """

    name: str
    module: str
    function: str
    edit: Edit
    test: str = ""


CHARGES = "primorl.privacy.ledger.charges"
ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("faults.txt").read_text(encoding="utf-8")
"""Below each file its tests, below each test its faults: name, place, and edit as old => new."""


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
            kind, _, expressions = edit.partition(" ")
            make: Callable[..., Edit] = getattr(edits, kind)
            yield Fault(name, module, function, make(*expressions.split(" => ")), test)


FAULTS = list(_faults(TABLE))
