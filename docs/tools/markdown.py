"""Headings and links of a Markdown page, and their check: every relative link points to a file and
an anchor.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?P<before>!?\[(?P<text>[^\]]*)\]\()(?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^ *(```|~~~)")
_HEADING = re.compile(r"#{1,6} +(.*?) *$")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")  # https:, mailto:


def prose(text: str) -> list[tuple[str, bool]]:
    """The lines of a page, each with whether it lies outside fenced code."""
    lines, inside = [], False
    for line in text.splitlines():
        fence = _FENCE.match(line) is not None
        lines.append((line, not inside and not fence))
        inside ^= fence
    return lines


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    plain = re.sub(r"[`*]", "", LINK.sub(lambda link: link["text"], heading))
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of all headings of a page; a heading that returns gets a number."""
    found: set[str] = set()
    for line, outside in prose(text):
        if outside and (heading := _HEADING.match(line)):
            name, number = anchor(heading[1]), 0
            while (unique := f"{name}-{number}" if number else name) in found:
                number += 1
            found.add(unique)
    return found


def links(text: str) -> list[str]:
    """The relative links of a page, outside code."""
    targets = [
        link["target"]
        for line, outside in prose(text)
        if outside
        for link in LINK.finditer(re.sub(r"`[^`]*`", lambda code: "x" * len(code[0]), line))
    ]
    return [target for target in targets if not _ELSEWHERE.match(target)]


def broken_links(page: Path) -> list[str]:
    """What is wrong with the links of ``page``; one line each."""
    wrong = []
    for target in links(page.read_text(encoding="utf-8")):
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            wrong.append(f"{page}: {target}: no such file")
        elif fragment and (
            file.suffix != ".md" or fragment not in anchors(file.read_text(encoding="utf-8"))
        ):
            wrong.append(f"{page}: {target}: no heading has this anchor")
    return wrong
