"""An edit of the engine's source is noticed, so that somebody decides whether the engine version must be raised."""

import ast
import hashlib
from pathlib import Path

import pytest

from primorl.training.engine_version import SOURCES

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = (
    "primorl.training.training",
    "primorl.training.cloning",
    # They make the rows that the engine reads, and the engine does not import them.
    "primorl.trajectories.storage.memory",
    "primorl.trajectories.storage.sharded",
    "primorl.trajectories.storage.parquet",
    "primorl.trajectories.storage.schema",
)
# Types of settings, errors and files: they change no release.
OUTSIDE = ("primorl.project", "primorl.training.engine_version", "primorl.privacy.accounting", "primorl.privacy.ledger")


def test_somebody_decided_about_every_edit_of_the_engine() -> None:
    found = digest({name: source(name) for name in modules()})
    assert found == SOURCES, (
        "the engine's source changed. Could a release differ in distribution? Then raise ENGINE_VERSION in "
        f'primorl/training/engine_version.py. In any case record the new digest there: SOURCES = "{found}"'
    )


def test_the_digest_covers_everything_that_makes_a_release() -> None:
    assert {
        "primorl.training.cloning",
        "primorl.training.cohort",
        "primorl.training.cuda_graph",
        "primorl.training.distributed",
        "primorl.training.local_update",
        "primorl.training.normaliser_query",
        "primorl.training.policy_network",
        "primorl.training.rounds",
        "primorl.training.state",
        "primorl.privacy.mechanism.clipping",
        "primorl.privacy.mechanism.entropy",
        "primorl.privacy.mechanism.noise",
        "primorl.privacy.mechanism.plan",
        "primorl.privacy.mechanism.sampling",
        "primorl.dynamics.ensemble",
        "primorl.trajectories.storage.memory",
    } <= set(modules())


@pytest.mark.parametrize(
    ("edited", "noticed"),
    [
        ("def f(x):\n    # another comment\n    return x + 1\n", False),
        ('def f(x):\n    """Another docstring."""\n    return x + 1\n', False),
        ("def f(x):\n    return x + 2\n", True),
        ("def f(x, y=0):\n    return x + 1\n", True),
    ],
)
def test_comments_and_docstrings_need_no_decision(edited: str, noticed: bool) -> None:
    plain = digest({"m": 'def f(x):\n    """Add one."""\n    return x + 1  # one\n'})
    assert (digest({"m": edited}) != plain) is noticed


def digest(sources: dict[str, str]) -> str:
    """SHA-256 of the syntax trees, without docstrings, positions and comments."""
    content = hashlib.sha256()
    for name, text in sorted(sources.items()):
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
                node.body = node.body[1:] or [ast.Pass()]
        tree.body = [node for node in tree.body if not _is_text(node)]  # docstrings of constants
        content.update(f"{name}\0{ast.dump(tree)}\0".encode())
    return content.hexdigest()


def modules() -> list[str]:
    """Every module that importing the training runs, but for those `OUTSIDE`."""
    seen: set[str] = set()
    waiting = list(ENTRIES)
    while waiting:
        name = waiting.pop()
        if name in seen or any(f"{name}.".startswith(f"{room}.") for room in OUTSIDE):
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(source(name))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("primorl."):
                waiting += [name for name in _names(node) if _file(name) is not None]
    return sorted(name for name in seen if source(name).strip())


def source(name: str) -> str:
    file = _file(name)
    assert file is not None, name
    return file.read_text(encoding="utf-8")


def _names(node: ast.ImportFrom) -> list[str]:
    return [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]


def _file(name: str) -> Path | None:
    path = ROOT.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
