"""One picture of what is claimed and what was proved."""

from collections.abc import Mapping
from pathlib import Path

from primorl.privacy.accounting.rounding import at_least, at_most


def draw_bounds(path: Path, claimed: float, bounds: Mapping[str, float], title: str) -> None:
    """Draw lower bounds on ε beside the claimed ε, as a PNG.

    Args:
        path: the file to write.
        claimed: what the plan states.
        bounds: by name, top to bottom.
        title: above it all.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.5 * len(bounds) + 1.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    rows = range(len(bounds))
    colors = ["C3" if value > claimed else "C0" for value in bounds.values()]
    axes.barh(rows, list(bounds.values()), height=0.5, color=colors)
    reach = 1.25 * max(claimed, *bounds.values())
    for row, value in zip(rows, bounds.values(), strict=True):
        axes.annotate(at_least(value), (value, row), xytext=(4, 0), textcoords="offset points", va="center")
    axes.axvline(claimed, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        f"claimed {at_most(claimed)}", (claimed, 1), xytext=(4, -4), textcoords=("offset points", "offset points"),
        xycoords=("data", "axes fraction"), va="bottom",
    )  # fmt: skip
    axes.set_yticks(rows, bounds.keys())
    axes.invert_yaxis()
    axes.set(xlabel="ε", xlim=(0, reach))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=11, pad=18)
    figure.savefig(path, format="png", metadata={"Software": None})
