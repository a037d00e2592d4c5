"""Every fault of `tests.faults` still has its place in the source, and its test."""

import ast

from tests.faults.table import FAULTS, ROOT


def test_every_fault_can_be_planted_and_its_test_is_there() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        fault.plant(ROOT)
        file, _, test = fault.test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
            fault.test
        )
