"""``primorl init``: a project's folder, and the draft of an entry for a log.

Of the log, only the names of its columns are read. Bounds, categories and the horizon are declared
public, so they come from facts known beforehand and never from a row. What a person has to decide
is FILL IN in the draft, which no reader of the file accepts: nothing trains before it is replaced.
"""

import glob
import json
import re
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

import primorl
from primorl.base import PipelineError, template
from primorl.base.files import project_folder, refuse_other_names, replaced_file
from primorl.base.template import VERSION
from primorl.commands.terminal import given_path, option

_RULES = {"Hopper": "hopper", "Walker2d": "walker2d", "CartPole": "cartpole"}
_RULES |= {"InvertedPendulum": "inverted_pendulum", "HalfCheetah": "none", "Pendulum": "none"}
"""Rules of termination, by Gymnasium's names without a version."""


def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The project's folder.")],
    csv: Annotated[
        str | None, option("FILE", "Your log: .csv, .csv.gz, .parquet or a folder.")
    ] = None,
    meds: Annotated[str | None, option("FOLDER", "Your folder in MEDS.")] = None,
    minari: Annotated[str | None, option("ID", "A dataset of Minari, fetched if need be.")] = None,
    d4rl: Annotated[str | None, option("NAME", "A dataset of D4RL.")] = None,
) -> None:
    """Make a project's folder, with the draft of an entry for your own data if you name them.

    Works without a clone of primorl's repository. DIR is new or empty, and lies in no other
    project. In a folder that this command made, it brings dvc.yaml and pipeline/ to the installed
    version, adds the entry, and leaves the rest as it is.

    With --csv, the columns' names are read and nothing else; with --meds, nothing. What a person
    has to decide is FILL IN in datasets/NAME.yaml, NAME being the file's; nothing trains before it
    is replaced. With --minari or --d4rl, the entry has what the dataset declares.

    Examples:
      primorl init project                    a project with the default dataset
      primorl init project --csv visits.csv   and an entry that names the columns, to be filled in
      primorl init project --meds /data/meds  the same of events
      primorl init project --minari mujoco/hopper/medium-v0
      primorl init project --d4rl halfcheetah-medium-v2
      primorl init .                          after an upgrade of primorl
    """
    target = given_path(folder).resolve()
    refuse_other_names(target)
    there = _check_target(target)
    own = csv if meds is None else meds
    if sum(each is not None for each in (csv, meds, minari, d4rl)) > 1:
        raise PipelineError("--csv, --meds, --minari, --d4rl: found several; allowed is one")
    entry = None if own is None else _draft(given_path(own), target, events=meds is not None)
    for source, named in (("minari", minari), ("d4rl", d4rl)):
        if named is not None:
            entry = _complete(source, named)
    if not there:
        template.write_new(target, primorl.__version__, entry)
        print(f"made {target}")
    else:
        _update(target, entry)
    if entry is not None:
        name, _ = entry
        if own is not None:
            print(f"fill in datasets/{name}.yaml, from what is known beforehand, not from the rows")
        if there:
            print(f'set `dataset: "{name}"` in params.yaml to use it')
        print(f"then: cd {target} && primorl check && dvc repro plan && primorl plan")
        print("these charge nothing; last: primorl run, which says first what it charges")


def _draft(log: Path, target: Path, *, events: bool) -> tuple[str, str]:
    """Return name and text of the dataset's file for a log, or a folder of events."""
    if log.resolve().is_relative_to(target):
        raise PipelineError(f"{log}: lies in the project, where git would see its rows; move it")
    refuse_other_names(log.resolve())
    name = _name(log.name.partition(".")[0]) or "log"
    known, kind = {"name": _quote(name), "files": _quote(str(log.resolve()))}, "meds"
    if events and not (log / "data").is_dir():
        raise PipelineError(f"{log}: found no folder `data` in it; name the one of a MEDS dataset")
    if not events:
        known, kind = known | _describe_csv(log), "dataset"
    draft = files("primorl.commands").joinpath(f"templates/{kind}.yaml")
    return name, draft.read_text(encoding="utf-8").format(**known)


def _describe_csv(log: Path) -> dict[str, str]:
    """Return the columns' names of a log, or of a folder of them, and how it is written."""
    from primorl.data.sources.log_paths import log_files
    from primorl.data.sources.logs import columns_of

    parts = log_files(log) if log.is_dir() else [log]
    if not parts:
        raise PipelineError(f"{log}: found no log there; name the log's folder or file")
    form, names = columns_of(parts[0])
    return {
        "columns": ", ".join(map(_quote, names)),
        "files": _quote(glob.escape(str(log.resolve()))),
        "delimiter": _quote(form.delimiter),
        "decimal_point": _quote(form.decimal_point),
    }


def _complete(source: str, named: str) -> tuple[str, str]:
    """Return name and text of the dataset's file for a dataset of Minari or D4RL.

    A small share of the episodes, which are simulated, is public: bounds come from it.
    """
    import yaml  # not in the bare wheel

    reading = import_module(f"primorl.data.sources.{source}")
    found: dict[str, Any] = reading.describe(named)
    environment = found["environment"] or ""
    rule = _RULES.get(environment.partition("-v")[0], "learned")
    name = _name(named)
    entry = {"source": source, "unit": "trajectory", "population": name} | found
    entry |= {"trajectories_per_person": None, "termination": rule, "ingestion": {}}
    entry["bounds"] = {"observation": "public", "reward": "public"}
    entry["recipe"] = {"partition": {"public_fraction": 0.02}}
    return name, yaml.safe_dump(entry, sort_keys=False, allow_unicode=True)


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100]


def _quote(text: str) -> str:
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
        raise PipelineError(f"{target}: found files there; allowed is a new or empty folder")
    if (other := project_folder(target)) != target:
        raise PipelineError(f"{target}: lies in the project {other}; name a folder outside of it")
    for parent in target.parents:
        if (parent / ".git").exists():
            raise PipelineError(f"{target}: lies in the git repository {parent}; name one outside")
    return False


def _update(target: Path, entry: tuple[str, str] | None) -> None:
    """Bring a project to the installed version, and add a dataset's file."""
    if entry is not None and (target / "datasets" / f"{entry[0]}.yaml").exists():
        remedy = "edit it, or delete it to draft it anew"
        raise PipelineError(f"{target}/datasets/{entry[0]}.yaml: is there already; {remedy}")
    changed = template.bring_up_to_date(target, primorl.__version__)
    print(f"brought to the installed version: {', '.join(changed) or 'nothing, it was all there'}")
    if entry is not None:
        with replaced_file(target / "datasets" / f"{entry[0]}.yaml") as fresh:
            fresh.write_text(entry[1], encoding="utf-8")
