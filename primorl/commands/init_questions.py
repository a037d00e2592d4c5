"""What ``primorl init`` asks for on a terminal, one by one. Names and types of columns are shown, and no cell."""

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from primorl.project.errors import PipelineError

if TYPE_CHECKING:
    from primorl.project.elapsed import TimeUnit
    from primorl.setup.drafting import Answers
    from primorl.trajectories.sources.tabular.columns import LogColumn

T = TypeVar("T")

_QUESTIONS = {
    "unit": "Column of the person whom the guarantee protects (the trajectory's, if the log names nobody)",
    "trajectory": "Column of the trajectory (a visit, a stay, a trip)",
    "step": "Column that orders a trajectory (a time or a number)",
    "observation": "Columns that were observed, separated by commas",
    "action": "Columns of what was done, separated by commas",
    "reward": "Column of the reward",
}
_LISTS = ("observation", "action")


def answered(given: Mapping[str, Any], columns: "tuple[LogColumn, ...]", default_name: str, *, ask: bool) -> "Answers":
    """What the columns mean: as given, and what is missing as answered on the terminal.

    Args:
        given: by the name of the flag; None or empty: not given.
        columns: of the log.
        default_name: of the dataset, which is refused where `--name` would be.
        ask: whether there is a terminal to ask on.

    Raises:
        PipelineError: something is missing and cannot be asked for, or a flag cannot be read.
    """
    from primorl.config.tabular import Elapsed
    from primorl.setup.drafting import Answers, listed

    found: dict[str, Any] = {key: given[key] or None for key in _QUESTIONS}
    categories = dict(_pair("--categories", text, "COLUMN=A,B", _categories) for text in given["categories"] or ())
    bounds = dict(_pair("--bounds", text, "COLUMN=LOW:HIGH", _bounds) for text in given["bounds"] or ())
    elapsed = given["elapsed"] and _pair("--elapsed", given["elapsed"], "NAME=UNIT:MOST", _elapsed)
    name, horizon, kinds = given["name"], given["horizon"], {column.name: column.kind for column in columns}
    try:
        name = name and _name(name)
        if not ask:
            name = name or _name(default_name)
    except ValueError as wrong:
        of = "" if name else "not given, and the name of the file stands for it: "
        raise PipelineError(f"--name: {of}{wrong}; give another one") from None
    if not ask:
        missing = [f"--{key}" for key, value in found.items() if value is None]
        texts = _texts({key: value or () for key, value in found.items()}, kinds, categories)
        missing += [f"--categories {column}=A,B" for column in texts]
        if missing:
            raise PipelineError(
                f"init: missing {', '.join(missing)}; the file has the columns {listed(columns)}; give the flags, or "
                "run the command on a terminal, where it asks"
            )
    else:
        _show(columns)
        name = name or _asked("Name of the dataset", _name, default_name)
        for key, question in _QUESTIONS.items():
            if found[key] is None:
                read = _columns(tuple(kinds)) if key in _LISTS else _column(tuple(kinds))
                found[key] = _asked(question, read)
        for column in _texts(found, kinds, categories):
            question = f"All that may be in {column!r}, as the protocol says, separated by commas"
            categories[column] = _asked(question, _categories)
    answers = Answers(
        name=name,
        **(found | {key: tuple(found[key]) for key in _LISTS}),
        categories=categories,
        bounds=bounds,
        horizon=horizon,
        elapsed=elapsed and Elapsed(elapsed=elapsed[0], unit=elapsed[1][0], most=elapsed[1][1]),
    )
    if not ask:
        return answers
    for column in answers.unbounded:
        question = f"Bounds of {column!r} as LOW:HIGH, known beforehand, not from the rows (Enter: fill in later)"
        if (pair := _asked(question, lambda text: _bounds(text) if text else None, "")) is not None:
            bounds[column] = pair
    if horizon is None:
        question = "The most steps of a trajectory, known beforehand (Enter: not declared)"
        horizon = _asked(question, lambda text: _positive(text) if text else None, "")
    return Answers(**(vars(answers) | {"bounds": bounds, "horizon": horizon}))


def _show(columns: "tuple[LogColumn, ...]") -> None:
    from primorl.commands.printing import rendered
    from primorl.config.reading import shown

    print(rendered(("column", "type"), [(shown(column.name), column.kind) for column in columns]))


def _texts(found: Mapping[str, Any], kinds: Mapping[str, str], categories: Mapping[str, Any]) -> list[str]:
    """Columns that are observed or done, hold no numbers, and whose categories nobody declared."""
    used = [*found["observation"], *found["action"]]
    return [column for column in used if kinds.get(column) in ("text", "truth values") and column not in categories]


def _asked(question: str, read: Callable[[str], T], default: str | None = None) -> T:
    """Ask until the answer can be read."""
    while True:
        text = typer.prompt(question, default=default, show_default=bool(default)).strip()
        try:
            return read(text)
        except ValueError as wrong:
            print(f"{wrong}; try again")


def _pair(flag: str, text: str, form: str, read: Callable[[str], T]) -> tuple[str, T]:
    """``COLUMN=…`` of a flag; a column's name may have an equals sign."""
    column, separator, said = text.rpartition("=")
    if not separator or not column:
        raise PipelineError(f"{flag}: found {text[:80]!r}; allowed is {form}")
    try:
        return column, read(said)
    except ValueError as wrong:
        raise PipelineError(f"{flag} {column}: {wrong}") from None


def _column(known: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"found {text[:80]!r}, which is no column; allowed is one of the names above")
        return text

    return read


def _columns(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    one = _column(known)
    return lambda text: tuple(one(part.strip()) for part in text.split(","))


def _categories(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if len(found) < 2 or len(set(found)) < len(found) or not all(found):
        raise ValueError(f"found {text[:80]!r}; allowed are two or more different words, separated by commas")
    return found


def _bounds(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"found {text[:80]!r}; allowed is LOW:HIGH, two numbers with LOW below HIGH")
    return low, high


def _elapsed(text: str) -> "tuple[TimeUnit, float]":
    from primorl.project.elapsed import TIME_UNITS

    said, _, number = text.partition(":")
    unit = next((one for one in TIME_UNITS if one == said), None)
    try:
        most = float(number)
    except ValueError:
        most = math.nan
    if unit is None or not (math.isfinite(most) and most > 0):
        raise ValueError(
            f"found {text[:80]!r}; allowed is UNIT:MOST: {', '.join(TIME_UNITS)}, and a number above 0: a longer time "
            "counts as this"
        )
    return unit, most


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"found {text[:80]!r}; allowed is a whole number from 1")
    return int(text)


def _name(text: str) -> str:
    from primorl.project.template import RESERVED

    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text) is None or text.lower() in RESERVED:
        others = " or ".join(f"`{name}`" for name in RESERVED)
        raise ValueError(f"found {text[:80]!r}; allowed are letters, digits, dots, - and _, and not {others}")
    return text
