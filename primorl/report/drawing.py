"""What figures of a report are made of: Plotly's specifications as plain dictionaries, and their colours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's colours, which people with any colour vision can tell apart
BLUE, RED, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: of its element.
        title: above it.
        caption: what it shows, for those who cannot see it as well.
        spec: `data` and `layout` of Plotly.
        headers: of the table of what it shows.
        rows: of the table.
    """

    name: str
    title: str
    caption: str
    spec: dict[str, Any]
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def shown(number: float, form: str) -> str:
    """A number for a table, or "none" where it is not finite: no point of the figure shows it either."""
    return format(number, form) if math.isfinite(number) else "none"


def line(
    x: Sequence[float],
    y: Sequence[float | None],
    name: str,
    color: str,
    *,
    mode: str = "lines",
    dash: str = "solid",
    hover: str = "",
) -> dict[str, Any]:
    """A trace of points, joined or not; ``hover`` is what is shown over a point instead of the name."""
    drawn: dict[str, Any] = {"type": "scatter", "mode": mode, "x": list(x), "y": list(y), "name": name}
    drawn["line"] = {"color": color, "dash": dash}
    drawn["marker"] = {"color": color, "size": 7}
    return drawn | ({"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "name"})


def layout(data: list[dict[str, Any]], x: str, y: str, *, percent: bool = False) -> dict[str, Any]:
    """Traces with a layout that all figures share; x and y are the titles of the axes."""
    axis: dict[str, Any] = {"gridcolor": "#dddddd", "zerolinecolor": "#bbbbbb", "automargin": True}
    if percent:
        axis["tickformat"] = ".0%"
    return {
        "data": data,
        "layout": {
            "xaxis": {**axis, "title": {"text": x}},
            "yaxis": {**axis, "title": {"text": y}},
            "margin": {"l": 60, "r": 20, "t": 10, "b": 60},
            "height": 340,
            "legend": {"orientation": "h", "y": 1.12},
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
        },
    }


def box(names: Sequence[str], levels: Sequence[Sequence[float]], color: str, *, name: str = "") -> dict[str, Any]:
    """A trace of boxes, one a name, from least, quartiles and greatest; in the legend if it is named."""
    least, quarter, median, three, greatest = (list(same) for same in zip(*levels, strict=True))
    return {
        "type": "box",
        "orientation": "h",
        "y": list(names),
        "lowerfence": least,
        "q1": quarter,
        "median": median,
        "q3": three,
        "upperfence": greatest,
        "marker": {"color": color},
        "name": name,
        "showlegend": bool(name),
    }
