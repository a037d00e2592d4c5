"""The model card as a page: rendered from templates, and the checks of a card that may come from a stranger.

The templates escape every text: a name in a file cannot bring markup along.
"""

import html
import re
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

EXACT_EPSILON = "ε, exactly"
_TAGS = "title|style|head|html|body|h1|h2|header|p|small|div|span|i|b|main|section|ul|li|table|tr|th|td"
_POINT = r"\d+(?:\.\d)? \d+(?:\.\d)?"
_HARMLESS = re.compile(
    rf"</?(?:{_TAGS})>|<header class=\"(?:sound|void)\">|<div class=\"bar\">|<i style=\"width:[\d.]+%\">"
    rf"|<svg viewBox=\"0 0 \d+ \d+\">|</svg>|<path class=\"(?:axes|guess|bound)\" d=\"M{_POINT}(?: L{_POINT})*\"/>"
    r"|<text(?: class=\"(?:end|middle)\")? x=\"\d+\" y=\"\d+\">|</text>"
)
_LEFT, _TOP, _SIDE = 44, 10, 240  # of the drawing's square; the template's axes stand on the same lines
_MARKDOWN = re.compile(r"([\\`*_\[\]|~])|^(?=[#+-]|\d+[.)]\s)")

Row = tuple[str, str]


@dataclass(frozen=True)
class Section:
    """A heading, then points, then a table of two columns; points and rows may be empty."""

    heading: str
    points: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Card:
    """The content of a card, in plain text.

    Attributes:
        title: of the card.
        verdict: the guarantee in one line.
        sound: whether that line may be relied on.
        success: in percent, how often at most somebody is right who must tell for one record, which was in the data or
            not by the toss of a coin. None: nothing bounds it.
        curve: points (false positive rate, largest true positive rate) of the best attack; empty: none is drawn.
        sections: the rest.
    """

    title: str
    verdict: str
    sound: bool
    success: float | None
    curve: tuple[tuple[float, float], ...]
    sections: tuple[Section, ...]

    def markdown(self) -> str:
        """The card as Markdown, with tables as GitHub has them."""
        return _template("card.md.j2").render(card=self)

    def html(self) -> str:
        """The card as one self-contained page: no script, nothing fetched, fit for print and narrow screens."""
        line = " L".join(f"{_LEFT + _SIDE * x:.1f} {_TOP + _SIDE * (1 - y):.1f}" for x, y in self.curve)
        return _template("card.html.j2").render(card=self, head=Markup(_HEAD), line=f"M{line}")


@cache
def _template(name: str) -> Template:
    page = name.endswith(".html.j2")
    return Environment(
        loader=PackageLoader("primorl.release"),
        autoescape=page,
        finalize=None if page else _md,  # Markdown has no escaping of its own in jinja
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template(name)


def is_inert(card: str) -> bool:
    """Whether a card that may come from a stranger holds nothing that runs, links or fetches, in any reader.

    A page must begin as ours do, with the policy that forbids all three, and every ``<`` must begin a tag without
    attributes of its own; Markdown must hold no tag and no link.
    """
    if card.startswith(_HEAD):
        return "<" not in _HARMLESS.sub("", card.removeprefix(_HEAD))
    # A bracket counts as escaped behind an odd number of backslashes; an address may become a link by itself.
    linked = re.search(r"(?<!\\)(?:\\\\)*[\[\]]", card) or re.search(r"https?:|www\.", card, re.IGNORECASE)
    return "<" not in card and linked is None


def _md(text: str) -> str:
    """``text`` as literal Markdown on one line: no markup of its own, HTML included."""
    return _MARKDOWN.sub(lambda found: f"\\{found[1] or ''}", html.escape(" ".join(text.split()), quote=False))


_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
"""
