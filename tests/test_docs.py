"""The documentation: every page is in the navigation, links lead somewhere, and what is generated is up to date."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.tools import errors, reference, site
from docs.tools.markdown import ROOT, anchor, broken_links, links

PAGES = sorted((ROOT / "docs").rglob("*.md"))


def navigation() -> list[str]:
    """The pages that mkdocs.yml names, in order."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]

    def named(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for below in (entry.values() if isinstance(entry, dict) else entry) for page in named(below)]

    return named(yaml.safe_load(text))


def test_every_page_is_in_the_navigation_once() -> None:
    """A page that nobody can reach is not read; what a user needs first comes first."""
    found = navigation()
    assert sorted(found) == sorted(site.pages().values())
    assert found[:2] == ["index.md", "own-data.md"]


@pytest.mark.parametrize("page", [ROOT / name for name in site.FROM_ROOT] + PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """The twin that must fail: a file that is gone, a figure that was never made, a heading that was renamed."""
    (tmp_path / "other.md").write_text("# Title: `x` (twice)\n\n```\n# in code\n```\n\n# Title: `x` (twice)\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#title-x-twice-1) [b](gone.md) ![c](figures/gone.png) [d](other.md#in-code) [e](#nowhere)\n"
        "`[f](gone.md)`\n```\n[g](gone.md)\n```\n[h](https://example.org/gone)\n"
    )
    assert [wrong.split(": ")[1] for wrong in broken_links(page)] == [
        "gone.md",
        "figures/gone.png",
        "other.md#in-code",
        "#nowhere",
    ]


def test_anchors_are_those_of_github() -> None:
    assert anchor("What does ε mean for a patient?") == "what-does-ε-mean-for-a-patient"
    assert anchor("Logs: `source: tabular`") == "logs-source-tabular"
    assert anchor("1. Write & test") == "1-write--test"


def test_on_the_site_links_stay_inside_and_lists_are_lists() -> None:
    """README is the first page there; files that are not on the site are named instead."""
    first = site.for_site(ROOT / "README.md")
    assert "](docs/" not in first
    assert "](privacy.md)" in first
    named = {target.partition("#")[0] for page in PAGES for target in links(site.for_site(page))}
    assert not [target for target in named if target.endswith((".py", ".json", ".yaml"))]
    text = "\n".join(line for line in site.for_site(ROOT / "docs" / "architecture.md").splitlines())
    assert "knows that its episode has ended:\n\n- `none`" in text


def test_nothing_on_the_site_comes_from_the_network() -> None:
    """Neither a font nor a script: the one that makes the search work from the disk is here. `make docs` looks, too."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (script,) = re.findall(r"^  polyfills: \[(.*?)\]", text, re.MULTILINE)
    assert (ROOT / "docs" / script).exists()
    assert re.search(r"^  font: false", text, re.MULTILINE)
    assert "https:" not in text
    assert not re.search("extra_(javascript|css)", text)


def test_the_reference_is_up_to_date() -> None:
    """Docstrings and `--help` are its only source; `python -m docs.tools.reference` writes it anew."""
    text = reference.PAGE.read_text(encoding="utf-8")
    assert text == reference.page()
    for needed in ("primorl.load_policy", "Policy.act", "GaussianEnsemble.predict", "Statement.read"):
        assert f"`{needed}`" in text
    assert "--target-epsilon E" in text


def test_the_page_of_errors_is_up_to_date() -> None:
    """`python -m docs.tools.errors` writes it anew."""
    text = errors.PAGE.read_text(encoding="utf-8")
    assert text == errors.page(ROOT)
    assert "compute.device: found cuda, but torch sees no GPU; use auto or cpu` (primorl/setup/compute.py)" in text
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "primorl").rglob("*.py")]
    made = sum(source.count("raise PipelineError(") for source in sources)
    assert text.count("\n- ") > 0.9 * made, "messages that only join others are few"


def test_messages_are_shown_as_they_read(tmp_path: Path) -> None:
    """Constants are filled in, what only the run knows is in braces, and errors of other kinds are left out."""
    for folder in errors.SOURCES:
        (tmp_path / folder).mkdir()
    (tmp_path / "primorl" / "one.py").write_text(
        'FILE = "params.yaml"\n'
        "class Lost(PipelineError): ...\n"
        "def check(path, found):\n"
        '    text = f"{FILE}: seed: found {found!r}, "\n'
        '    raise PipelineError(text + "allowed is a number")\n'
        "def other(self, names):\n"
        '    raise Lost(f"{self.path}: found {", ".join(names)}; run `dvc repro`")\n'
        "def count(place, row):\n"
        '    raise PipelineError(f"{place}: row {row + 1} is empty")\n'
        "def join(lines):\n"
        '    raise PipelineError("; ".join(lines))\n'
        '    raise ValueError("nobody reads this text")\n'.replace('", "', "', '")
    )
    assert [message.text for message in errors.messages(tmp_path)] == [
        "params.yaml: seed: found {found}, allowed is a number",
        "{path}: found {names}; run `dvc repro`",
        "{place}: row {row} is empty",
    ]
    page = errors.page(tmp_path)
    assert "## `params.yaml`" in page
    assert "## Others, from primorl/one" in page
    assert "`` {path}: found {names}; run `dvc repro` `` (primorl/one.py)" in page
