"""Files of the stage `online`, also where nobody is met.

Loading this module needs neither torch nor the accountant: a stage with nothing to do takes less time than they do.
"""

from primorl.base.files import replaced_directory, replaced_file
from primorl.base.paths import ONLINE, ONLINE_CURVE, ONLINE_FIGURE, ONLINE_METRICS
from primorl.config.params import Params
from primorl.evaluate.figures import draw_online
from primorl.evaluate.statistics import MeanInterval
from primorl.evaluate.summary import OnlineSummary, write_online_curve
from primorl.policy.config import PolicyPointer


def write_nobody(params: Params) -> None:
    """Write outputs that say that no users were met; ``models/online`` points to the offline policy."""
    with replaced_directory(ONLINE) as fresh:
        PolicyPointer(variant=params.dynamics.variant, policy="models/policy").write(fresh)
    write_results(OnlineSummary(met=False), [], [])


def write_results(summary: OnlineSummary, users: list[int], returns: list[MeanInterval]) -> None:
    """Write the results of online learning: curve, figure and summary."""
    with replaced_file(ONLINE_CURVE) as fresh:
        write_online_curve(fresh, users, returns)
    with replaced_file(ONLINE_FIGURE) as fresh:
        draw_online(fresh, users, returns, summary)
    summary.write(ONLINE_METRICS)
