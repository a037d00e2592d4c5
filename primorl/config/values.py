"""The kinds of values that ``params.yaml`` holds, and the block of keys: unknown ones are refused."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from primorl.project.files import leaves_project


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):  # Python would take true for 1
        raise ValueError("a number is needed, not a truth value")
    return value


def _increasing(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] >= pair[1]:
        raise ValueError(f"found {list(pair)}; must be [low, high] with low < high")
    return pair


def _ordered(pair: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    if pair[0] is not None and pair[1] is not None and pair[0] > pair[1]:
        raise ValueError(f"found {list(pair)}; must be [low, high] with low <= high, or null for an open end")
    return pair


def _inside(path: str) -> str:
    if leaves_project(path):
        raise ValueError("leaves the project; allowed are paths within it, or an absolute path")
    return path


def _inside_if_file(url: str) -> str:
    """A store on a server is none of our business; a SQLite file, a ``file:`` and a plain path are files here."""
    scheme, separator, path = url.partition(":")
    if scheme.startswith("sqlite"):
        _inside(path.removeprefix("///").partition("?")[0])
    elif scheme == "file" or not separator:
        _inside((path if separator else url).removeprefix("//"))
    return url


def _text(value: Any) -> Any:
    """YAML reads 1 as a number, where a log's category is the text of it."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("found one twice; every category stands once")
    return names


def _once(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds:
        raise ValueError("found an empty list; must name at least one seed, or be null")
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(f"found {seed} more than once; every seed stands once")
    return seeds


NUMBER = BeforeValidator(_no_truth_value)
PositiveInt = Annotated[int, Field(gt=0), NUMBER]
NaturalInt = Annotated[int, Field(ge=0), NUMBER]
AtLeastTwo = Annotated[int, Field(ge=2), NUMBER]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]
Finite = Annotated[float, Field(allow_inf_nan=False), NUMBER]
Multiplier = Annotated[float, Field(ge=0.1, allow_inf_nan=False), NUMBER]  # less is no protection worth the name
Probability = Annotated[float, Field(gt=0, le=1), NUMBER]
Share = Annotated[float, Field(gt=0, lt=1), NUMBER]
Fraction = Annotated[float, Field(ge=0, lt=1), NUMBER]
Seed = Annotated[int, Field(ge=0, lt=2**31), NUMBER]
Seeds = Annotated[tuple[Seed, ...], AfterValidator(_once)]
Range = Annotated[tuple[Finite, Finite], AfterValidator(_increasing)]
OpenRange = Annotated[tuple[Finite | None, Finite | None], AfterValidator(_ordered)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
InnerPath = Annotated[str, AfterValidator(_inside)]
StoreUrl = Annotated[str, AfterValidator(_inside_if_file)]
Category = Annotated[str, BeforeValidator(_text), Field(min_length=1)]
Column = Annotated[str, Field(min_length=1)]
Categories = Annotated[tuple[Category, ...], Field(min_length=2), AfterValidator(_different)]
Hidden = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
Variant = Literal["private", "no_privacy", "no_clip", "mopo"]


class Block(BaseModel):
    """A part of ``params.yaml``: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)
