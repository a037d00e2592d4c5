"""``primorl init``: a project's folder, and the draft of an entry for a log.

Of the log, only the names of its columns are read. Bounds, categories and the horizon are declared
public, so they come from facts known beforehand and never from a row. What a person has to decide
is `FILL` in the draft, which no reader of the file accepts: nothing trains before it is replaced.
"""

import glob
import json
import re
from pathlib import Path
from typing import Annotated

import typer

import primorl
from primorl.base import template
from primorl.base.errors import PipelineError
from primorl.base.files import project_folder, replaced_file
from primorl.base.template import VERSION
from primorl.commands.terminal import given_path, option

FILL = "FILL IN"
_DRAFT = """\
# Drafted by `primorl init`. Columns of the log: {columns}.
# Replace each FILL IN; docs/datasets/tabular.md of primorl's repository explains every key, and
# datasets/csv-log.yaml there has all of them. Take bounds, categories, the horizon and the most
# visits from what is known beforehand (physiology, devices, the protocol), never from the rows:
# they are published with the model.
source: tabular
environment: null
# the column of the person whom the guarantee protects; of the trajectory, if the log names nobody
unit: FILL IN
population: {name}
# the most that one person can have; null where the unit is the trajectory
trajectories_per_person: FILL IN
horizon: FILL IN  # the most steps that a trajectory can have
# learned: where trajectories end by themselves, so that nothing could be earned afterwards
termination: none
ingestion: {{}}
options:
  files: {files}
  csv: {{delimiter: {delimiter}, decimal_point: {decimal_point}}}
  columns:
    unit: FILL IN  # as above
    trajectory: FILL IN  # the visit, the stay, the trip
    order: FILL IN  # a number or a time that ascends within a trajectory
    # [A, B]; of texts {{column: C, categories: [x, y]}}; with empty cells {{carried: D, ..}}
    observation: FILL IN
    # {{columns: [A], low: [0], high: [1]}}; discrete: {{column: A, categories: [x, y]}}
    action: FILL IN
    reward: FILL IN  # of the row's action
    terminated: null
    truncated: null
    next_observation: null
  trajectory_ids: per_unit  # global, where a trajectory's id belongs to one person alone
  # recordings are cut there, and the last reward is not used; outcome: they end with that reward
  end: last_row
  sorted: false
  beyond_bounds: refuse  # clip: cut observations and rewards at the bounds below
bounds:
  observation:
    low: FILL IN  # a number for each dimension, 0 for a category
    high: FILL IN  # 1 for a category
  reward: FILL IN  # [lowest, highest]
score: null
recipe: {{}}
# For the card and the report; `primorl release` needs all four, and an edit charges nothing:
# card:
#   owner: who answers for data and policy
#   purpose: what they may be used for
#   contact: whom to ask
#   licence: of the data
"""


def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The project's folder.")],
    csv: Annotated[str | None, option("FILE", "Your log: .csv or .csv.gz.")] = None,
) -> None:
    """Make a project's folder, with the draft of an entry for your own CSV if you name it.

    Works without a clone of primorl's repository. DIR is new or empty, and lies in no other
    project. In a folder that this command made, it brings dvc.yaml and pipeline/ to the installed
    version, adds the entry, and leaves the rest as it is.

    With --csv, the columns' names are read and nothing else. What a person has to decide is FILL IN
    in datasets/NAME.yaml, NAME being the file's; nothing trains before it is replaced.

    Examples:
      primorl init project                    a project with the default dataset
      primorl init project --csv visits.csv   and an entry that names the columns, to be filled in
      primorl init .                          after an upgrade of primorl
    """
    target = given_path(folder).resolve()
    there = _check_target(target)
    entry = None if csv is None else _drafted(given_path(csv), target)
    if not there:
        template.write_new(target, primorl.__version__, entry)
        print(f"made {target}")
    else:
        _update(target, entry)
    if entry is not None:
        name, _ = entry
        print(f"fill in datasets/{name}.yaml, from what is known beforehand and not from the rows")
        if there:
            print(f"set `dataset: {template.as_text(name)}` in params.yaml to use it")
        print(f"then: cd {target} && primorl check && dvc repro plan && primorl plan")
        print("these charge nothing; last: dvc repro, which charges")


def _drafted(log: Path, target: Path) -> tuple[str, str]:
    """Return name and text of the dataset's file for a log."""
    from primorl.data.sources.tabular.columns import columns_of

    if log.resolve().is_relative_to(target):
        raise PipelineError(
            f"{log}: lies in the project, where git would see its rows; move it to another folder"
        )
    form, names = columns_of(log)
    stem = log.name.partition(".")[0]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:100] or "log"
    if name.lower() in template.RESERVED:
        raise PipelineError(f"--csv: found a log that is called {name!r}; rename it")
    text = _DRAFT.format(
        columns=", ".join(map(_written, names)),
        name=_written(name),
        files=_written(glob.escape(str(log.resolve()))),
        delimiter=_written(form.delimiter),
        decimal_point=_written(form.decimal_point),
    )
    return name, text


def _written(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # JSON is YAML


def _check_target(target: Path) -> bool:
    """Say whether ``target`` is a project that this command made.

    Raises:
        PipelineError: it is neither that nor new or empty, or lies in another project or
            repository.
    """
    if (target / VERSION).exists():
        return True
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PipelineError(
            f"{target}: found files there; allowed is a new or empty folder; name another one"
        )
    if (other := project_folder(target)) != target:
        raise PipelineError(f"{target}: lies in the project {other}; name a folder outside of it")
    for parent in target.parents:
        if (parent / ".git").exists():
            raise PipelineError(
                f"{target}: lies in the git repository {parent}; name a folder outside of it"
            )
    return False


def _update(target: Path, entry: tuple[str, str] | None) -> None:
    """Bring a project to the installed version, and add a dataset's file."""
    if entry is not None and (target / "datasets" / f"{entry[0]}.yaml").exists():
        raise PipelineError(
            f"{target}/datasets/{entry[0]}.yaml: is there already; edit it, or delete it to draft "
            "it anew"
        )
    changed = template.bring_up_to_date(target, primorl.__version__)
    print(f"brought to the installed version: {', '.join(changed) or 'nothing, it was all there'}")
    if entry is not None:
        with replaced_file(target / "datasets" / f"{entry[0]}.yaml") as fresh:
            fresh.write_text(entry[1], encoding="utf-8")
