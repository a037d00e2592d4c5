"""Types of settings: numbers with bounds, which the engine's settings classes and ``params.yaml`` share.

An engine class annotates its fields with these types and stays free of pydantic: to the engine they are plain
``float``, ``int`` and ``tuple``. Where ``params.yaml`` is read, pydantic finds the bounds in the annotation and checks
them. Every number has a lower and an upper bound, so that a typing error is refused before anything is charged.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any


@dataclass(frozen=True)
class Within:
    """Bounds of a number. Truth values, infinities and NaN are refused.

    Attributes:
        gt: the number must be above it.
        ge: the number must be at least this.
        lt: the number must be below it.
        le: the number must be at most this.
    """

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Pydantic's hook: how a value of a setting is checked.

        A core schema is a plain mapping (https://docs.pydantic.dev, "Custom types"), so nothing is imported.
        """
        given = {bound.name: getattr(self, bound.name) for bound in fields(self)}
        schema = handler(source) | {name: bound for name, bound in given.items() if bound is not None}
        schema |= {"allow_inf_nan": False} if source is float else {}
        check = {"type": "no-info", "function": _not_a_truth_value}
        return {"type": "function-before", "function": check, "schema": schema}


@dataclass(frozen=True)
class Length:
    """Bounds of the number of entries of a tuple.

    Attributes:
        least: the fewest entries.
        most: the most entries.
    """

    least: int
    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Pydantic's hook, as in `Within`."""
        return handler(source) | {"min_length": self.least, "max_length": self.most}


def _not_a_truth_value(value: Any) -> Any:
    if isinstance(value, bool):  # Python would take true for 1
        raise ValueError("a number is needed, not a truth value")
    return value


PositiveInt = Annotated[int, Within(gt=0, le=10**9)]  # counts without a bound of their own
NaturalInt = Annotated[int, Within(ge=0, le=10**9)]
AtLeastTwo = Annotated[int, Within(ge=2, le=10**9)]
Steps = Annotated[int, Within(gt=0, le=10**6)]  # rounds, epochs, batch sizes, steps of an episode
Members = Annotated[int, Within(ge=2, le=64)]  # of the ensemble
BufferSize = Annotated[int, Within(gt=0, le=10**8)]  # transitions in a replay buffer
_Units = Annotated[int, Within(gt=0, le=8192)]
HiddenSizes = Annotated[tuple[_Units, ...], Length(1, 16)]  # units of each layer
AnyHiddenSizes = Annotated[tuple[_Units, ...], Length(0, 16)]  # none: linear
Seed = Annotated[int, Within(ge=0, lt=2**31)]
Finite = Annotated[float, Within(ge=-1e12, le=1e12)]  # bounds of observations and rewards, scores
LogVariance = Annotated[float, Within(ge=-20, le=5)]
Positive = Annotated[float, Within(ge=1e-12, le=1e12)]  # scales
NonNegative = Annotated[float, Within(ge=0, le=1e12)]  # penalties
LearningRate = Annotated[float, Within(ge=1e-9, le=10)]
WeightDecay = Annotated[float, Within(ge=0, le=1)]
ClippingNorm = Annotated[float, Within(ge=1e-6, le=1e6)]  # C
Multiplier = Annotated[float, Within(ge=0.1, le=1e6)]  # z; less noise than 0.1 C is no useful protection
Epsilon = Annotated[float, Within(ge=1e-6, le=1e6)]  # targets and budgets
Delta = Annotated[float, Within(ge=1e-30, lt=1)]  # δ
Probability = Annotated[float, Within(ge=1e-9, le=1)]  # q and other probabilities that are not zero
Share = Annotated[float, Within(gt=0, lt=1)]  # discount and shares
Fraction = Annotated[float, Within(ge=0, lt=1)]  # momentum, averaging, the public fraction
Portion = Annotated[float, Within(ge=0, le=1)]  # β of the loss
