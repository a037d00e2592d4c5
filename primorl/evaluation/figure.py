"""The figure of returns after every epoch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from primorl.evaluation.curve import draw_curve
from primorl.evaluation.model_value import ModelValue
from primorl.evaluation.results import Estimate
from primorl.evaluation.wording import guarantee


def draw_returns(path: Path, final: Estimate, curve: Sequence[Estimate], summary: Mapping[str, Any]) -> None:
    """Draw the value of the policy of every epoch and of the final one, as a PNG.

    Args:
        path: the file to write.
        final: mean return and its 95% interval; or the value in the model and the range over its members.
        curve: the same of every epoch, first epoch first; the last one is ``final``.
        summary: the content of ``metrics/summary.json``.
    """
    if isinstance(final, ModelValue):
        what = "value in the released model (not measured)"
        spread = f"range over its {summary['model_value_members']} members"
        count, fewer = f"{summary['model_value_rollouts']} rollouts in each", "rollouts"
    else:
        environment = summary["env_id"].rpartition(":")[2].rpartition("/")[2]  # the rest names a module
        what, spread = f"return in {environment}", "95% interval"
        count, fewer = f"{summary['episodes']} episodes", "episodes"
    seeds = len(summary.get("seeds", ()))
    name = "final policy"
    if seeds > 1:
        name = f"final policies of {seeds} seeds"
        if isinstance(final, ModelValue):
            spread, count = f"{spread}, mean over {seeds} seeds", f"{count} for each"
        else:
            spread, count = f"mean and {spread} over {seeds} seeds", f"{count} each"
    behaviour = summary.get("public_return_mean")
    level = None
    if behaviour is not None:
        level = (
            behaviour,
            f"behaviour in the log: {behaviour:.4g}, {summary['public_trajectories']} public trajectories",
        )
    draw_curve(
        path,
        (range(1, len(curve)), curve[:-1], f"after each epoch, {spread}, of fewer {fewer}"),
        (len(curve), final, f"{name}: {final.mean:.4g} [{final.low:.4g}, {final.high:.4g}], {count}"),
        labels=("SAC epoch", what),
        title=f"{summary['dataset']} · {summary['variant']}\n{guarantee(summary)}",
        level=level,
    )
