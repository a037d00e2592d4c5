"""The documentation: every page is in the navigation, links lead somewhere, commands parse, nothing
comes from afar.
"""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import primorl
from docs.tools import notebooks, reference, site
from docs.tools.commands import Command, commands, problems, wrong_commands
from docs.tools.markdown import ROOT, broken_links

PAGES = [ROOT / name for name in site.FROM_ROOT]
PAGES += [page for room in ("docs", "benchmarks") for page in sorted((ROOT / room).rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_and_commands_parse(page: Path) -> None:
    assert broken_links(page) == []
    if page.name != "CHANGELOG.md":
        assert wrong_commands(page) == []


def test_the_architecture_page_has_the_rooms_as_the_code_has_them() -> None:
    """Rooms stand in the order of the import contract, with the first lines of their modules; every
    place is there.
    """
    text = (ROOT / "docs/architecture.md").read_text()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [found["layers"] for found in contracts["contracts"] if "layers" in found]
    rooms = [room for layer in reversed(layers) for room in reversed(layer.split(" | "))]
    wanted = []
    for room in (room.removeprefix("primorl.") for room in rooms[:-1]):
        files = ROOT / f"primorl/{room}.py", ROOT / f"primorl/{room}/__init__.py"
        (tree,) = [ast.parse(file.read_text()) for file in files if file.exists()]
        summary = (ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " ")
        wanted.append(f"| `{room}` | {summary} |")
    assert "\n".join(wanted) in text
    for place in re.findall(r"`([a-z_/]+\.py)`", text):
        assert (ROOT / "primorl" / place).exists() or (ROOT / place).exists(), place
    assert len(text.splitlines()) <= 100, "two screens"


def test_every_page_is_in_one_of_four_parts_of_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    parts = ["Start", "Guides", "Understand", "For maintainers"]
    assert re.findall(r"^  - ([\w ]+):$", nav, re.MULTILINE) == parts
    assert sorted(re.findall(r"[\w/-]+\.md", nav)) == sorted(
        [*site.pages().values(), site.REFERENCE]
    )


@pytest.mark.parametrize(
    "notebook", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_notebook_has_the_outputs_of_a_run_and_no_path_of_a_machine(notebook: Path) -> None:
    """`tests/smoke.py` and `tests/own_data.py` run them."""
    compile(notebooks.script(notebook), notebook.name, "exec")
    text = notebook.read_text(encoding="utf-8")
    assert '"execution_count": null' not in text
    assert not re.search(r"/(home|root|tmp|Users)/", text)


def test_pages_that_the_code_names_exist() -> None:
    named: set[str] = set()
    for room in ("primorl", "pipeline", "research"):
        for file in (ROOT / room).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            named |= set(re.findall(r"(?:docs|benchmarks)/[a-z/_-]+\.md", text))
    assert "benchmarks/results.md" in named
    assert sorted(page for page in named if not (ROOT / page).is_file()) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """A file that is gone, a figure that was never made, a heading that was renamed."""
    (tmp_path / "other.md").write_text("# Title: `x` (twice)\n\n```\n# in code\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#title-x-twice) [b](gone.md) ![c](figures/gone.png) [d](other.md#in-code) "
        "[e](#nowhere)\n`[f](gone.md)`\n```\n[g](gone.md)\n```\n"
    )
    found = [wrong.split(": ")[1] for wrong in broken_links(page)]
    assert found == ["gone.md", "figures/gone.png", "other.md#in-code", "#nowhere"]


def test_a_command_that_does_not_parse_is_found() -> None:
    for line, said in (
        ("primorl paln", "no command paln"),
        ("primorl plan --invented", "no option --invented"),
        ("primorl predict --out a.csv", "--observations is missing"),
        ("primorl release examples/gone.yaml", "no file examples/gone.yaml"),
        ("dvc repro trian_model", "no stage trian_model"),
        ("dvc exp run -S privacy.target_espilon=1", "params.yaml has no privacy.target_espilon"),
        ("make tests", "no target tests"),
        ("python -m benchmarks.speed.gone", "no module benchmarks.speed.gone"),
    ):
        (command,) = commands(f"```sh\n{line}\n```\n")
        assert any(said in problem for problem in problems(command)), line
        assert commands(f"Run `{line}` first.\n") == [Command(command.words, False)]


def test_the_site_has_the_reference_and_its_links_stay_inside() -> None:
    """README is the first page there; files that are not on the site are named instead."""
    text = reference.page()
    first = site.for_site(ROOT / "README.md", (ROOT / "README.md").read_text(encoding="utf-8"))
    names = {name for name in primorl.__all__ if name != "__version__"}
    headings = re.findall(r"^### `primorl\.([\w.]+)`$", text, re.MULTILINE)
    assert names <= {*headings}
    assert {*reference.EXAMPLES} == names
    namespace: dict[str, Any] = {"primorl": primorl}
    exec(reference.EXAMPLES["Mechanism"], namespace)
    assert 0 < namespace["mechanism"].compute_spent().epsilon_pld < 4
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
    assert "](docs/" not in first
    assert "](privacy.md)" in first
    assert not re.search(r"\]\([^)]*\.(py|json|yaml)[)#]", first)


def test_the_glossary_has_few_words_and_each_of_them_a_class() -> None:
    """One name a thing: of a class that the glossary names there is one, in one room."""
    text = (ROOT / "docs/architecture.md").read_text()
    words = re.findall(r"^\| \*\*([a-z ]+)\*\* \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    assert 10 <= len(words) == len({word for word, _ in words}) <= 25
    code = [file.read_text() for file in (ROOT / "primorl").rglob("*.py")]
    for word, places in words:
        for name in re.findall(r"`([A-Z]\w+)(?:\.\w+)?`", places):
            made = re.compile(rf"^(?:class {name}\b|{name} = )", re.MULTILINE)
            assert sum(len(made.findall(each)) for each in code) == 1, f"{word}: {name}"
