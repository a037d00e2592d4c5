"""Lay the pages of the site out in build/docs, where mkdocs.yml takes them from: `python -m
docs.tools.site`.

The pages are written for readers of the repository. On the site, README.md is the first page, and a
link to a file that is not on the site becomes the file's name. Python-Markdown also wants an empty
line before a list.
"""

import os
import re
import shutil
from pathlib import Path

from docs.tools import reference
from docs.tools.markdown import LINK, ROOT, broken_links, prose

STAGED = ROOT / "build" / "docs"
REFERENCE = "reference.md"  # made here, and not in git
FROM_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_ITEM = re.compile(r"([-*]|\d+\.) ")


def main() -> None:
    """Write the pages anew; ends with one line for each broken link."""
    wrong = [line for page in pages() for line in broken_links(page)]
    if wrong:
        raise SystemExit("\n".join(f"error: {line}" for line in wrong))
    shutil.rmtree(STAGED, ignore_errors=True)
    for page, place in pages().items():
        (STAGED / place).parent.mkdir(parents=True, exist_ok=True)
        (STAGED / place).write_text(
            for_site(page, page.read_text(encoding="utf-8")), encoding="utf-8"
        )
    text = for_site(ROOT / "docs" / REFERENCE, reference.page())
    (STAGED / REFERENCE).write_text(text, encoding="utf-8")
    for file in (file for ending in ("*.png", "*.js") for file in (ROOT / "docs").rglob(ending)):
        copy = STAGED / file.relative_to(ROOT / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def pages() -> dict[Path, str]:
    """The source of every page, and its place on the site."""
    own = {
        page: page.relative_to(ROOT / "docs").as_posix()
        for page in sorted((ROOT / "docs").rglob("*.md"))
    }
    return {ROOT / name: place for name, place in FROM_ROOT.items()} | own


def for_site(page: Path, text: str) -> str:
    """Give the text of ``page`` the site's links, and lists after an empty line."""
    lines: list[str] = []
    for line, outside in prose(text):
        before = lines[-1] if lines else ""
        if (
            outside
            and _ITEM.match(line)
            and before
            and not _ITEM.match(before)
            and not before[0].isspace()
        ):
            lines.append("")
        lines.append(LINK.sub(lambda link: _link(page, link), line) if outside else line)
    return "\n".join(lines) + "\n"


def _link(page: Path, link: re.Match[str]) -> str:
    path, mark, fragment = link["target"].partition("#")
    file = (page.parent / path).resolve()
    if not path or not file.exists():
        return link[0]
    if file.suffix == ".png":
        place = file.relative_to(ROOT / "docs").as_posix()
    elif file in pages():
        place = pages()[file]
    else:
        name = file.relative_to(ROOT).as_posix()
        return f"`{name}`" if link["text"].strip("`") in name else f"{link['text']} (`{name}`)"
    here = Path(pages().get(page, REFERENCE)).parent
    return f"{link['before']}{os.path.relpath(place, here)}{mark}{fragment})"


if __name__ == "__main__":
    main()
