"""``primorl init``."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

import primorl
from primorl.base import template
from primorl.base.errors import PipelineError
from primorl.base.files import project_folder
from primorl.base.records import TIME_UNITS
from primorl.base.template import UNFINISHED, VERSION
from primorl.commands.terminal import given_path, option

T = TypeVar("T")


def _column_option(form: str, read: Callable[[str], T], about: str) -> Any:
    """Make an option of the form ``COLUMN=…``; a column's name may have an equals sign."""

    def parse(text: str) -> tuple[str, T]:
        column, separator, said = text.rpartition("=")
        if not separator or not column:
            raise typer.BadParameter(f"found {text[:80]!r}; allowed is {form}")
        try:
            return column, read(said)
        except ValueError as wrong:
            raise typer.BadParameter(f"{column}: found {said[:80]!r}; allowed {wrong}") from None

    return option(form, about, parser=parse)


def _categories(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if len(found) < 2 or len(set(found)) < len(found) or not all(found):
        raise ValueError("are two or more different words, separated by commas")
    return found


def _bounds(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        pair = float(low), float(high)
    except ValueError:
        pair = math.nan, math.nan
    if not -math.inf < pair[0] < pair[1] < math.inf:
        raise ValueError("is LOW:HIGH, two numbers with LOW below HIGH")
    return pair


def _time(text: str) -> tuple[str, float]:
    unit, _, number = text.partition(":")
    try:
        most = float(number)
    except ValueError:
        most = math.nan
    if unit not in TIME_UNITS or not 0 < most < math.inf:
        raise ValueError(
            f"is UNIT:MOST: {', '.join(TIME_UNITS)}, and a number above 0: a longer time counts as this"
        )
    return unit, most


def _carry(text: str) -> tuple[str, float, float | None]:
    unit, *numbers = text.split(":", 2)
    try:
        first = float(numbers[1]) if len(numbers) > 1 else None
    except ValueError:
        first = math.nan
    if first is not None and not math.isfinite(first):
        raise ValueError("is UNIT:MOST or UNIT:MOST:FIRST, the value before the first measurement")
    return *_time(":".join([unit, *numbers[:1]])), first


def _values(text: str) -> tuple[str, ...]:
    if not all(found := tuple(part.strip() for part in text.split(","))):
        raise ValueError("are one or more words, separated by commas")
    return found


def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The project's folder.")],
    csv: Annotated[str | None, option("FILE", "Your log: .csv or .csv.gz.")] = None,
    name: Annotated[str | None, option("NAME", "Of the dataset (default: the file's).")] = None,
    unit: Annotated[
        str | None,
        option("COLUMN", "Whom the guarantee protects: the person; or the trajectory's column."),
    ] = None,
    trajectory: Annotated[str | None, option("COLUMN", "Which trajectory a row is of.")] = None,
    step: Annotated[
        str | None, option("COLUMN", "A number or time that ascends within a trajectory.")
    ] = None,
    observation: Annotated[list[str] | None, option("COLUMN", "Observed; repeat it.")] = None,
    action: Annotated[list[str] | None, option("COLUMN", "Done; repeat it.")] = None,
    reward: Annotated[str | None, option("COLUMN", "The reward of the row's action.")] = None,
    categories: Annotated[
        list[Any] | None,
        _column_option(
            "COLUMN=A,B",
            _categories,
            "All that may be in a column; repeat it. An action becomes discrete.",
        ),
    ] = None,
    bounds: Annotated[
        list[Any] | None,
        _column_option("COLUMN=LOW:HIGH", _bounds, "Public bounds, known beforehand; repeat it."),
    ] = None,
    elapsed: Annotated[
        Any,
        _column_option(
            "NAME=UNIT:MOST",
            _time,
            "Observe the time since the row before, at most so long: since=hours:24.",
        ),
    ] = None,
    carry: Annotated[
        list[Any] | None,
        _column_option(
            "COLUMN=UNIT:MOST[:FIRST]",
            _carry,
            "Where its cells are empty, observe the trajectory's last value, and its age: glucose=hours:24; repeat it.",
        ),
    ] = None,
    public: Annotated[
        Any,
        _column_option(
            "COLUMN=A,B",
            _values,
            "People who consented to be public, by a column (default: nobody).",
        ),
    ] = None,
    end: Annotated[
        Literal["last_row", "outcome"] | None,
        option(
            "WHAT",
            "outcome: a trajectory ends with its last row's reward; last_row: that reward is not used.",
        ),
    ] = None,
    horizon: Annotated[
        int | None, option("STEPS", "The most steps of a trajectory, known beforehand.", min=1)
    ] = None,
    per_person: Annotated[
        int | None, option("N", "The most trajectories of one person, known beforehand.", min=1)
    ] = None,
) -> None:
    r"""Make a project's folder, with an entry for your own CSV if you name it.

    Works without a clone of primorl's repository. DIR is new or empty, and lies in no other project. In a folder that
    this command made, it brings dvc.yaml and pipeline/ to the installed version, adds the entry, and leaves the rest as
    it is.

    With --csv, the columns' names and types are read, and which have empty cells, and nothing else: bounds,
    categories and the horizon are public facts that you know beforehand. What you do not give is FILL IN in
    datasets/NAME.yaml, beside the columns' names and types; the command lists it, and nothing trains before it is
    replaced.

    Examples:
      primorl init project                               a project with the default dataset
      primorl init project --csv visits.csv              an entry that names the columns, to be filled in
      primorl init project --csv visits.csv --unit patient --trajectory visit --step time \
          --observation glucose --observation meal --action dose --reward reward \
          --categories meal=none,snack,dinner --bounds glucose=2:25 --bounds dose=0:1 --bounds reward=-1:0 \
          --horizon 9 --per-person 4
      primorl init .                                     after an upgrade of primorl
    """
    given: dict[str, Any] = {
        "unit": unit,
        "trajectory": trajectory,
        "step": step,
        "observation": tuple(observation or ()),
        "action": tuple(action or ()),
        "reward": reward,
        "categories": dict(categories or ()),
        "bounds": dict(bounds or ()),
        "carry": dict(carry or ()),
        "elapsed": elapsed and (elapsed[0], *elapsed[1]),
        "horizon": horizon,
        "per_person": per_person,
    } | ({"end": end} if end else {})
    target = given_path(folder).resolve()
    there = _check_target(target)
    if csv is None:
        if unused := [
            f"--{flag}"
            for flag, value in ({"name": name, "public": public} | given).items()
            if value
        ]:
            raise PipelineError(
                f"{', '.join(unused)}: found without --csv; name the log: --csv FILE"
            )
        _make(target, None, there=there)
        return
    from primorl.data.sources.tabular.columns import columns_of
    from primorl.use.drafting import Draft

    log = given_path(csv)
    if log.resolve().is_relative_to(target):
        raise PipelineError(
            f"{log}: lies in the project, where git would see its rows; move it to another folder"
        )
    form, columns = columns_of(log)
    draft = Draft(columns=columns, **given)
    name = _dataset_name(name, log)
    consent = (
        None
        if public is None
        else json.dumps({"column": public[0], "values": public[1]}, ensure_ascii=False)
    )
    if public is not None and public[0] not in (each.name for each in columns):
        raise PipelineError(
            f"--public: found {public[0]!r}, which is no column of the log; give its name"
        )
    _make(target, (name, draft.text(name, log, form)), consent, there=there)
    print(
        f"datasets/{name}.yaml has the names and types of the columns; no bound was read off the rows"
    )
    if there:
        asked = f" and `public: {consent}` under partition" if consent else ""
        print(f"set `dataset: {template.as_text(name)}`{asked} in params.yaml to use it")
    elif public is None:
        print(
            "nobody is public; where some people consented, name the column that says so: --public COLUMN=VALUE"
        )
    if draft.uncarried:
        print(
            f"empty cells among the first rows of: {', '.join(draft.uncarried)}; ingestion refuses them unless the "
            f"last value is carried forward: --carry {draft.uncarried[0]}=hours:24 (docs/prepare-a-log.md)"
        )
    if end is None:
        print(
            "the reward in the last row of a trajectory is not used (options.end: last_row); if it is an outcome that "
            "ends the trajectory, give --end outcome"
        )
    if draft.left:
        print(
            f"fill in, in datasets/{name}.yaml, from what is known beforehand and not from the rows: "
            f"{', '.join(draft.left)}; nothing trains before"
        )
    print(
        f"then: cd {target} && primorl check && dvc repro partition && primorl plan; these charge nothing"
    )
    print("last: dvc repro, which charges")


def _dataset_name(given: str | None, log: Path) -> str:
    """Check the dataset's name; the default is made of the log's."""
    stem = log.name.partition(".")[0]
    name = given or re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:100] or "log"
    if (
        re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is None
        or name.lower() in template.RESERVED
    ):
        found = (
            f"found {name[:80]!r}"
            if given
            else f"not given, and the file's name stands for it: found {name!r}"
        )
        others = " or ".join(f"`{reserved}`" for reserved in template.RESERVED)
        raise PipelineError(
            f"--name: {found}; allowed are letters, digits, dots, - and _, and not {others}; give another one"
        )
    return name


