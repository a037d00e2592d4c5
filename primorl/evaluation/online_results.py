"""``metrics/online.json``, the curve of an online run, and its figure."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from primorl.evaluation.statistics import MeanInterval
from primorl.privacy.accounting.rounding import at_most
from primorl.project.records import Hexadecimal, Line, read_record, record, write_record
from primorl.project.values import Within

_Epsilon = Annotated[float, Within(ge=0)]
_Count = Annotated[int, Within(ge=1)]
_Interval = tuple[float, float]


@record
class OnlineSummary:
    """Result of learning from users (``metrics/online.json``). Returns are of the likeliest actions.

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
        needed = (self.return_before, self.return_mean, self.return_ci95, self.users, self.policy_sha256)
        if self.met and None in needed:
            raise ValueError("met: true, and a figure is missing")

    @property
    def promise(self) -> str:
        """State the promise to one user, in one line."""
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


def draw_online(path: Path, users: Sequence[int], returns: Sequence[MeanInterval], summary: OnlineSummary) -> None:
    """Draw the return against the users so far, as a PNG.

    Args:
        path: the file to write.
        users: so many had been met; 0 first.
        returns: of the policy then.
        summary: of the run; its returns, over more episodes, are those of the first and the final policy.
    """
    from primorl.evaluation.figures import draw_curve, draw_text  # matplotlib is slow to import

    if not summary.met:
        draw_text(path, "Nobody was met: online.users and online.arrivals are null.")
        return
    assert summary.return_before is not None
    assert summary.return_mean is not None
    assert summary.return_ci95 is not None
    before, final = summary.return_before, MeanInterval(summary.return_mean, *summary.return_ci95)
    name = "offline policy" if summary.start == "policy" else "new policy"
    figures = f"{final.mean:.4g} [{final.low:.4g}, {final.high:.4g}]"
    draw_curve(
        path,
        (users, returns, "policy so far, 95% interval"),
        (users[-1], final, f"final policy: {figures}, {summary.episodes} episodes"),
        labels=(
            f"users so far ({summary.cohort} to an update)",
            f"return in {str(summary.env_id).rpartition(':')[2].rpartition('/')[2]}",
        ),
        title=f"online {summary.algorithm}\n{summary.promise}",
        level=(before, f"{name}: {before:.4g}"),
    )
