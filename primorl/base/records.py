"""JSON files as frozen dataclasses, and the types of their values."""

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, dataclass_transform

from annotated_types import Interval
from pydantic import Field, Strict, TypeAdapter, ValidationError

from primorl.base import PipelineError
from primorl.base.files import parse_json, read_text, write_json


class Within(Interval):
    """Bounds of a number. Truth values and text are refused."""

    def __iter__(self) -> Iterator[Any]:
        """Pydantic's hook: yield the constraints of a value."""
        yield Strict()
        yield from super().__iter__()


PositiveInt = Annotated[int, Within(gt=0, le=10**9)]  # counts without a bound of their own
NaturalInt = Annotated[int, Within(ge=0, le=10**9)]
AtLeastTwo = Annotated[int, Within(ge=2, le=10**9)]
Steps = Annotated[int, Within(gt=0, le=10**6)]  # rounds, epochs, batch sizes, steps of an episode
Members = Annotated[int, Within(ge=2, le=64)]  # of the ensemble
BufferSize = Annotated[int, Within(gt=0, le=10**8)]  # transitions in a replay buffer
_Units = Annotated[int, Within(gt=0, le=8192)]
HiddenSizes = Annotated[
    tuple[_Units, ...], Field(min_length=1, max_length=16)
]  # units of each layer
AnyHiddenSizes = Annotated[tuple[_Units, ...], Field(max_length=16)]  # none: linear
TimeUnit = Literal["seconds", "minutes", "hours", "days"]
Seed = Annotated[int, Within(ge=0, lt=2**31)]
Finite = Annotated[float, Within(ge=-1e12, le=1e12)]  # bounds of observations and rewards, scores
LogVariance = Annotated[float, Within(ge=-20, le=5)]
Positive = Annotated[float, Within(ge=1e-12, le=1e12)]  # scales
NonNegative = Annotated[float, Within(ge=0, le=1e12)]  # penalties
LearningRate = Annotated[float, Within(ge=1e-9, le=10)]
WeightDecay = Annotated[float, Within(ge=0, le=1)]
ClippingNorm = Annotated[float, Within(ge=1e-6, le=1e6)]  # C
Epsilon = Annotated[float, Within(ge=1e-6, le=1e6)]  # targets and budgets
Delta = Annotated[float, Within(ge=1e-12, lt=1)]  # δ; below, tails that the accountant cuts count
Probability = Annotated[float, Within(ge=1e-9, le=1)]  # q and other probabilities that are not zero
Share = Annotated[float, Within(gt=0, lt=1)]  # discount and shares
Fraction = Annotated[float, Within(ge=0, lt=1)]  # momentum, averaging, the public fraction
Portion = Annotated[float, Within(ge=0, le=1)]  # β of the loss, and shares up to all
Count = Annotated[int, Within(ge=1)]
StatedEpsilon = Annotated[float, Within(ge=0)]  # of a statement
StatedDelta = Annotated[float, Within(gt=0, lt=1)]


_MOST_KEYS_NAMED = 5
R = TypeVar("R")


def matching(pattern: str, longest: int = 1000) -> Any:
    """Return the constraint of text that matches a pattern as a whole, as in ``Annotated[str,
    matching(...)]``.
    """
    return Field(min_length=1, max_length=longest, pattern=f"^(?:{pattern})$")


Line = Annotated[str, matching(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*")]
"""One line of text without control characters, 1 to 1,000 characters."""
Hexadecimal = Annotated[str, matching("[0-9a-f]{64}")]
"""A SHA-256 digest."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[R]) -> type[R]:
    """Class decorator: a frozen dataclass that JSON files hold; unknown keys are refused.

    The class may set ``FORMAT``, the version of the file's format. Files then begin with a key
    ``format``; a file without it counts as format 1. Raise it when a key is added, removed or
    changes its meaning.
    """
    made = dataclass(frozen=True, kw_only=True)(cls)
    made.__pydantic_config__ = {"extra": "forbid", "strict": True, "allow_inf_nan": False}  # type: ignore[attr-defined]
    return made


def to_json(value: Any) -> dict[str, Any]:
    """The content of the file of a record: plain JSON types, keys in the order of the fields,
    ``format`` first.

    An optional key that holds its default is left out.
    """
    kind: Any = type(value)
    written = adapter(kind).dump_python(value, mode="json", exclude_defaults=True, warnings=False)
    content: dict[str, Any] = written
    version = getattr(kind, "FORMAT", None)
    return content if version is None else {"format": version, **content}


def write_record(path: Path, value: Any) -> None:
    """Write a record as strict JSON, atomically."""
    write_json(path, to_json(value))


class FileRecord:
    """Base of records that have a file of their own.

    Attributes:
        FORMAT: see `record`.
        FILE_NAME: in a folder; empty: the place is the file's own path.
        REMEDY: advice where it cannot be read.
    """

    FORMAT: ClassVar[int] = 1
    FILE_NAME: ClassVar[str] = ""
    REMEDY: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return to_json(self)

    def write(self, place: str | Path) -> None:
        """Write the file, atomically."""
        write_record(Path(place) / self.FILE_NAME, self)

    @classmethod
    def read(cls, place: str | Path) -> Self:
        """Read the file.

        Raises:
            PipelineError: missing, of another format version, or not as declared. One line.
        """
        return read_record(Path(place) / cls.FILE_NAME, cls, cls.REMEDY)


def read_record(path: Path, kind: type[R], remedy: str = "run `dvc repro` to make it again") -> R:
    """Read a record of class ``kind``.

    Args:
        path: the file.
        kind: a class made with `record`.
        remedy: advice of an error.

    Raises:
        PipelineError: the file is missing, is not strict JSON, is of another format version, or has
            other keys or types than ``kind`` declares. One line.
    """
    content = parse_json(read_text(path, remedy), path)
    version = getattr(kind, "FORMAT", None)
    if version is not None:
        found = content.pop("format", 1)
        if type(found) is not int or found != version:
            named = found if type(found) is int and abs(found) < 10**6 else "an unknown one"
            raise PipelineError(
                f"{path}: found format {named}, this version reads {version}; {remedy}"
            )
    try:
        # From JSON, where strict checks take a list for a tuple.
        unchecked: Any = kind
        checked: R = adapter(unchecked).validate_json(json.dumps(content))
    except ValidationError as wrong:
        keys = sorted({_describe(error) for error in wrong.errors()})
        more = f" and {len(keys) - _MOST_KEYS_NAMED} more" if len(keys) > _MOST_KEYS_NAMED else ""
        said = ", ".join(keys[:_MOST_KEYS_NAMED])
        raise PipelineError(f"{path}: not as declared: {said}{more}; {remedy}") from None
    return checked


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's checker of a class; to make one takes far longer than to use it."""
    return TypeAdapter(kind)


def printable(text: str) -> str:
    """A stranger's text, made fit for one line on a terminal."""
    return re.sub(r"[^ -~]", "?", text)[:100]


def _describe(error: Any) -> str:
    """Name the key of a mistake, with the reason."""
    reason = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        reason = "missing"
    elif error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        reason = "unknown key"
    key = ".".join(map(str, error["loc"]))
    return f"{printable(key)} ({printable(reason[:1].lower() + reason[1:])})"
