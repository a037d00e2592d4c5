"""``metrics/online.json``, the curve of an online run, and its figure."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from primorl.evaluation.statistics import MeanInterval
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.statement import Statement
from primorl.project.records import Hexadecimal, Line, read_record, record, write_record
from primorl.project.values import Within

_Epsilon = Annotated[float, Within(ge=0)]
_Count = Annotated[int, Within(ge=1)]
_Interval = tuple[float, float]


@record
class OnlineSummary:
    """What learning from users brought (``metrics/online.json``). Returns are of the likeliest actions.

    Raises:
        ValueError: users were met, and a figure is missing.
    """

    FORMAT: ClassVar[int] = 1

    met: Annotated[bool, "Whether any users were met: `online.users` or `online.arrivals` asks for it."]
    env_id: Annotated[Line | None, "Gymnasium id of the environment that simulates the users."] = None
    algorithm: Annotated[Line | None, "Name of the update."] = None
    guarantee: Annotated[Line | None, "`online.guarantee` of params.yaml."] = None
    start: Annotated[Line | None, "`online.start` of params.yaml."] = None
    private: Annotated[bool | None, "Whether the policy has an (ε, δ) guarantee, and nothing is void."] = None
    epsilon: Annotated[_Epsilon | None, "ε of one user who is not in the log; `null`: no guarantee."] = None
    epsilon_in_all: Annotated[
        _Epsilon | None, "ε of somebody who is both in the log and a user; from scratch that of a user."
    ] = None
    delta: Annotated[Annotated[float, Within(gt=0, lt=1)] | None, "δ at which both are read."] = None
    unit: Annotated[Line | None, "What one unit of privacy is."] = None
    users: Annotated[_Count | None, "N, different users who were met."] = None
    cohort: Annotated[_Count | None, "m, users of one update."] = None
    cohorts: Annotated[_Count | None, "Updates."] = None
    void: Annotated[tuple[Line, ...], "Reasons not to rely on the statement."] = ()
    return_before: Annotated[float | None, "Mean return of the policy to begin with."] = None
    return_before_ci95: Annotated[_Interval | None, "Its 95% interval."] = None
    return_mean: Annotated[float | None, "Mean return of the final policy."] = None
    return_ci95: Annotated[_Interval | None, "Its 95% interval."] = None
    episodes: Annotated[_Count | None, "Episodes of each of the two."] = None
    policy_sha256: Annotated[Hexadecimal | None, "SHA-256 of the final policy's file."] = None
    seconds: Annotated[float | None, "Wall time of the stage."] = None

    def __post_init__(self) -> None:
        """Refuse a result without its figures."""
        if self.met and None in (self.return_mean, self.return_ci95, self.users, self.policy_sha256):
            raise ValueError("met: true, and a figure is missing")

    @property
    def promise(self) -> str:
        """What one user is promised, in one line."""
        if self.epsilon is None:
            return f"nothing is promised: {'; '.join(self.void)}"
        return f"ε = {at_most(self.epsilon)}, δ = {at_most(self.delta or 0.0)} per {self.unit}"

    def write(self, file: Path) -> None:
        """Write the file, atomically."""
        write_record(file, self)

    @classmethod
    def read(cls, file: Path) -> "OnlineSummary":
        """Read the file.

        Raises:
            PipelineError: missing, of another format version, or not as declared. One line.
        """
        return read_record(file, cls, "run `dvc repro online`")


def write_online_curve(path: Path, users: Sequence[int], returns: Sequence[MeanInterval]) -> None:
    """Write the return after so many users, with its 95% interval, as CSV; empty of rows where nobody was met."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["users", "return_mean", "return_low", "return_high"])
        for count, each in zip(users, returns, strict=True):
            writer.writerow([count, *(f"{value:.6g}" for value in (each.mean, each.low, each.high))])


def draw_online(
    path: Path,
    users: Sequence[int],
    returns: Sequence[MeanInterval],
    summary: OnlineSummary,
    statement: Statement | None,
) -> None:
    """Draw the return against the users so far, as a PNG.

    Args:
        path: the file to write.
        users: so many had been met; 0 first.
        returns: of the policy then.
        summary: of the run.
        statement: of its users; None: nobody was met.
    """
    from matplotlib.figure import Figure

    if statement is None:
        figure = Figure(figsize=(7, 1.5), dpi=120)
        figure.text(0.5, 0.5, "Nobody was met: online.users and online.arrivals are null.", ha="center", va="center")
        figure.savefig(path, format="png", metadata={"Software": None})
        return
    figure = Figure(figsize=(7, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    low, high = [each.low for each in returns], [each.high for each in returns]
    axes.fill_between(users, low, high, color="C0", alpha=0.2, linewidth=0)
    axes.plot(users, [each.mean for each in returns], color="C0", marker=".", label="policy so far, 95% interval")
    name = "offline policy" if summary.start == "policy" else "new policy"
    axes.axhline(returns[0].mean, color="C7", linewidth=1, linestyle="--", label=f"{name}: {returns[0].mean:.4g}")
    last = returns[-1]
    axes.errorbar(
        [users[-1]],
        [last.mean],
        yerr=[[last.mean - last.low], [last.high - last.mean]],
        color="C3",
        marker="D",
        markersize=5,
        capsize=4,
        linestyle="none",
        label=f"final policy: {last.mean:.4g} [{last.low:.4g}, {last.high:.4g}], {summary.episodes} episodes",
    )
    axes.set_xlabel(f"users so far ({summary.cohort} to an update)")
    axes.set_ylabel(f"return in {str(summary.env_id).rpartition(':')[2].rpartition('/')[2]}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="best", frameon=False)
    axes.set_title(f"online {summary.algorithm}\n{summary.promise}", fontsize=11, wrap=True)
    figure.savefig(path, format="png", metadata={"Software": None})
