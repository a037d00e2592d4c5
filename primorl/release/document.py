"""The document model of a card: a title, a verdict, sections of points and rows; written as
Markdown or HTML.

The words stand in ``templates``, one template for both forms. A rendered template of words has one
item a line: ``# title``, the verdict without a mark, ``## heading``, ``- point``, ``| name |
value``; a second ``# title`` begins the appendix, and a line that is indented by two spaces goes on
with the item before it. A value from a file is put on one line, and a bar in it separates nothing.

Both forms escape every text: a name in a file cannot bring markup along.
"""

import html
import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from primorl.evaluate.wording import UNBELIEVED, discounted, gain, plural, source
from primorl.privacy.accounting.figures import posterior
from primorl.privacy.accounting.rounding import at_least, at_most, percent_at_most

_MARKDOWN = re.compile(r"([\\`*_\[\]|~])|^(?=[#+-]|\d+[.)]\s)")
_LINK = re.compile(r"https?:|www\.", re.IGNORECASE)  # becomes a link by itself in many readers
_BAR = "\x1f"  # stands for a bar within a value
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 46rem; padding: 2rem 1.25rem;
  font: .95rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
header { border: 1px solid; border-left: .35rem solid; border-radius: .5rem; padding: 1em 1.25em;
  font-size: 1.2em; font-weight: 600; }
.sound { color: #0b7a58; }
.void { color: #c0392b; }
h2 { font-size: 1.1em; margin: 1.5em 0 .4em; }
ul { margin: 0; padding-left: 1.2em; }
table { width: 100%; border-collapse: collapse; margin-top: .75em; font-size: .92em; }
th, td { text-align: left; vertical-align: top; padding: .3em .5em .3em 0;
  border-top: 1px solid #8885; }
th { width: 12em; font-weight: 500; }
section { break-inside: avoid; }
.appendix { break-before: page; }
@media print {
  @page { margin: 12mm; }
  body { max-width: none; padding: 0; font-size: 8pt; line-height: 1.35; }
}
</style>
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
        sections: the first page.
        sound: whether the verdict may be relied on.
        appendix: sections that stand behind the first page.
    """

    title: str = ""
    verdict: str = ""
    sections: list[Section] = field(default_factory=list)
    sound: bool = True
    appendix: list[Section] = field(default_factory=list)

    def markdown(self) -> str:
        """Write it as Markdown, with tables as GitHub has them."""
        lines = [f"# {_markdown(self.title)}", "", f"**{_markdown(self.verdict)}**", ""]
        for number, section in enumerate([*self.sections, *self.appendix]):
            if number == len(self.sections):
                lines += ["# Appendix", ""]
            lines += [f"## {_markdown(section.heading)}", ""]
            if section.points:
                lines += [*(f"- {_markdown(point)}" for point in section.points), ""]
            if section.rows:
                lines += ["| | |", "|---|---|"]
                lines += [
                    f"| {_markdown(name)} | {_markdown(value)} |" for name, value in section.rows
                ]
                lines.append("")
        return "\n".join(lines)

    def html(self) -> str:
        """Write it as one self-contained page: no script, nothing fetched, fit for print and narrow
        screens.
        """
        lines = [f"{_HEAD}<title>{html.escape(self.title)}</title>", "</head>", "<body>"]
        lines += [f"<h1>{html.escape(self.title)}</h1>"]
        kind = "sound" if self.sound else "void"
        lines += [f'<header class="{kind}">{html.escape(self.verdict)}</header>', "<main>"]
        for number, section in enumerate([*self.sections, *self.appendix]):
            if number == len(self.sections):
                lines.append('<h1 class="appendix">Appendix</h1>')
            lines.append(f"<section><h2>{html.escape(section.heading)}</h2>")
            if section.points:
                points = (f"<li>{html.escape(point)}</li>" for point in section.points)
                lines += ["<ul>", *points, "</ul>"]
            if section.rows:
                lines.append("<table>")
                for name, value in section.rows:
                    lines.append(
                        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
                    )
                lines.append("</table>")
            lines.append("</section>")
        return "\n".join([*lines, "</main>", "</body>", "</html>", ""])


def written(words: str, **facts: Any) -> Document:
    """Fill in a template of words.

    Args:
        words: name of the template, without its ending.
        facts: its variables.

    Raises:
        ValueError: a fact has an address, which becomes a link by itself.
    """
    rendered = _words().get_template(f"{words}.j2").render(facts)
    if _LINK.search(rendered):
        raise ValueError("found an address of the network in a text")
    document, items = Document(), list[str]()
    for line in rendered.split("\n"):
        if line.startswith("  "):
            items[-1] += line[1:]
        elif line:
            items.append(line)
    sections = document.sections
    for item in items:
        mark, _, text = item.partition(" ")
        if mark == "#" and document.title:
            sections = document.appendix
        elif mark == "#":
            document.title = _plain(text)
        elif mark == "##":
            sections.append(Section(_plain(text)))
        elif mark == "-":
            sections[-1].points.append(_plain(text))
        elif mark == "|":
            name, _, value = text.partition(" | ")
            sections[-1].rows.append((_plain(name), _plain(value)))
        else:
            document.verdict = _plain(item)
    return document


@cache
def _words() -> Environment:
    made = Environment(
        loader=PackageLoader("primorl.release"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_on_one_line,
    )
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
    made.globals |= {"posterior": posterior, "gain": gain, "unbelieved": UNBELIEVED}
    return made


def _figure(number: float | None, *, down: bool = False) -> str:
    """Write four digits, rounded to the side on which the promise is weaker."""
    return "none" if number is None else at_least(number, 4) if down else at_most(number, 4)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what if number == 1 else plural(what)}"


def _on_one_line(value: object) -> str:
    return " ".join(str(value).splitlines()).replace("|", _BAR)


def _plain(text: str) -> str:
    return text.replace(_BAR, "|")


def _markdown(text: str) -> str:
    """Escape ``text`` as literal Markdown on one line, HTML included: Jinja has no such
    escaping.
    """
    return _MARKDOWN.sub(
        lambda found: f"\\{found[1] or ''}", html.escape(" ".join(text.split()), quote=False)
    )
