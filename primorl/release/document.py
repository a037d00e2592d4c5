"""The document model of cards: a title, a verdict, sections of points and rows; written as HTML or Markdown.

The words stand in ``templates/words``, one template for both forms. A rendered template of words has one item a line:
``# title``, the verdict without a mark, ``## heading``, ``- point``, ``| name | value``; a line that is indented by two
spaces goes on with the item before it. A value from a file is put on one line, and a bar in it separates nothing.

The templates of the two forms escape every text: a name in a file cannot bring markup along.
"""

import html
import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from primorl.evaluate.wording import UNBELIEVED, discounted, gain, gain_note, plural, source
from primorl.privacy.accounting.figures import posterior
from primorl.privacy.accounting.rounding import at_least, at_most, percent_at_most

_TAGS = (
    "title|style|head|html|body|h1|h2|header|p|small|div|span|i|b|main|section|ul|li|table|tr|th|td"
)
_POINT = r"\d+(?:\.\d)? \d+(?:\.\d)?"
_HARMLESS = re.compile(
    rf"</?(?:{_TAGS})>|<header class=\"(?:sound|void)\">|<div class=\"bar\">|<i style=\"width:[\d.]+%\">"
    rf"|<svg viewBox=\"0 0 \d+ \d+\">|</svg>|<path class=\"(?:axes|guess|bound)\" d=\"M{_POINT}(?: L{_POINT})*\"/>"
    r"|<text(?: class=\"(?:end|middle)\")? x=\"\d+\" y=\"\d+\">|</text>"
)
_LEFT, _TOP, _SIDE = (
    44,
    10,
    240,
)  # of the drawing's square; the template's axes stand on the same lines
_MARKDOWN = re.compile(r"([\\`*_\[\]|~])|^(?=[#+-]|\d+[.)]\s)")
_BAR = "\x1f"  # stands for a bar within a value
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
"""

Row = tuple[str, str]


@dataclass
class Section:
    """A heading, then points, then a table of two columns; points and rows may be empty."""

    heading: str
    points: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


@dataclass
class Document:
    """A document in plain text.

    Attributes:
        title: of the document.
        verdict: the guarantee in one line.
        sections: the rest.
        sound: whether the verdict may be relied on.
        success: in percent, how often at most somebody is right who must tell for one record, which was in the data or
            not by the toss of a coin. None: nothing bounds it.
        curve: points (false positive rate, largest true positive rate) of the best attack; empty: none is drawn.
        appendix: sections that stand behind the first page.
        unit: the name of one unit.
    """

    title: str = ""
    verdict: str = ""
    sections: list[Section] = field(default_factory=list)
    sound: bool = True
    success: float | None = None
    curve: tuple[tuple[float, float], ...] = ()
    appendix: list[Section] = field(default_factory=list)
    unit: str = "record"

    def markdown(self) -> str:
        """Write it as Markdown, with tables as GitHub has them."""
        return _environment(finalize=_markdown).get_template("card.md.j2").render(card=self)

    def html(self) -> str:
        """Write it as one self-contained page: no script, nothing fetched, fit for print and narrow screens."""
        line = " L".join(
            f"{_LEFT + _SIDE * x:.1f} {_TOP + _SIDE * (1 - y):.1f}" for x, y in self.curve
        )
        return (
            _environment(autoescape=True)
            .get_template("card.html.j2")
            .render(card=self, head=Markup(_HEAD), line=f"M{line}")
        )


def written(words: str, **facts: Any) -> Document:
    """Fill in a template of words.

    Args:
        words: name of the template, without its ending.
        facts: its variables.
    """
    document = Document()
    items: list[str] = []
    for line in _words().get_template(f"words/{words}.j2").render(facts).split("\n"):
        if line.startswith("  "):
            items[-1] += line[1:]
        elif line:
            items.append(line)
    for item in items:
        mark, _, text = item.partition(" ")
        if mark == "#":
            document.title = _plain(text)
        elif mark == "##":
            document.sections.append(Section(_plain(text)))
        elif mark == "-":
            document.sections[-1].points.append(_plain(text))
        elif mark == "|":
            name, _, value = text.partition(" | ")
            document.sections[-1].rows.append((_plain(name), _plain(value)))
        else:
            document.verdict = _plain(item)
    return document


def is_inert(card: str) -> bool:
    """Whether a card that may come from a stranger holds nothing that runs, links or fetches, in any reader.

    A page must begin as ours do, with the policy that forbids all three, and every ``<`` must begin a tag without
    attributes of its own; Markdown must hold no tag and no link.
    """
    if card.startswith(_HEAD):
        return "<" not in _HARMLESS.sub("", card.removeprefix(_HEAD))
    # A bracket counts as escaped behind an odd number of backslashes; an address may become a link by itself.
    linked = re.search(r"(?<!\\)(?:\\\\)*[\[\]]", card) or re.search(
        r"https?:|www\.", card, re.IGNORECASE
    )
    return "<" not in card and linked is None


@cache
def _environment(**options: Any) -> Environment:
    return Environment(
        loader=PackageLoader("primorl.release"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


@cache
def _words() -> Environment:
    made = _environment(finalize=_on_one_line)
    made.filters |= {
        "at_most": at_most,
        "percent_at_most": percent_at_most,
        "plural": plural,
        "count": _count,
        "short": "{:.4g}".format,
        "grouped": "{:,}".format,
        "json": json.dumps,
        "figure": _figure,
        "source": source,
        "discounted": discounted,
    }
    made.globals |= {
        "posterior": posterior,
        "gain": gain,
        "gain_note": gain_note,
        "unbelieved": UNBELIEVED,
    }
    return made


def _figure(number: float | None, earlier: bool = False, *, down: bool = False) -> str:
    """Write four digits, rounded to the side on which the promise is weaker; earlier cards have all digits."""
    if earlier:
        return json.dumps(number)
    return "none" if number is None else at_least(number, 4) if down else at_most(number, 4)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what if number == 1 else plural(what)}"


def _on_one_line(value: object) -> str:
    return " ".join(str(value).splitlines()).replace("|", _BAR)


def _plain(text: str) -> str:
    return text.replace(_BAR, "|")


def _markdown(text: str) -> str:
    """Escape ``text`` as literal Markdown on one line, HTML included: Jinja has no such escaping."""
    return _MARKDOWN.sub(
        lambda found: f"\\{found[1] or ''}", html.escape(" ".join(text.split()), quote=False)
    )
