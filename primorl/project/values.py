"""Types of settings: numbers with bounds, which the engine's settings classes and ``params.yaml`` share.

An engine class annotates its fields with these types and stays free of pydantic: the types are plain ``float`` and
``int`` to the engine. Where ``params.yaml`` is read, pydantic finds the bounds in the annotation and checks them.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any


@dataclass(frozen=True)
class Within:
    """Bounds of a number. A truth value is no number; infinities and NaN are refused.

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
        """Pydantic's hook: how a value of a setting is checked (https://docs.pydantic.dev, "Custom types")."""
        from pydantic import BeforeValidator, Field

        given: dict[str, Any] = {bound.name: getattr(self, bound.name) for bound in fields(self)}
        given |= {"allow_inf_nan": False} if source is float else {}
        checked = Field(**{name: bound for name, bound in given.items() if bound is not None})
        return handler.generate_schema(Annotated[source, checked, BeforeValidator(_not_a_truth_value)])


def _not_a_truth_value(value: Any) -> Any:
    if isinstance(value, bool):  # Python would take true for 1
        raise ValueError("a number is needed, not a truth value")
    return value


PositiveInt = Annotated[int, Within(gt=0)]
NaturalInt = Annotated[int, Within(ge=0)]
AtLeastTwo = Annotated[int, Within(ge=2)]
Positive = Annotated[float, Within(gt=0)]
NonNegative = Annotated[float, Within(ge=0)]
Finite = Annotated[float, Within()]
Multiplier = Annotated[float, Within(ge=0.1)]  # less is no protection worth the name
Probability = Annotated[float, Within(gt=0, le=1)]
Share = Annotated[float, Within(gt=0, lt=1)]
Fraction = Annotated[float, Within(ge=0, lt=1)]
Seed = Annotated[int, Within(ge=0, lt=2**31)]
