"""The time since the row before, where it is a dimension of the observation."""

from typing import Annotated, Literal, get_args

from primorl.project.records import Line, record
from primorl.project.values import Within

TimeUnit = Literal["seconds", "minutes", "hours", "days"]
TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)


@record
class ElapsedTime:
    """What travels with a dataset, a model and a policy, so that the time is counted alike everywhere."""

    name: Annotated[Line, "What the dimension is called."]
    unit: Annotated[TimeUnit, "What it counts."]
    most: Annotated[Annotated[float, Within(gt=0)], "A longer time counts as this."]
    trajectory: Annotated[
        tuple[Line, ...], "Columns of the log that tell trajectories apart, together; empty: it is not known."
    ] = ()