def _check_target(target: Path) -> bool:
    """Say whether ``target`` is a project that this command made.

    Raises:
        PipelineError: it is neither that nor new or empty, or lies in another project or repository.
    """
    if (target / VERSION).exists():
        return True
    unfinished = (target / UNFINISHED).exists()  # it was killed while it filled an empty folder
    if not unfinished and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PipelineError(
            f"{target}: found files there; allowed is a new or empty folder; name another one"
        )
    if (other := project_folder(target)) != target:
        raise PipelineError(f"{target}: lies in the project {other}; name a folder outside of it")
    if repository := next(
        (parent for parent in target.parents if (parent / ".git").exists()), None
    ):
        raise PipelineError(
            f"{target}: lies in the git repository {repository}; name a folder outside of it"
        )
    return False


def _make(
    target: Path, entry: tuple[str, str] | None, consent: str | None = None, *, there: bool
) -> None:
    """Make the project, or bring it to the installed version, with a dataset's name and file."""
    if not there:
        template.write_new(target, primorl.__version__, entry, consent)
        print(f"made {target}")
        return
    file = target / "datasets" / f"{entry[0]}.yaml" if entry is not None else None
    if file is not None and file.exists():
        raise PipelineError(
            f"{file}: is there already; edit it, delete it to draft it anew, or give another --name"
        )
    changed = template.bring_up_to_date(target, primorl.__version__)
    print(f"brought to the installed version: {', '.join(changed) or 'nothing, it was all there'}")
    if file is not None and entry is not None:
        from primorl.base.files import replaced_file

        with replaced_file(file) as fresh:
            fresh.write_text(entry[1], encoding="utf-8")
