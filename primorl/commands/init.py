"""``primorl init``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import primorl
from primorl.commands.arguments import given_path, project_folder
from primorl.project.errors import PipelineError

if TYPE_CHECKING:
    from primorl.setup.drafting import Answers

_HELP = """Make a project's folder, with an entry for your own CSV if you name it.

Works without a clone of primorl's repository. DIR is new or empty, and lies in no other project. In a folder that this
command made, it brings dvc.yaml and pipeline/ to the installed version, adds the entry, and leaves the rest as it is.

With --csv, the names and types of the columns are read, and nothing else: bounds, categories and the horizon are public
facts that you know beforehand. What you do not give of them is empty in datasets/NAME.yaml, and nothing trains before
it is filled in. On a terminal, what is not given is asked for.

\b
Examples:
  primorl init project                               a project with the default dataset
  primorl init project --csv visits.csv              asks what the columns mean
  primorl init project --csv visits.csv --unit patient --trajectory visit --step time \\
      --observation glucose --observation meal --action dose --reward reward \\
      --categories meal=none,snack,dinner --bounds glucose=2:25 --bounds dose=0:1 --bounds reward=-1:0
  primorl init .                                     after an upgrade of primorl
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("init", help=_HELP)(_run)


def _run(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The project's folder.")],
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Your log: .csv or .csv.gz.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the dataset (default: the file's).")] = None,
    unit: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Whom the guarantee protects: the person; or the trajectory's column."),
    ] = None,
    trajectory: Annotated[str | None, typer.Option(metavar="COLUMN", help="Which trajectory a row is of.")] = None,
    step: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="A number or time that ascends within a trajectory.")
    ] = None,
    observation: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Observed; repeat it.")] = None,
    action: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Done; repeat it.")] = None,
    reward: Annotated[str | None, typer.Option(metavar="COLUMN", help="The reward of the row's action.")] = None,
    categories: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=A,B", help="All that may be in a column; repeat it. An action becomes discrete."),
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=LOW:HIGH", help="Public bounds, known beforehand; repeat it."),
    ] = None,
    elapsed: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=UNIT:MOST", help="Observe the time since the row before, at most so long: since=hours:24."
        ),
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(metavar="STEPS", min=1, help="The most steps of a trajectory, known beforehand.")
    ] = None,
) -> None:
    given = {
        "name": name,
        "unit": unit,
        "trajectory": trajectory,
        "step": step,
        "observation": observation,
        "action": action,
        "reward": reward,
        "categories": categories,
        "bounds": bounds,
        "elapsed": elapsed,
        "horizon": horizon,
    }
    target = given_path(folder).resolve()
    if csv is None:
        if unused := [f"--{flag}" for flag, value in given.items() if value]:
            raise PipelineError(f"{', '.join(unused)}: found without --csv; name the log: --csv FILE")
        _make(target, None, None)
        return
    from primorl.commands.init_questions import answered
    from primorl.setup import drafting
    from primorl.trajectories.sources.tabular.columns import columns_of

    _check_target(target)  # before anything is asked
    log = given_path(csv)
    if log.resolve().is_relative_to(target):
        raise PipelineError(f"{log}: lies in the project, where git would see its rows; move it to another folder")
    form, columns = columns_of(log)
    answers = answered(given, columns, drafting.default_name(log), ask=sys.stdin.isatty() and sys.stdout.isatty())
    drafting.check_answers(answers, columns)
    drafting.check_draft(answers, log, form)
    _make(target, answers, drafting.as_yaml(drafting.draft(answers, log, form), answers))


def _check_target(target: Path) -> bool:
    """Whether ``target`` is a project that this command made.

    Raises:
        PipelineError: it is neither that nor new or empty, or lies in another project or repository.
    """
    from primorl.project.template import UNFINISHED, VERSION

    if (target / VERSION).exists():
        return True
    unfinished = (target / UNFINISHED).exists()  # it was killed while it filled an empty folder
    if not unfinished and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PipelineError(f"{target}: found files there; allowed is a new or empty folder; name another one")
    if (other := project_folder(target)) != target:
        raise PipelineError(f"{target}: lies in the project {other}; name a folder outside of it")
    if repository := next((parent for parent in target.parents if (parent / ".git").exists()), None):
        raise PipelineError(f"{target}: lies in the git repository {repository}; name a folder outside of it")
    return False


def _make(target: Path, answers: "Answers | None", entry: str | None) -> None:
    from primorl.project.template import bring_up_to_date, write_new

    there = _check_target(target)
    own = None if answers is None else Path("datasets") / f"{answers.name}.yaml"
    if there:
        if own is not None and (target / own).exists():
            raise PipelineError(f"{target / own}: is there already; give another --name, or edit that file")
        changed = bring_up_to_date(target, primorl.__version__)
        print(f"brought to the installed version: {', '.join(changed) or 'nothing, it was all there'}")
        if own is not None and entry is not None:
            _write(target / own, entry)
    else:
        write_new(target, primorl.__version__, None if answers is None or entry is None else (answers.name, entry))
        print(f"made {target}")
    if answers is not None:
        _say_next(target, answers, chosen=not there)


def _write(path: Path, text: str) -> None:
    from primorl.project.files import replaced_file

    with replaced_file(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def _say_next(target: Path, answers: "Answers", *, chosen: bool) -> None:
    """What is left to do."""
    from primorl.project.template import as_text

    print(f"datasets/{answers.name}.yaml has the names and types of the columns; no bound was read off the rows")
    drawn = ""
    if chosen:
        drawn = f"; as it stands, a hash draws {100 * _public_fraction(target):g}% of the units"
    else:
        print(f"set `dataset: {as_text(answers.name)}` in params.yaml to use it")
    print(f"partition in params.yaml says whose rows are public{drawn}")
    if answers.unfilled:
        print(
            f"fill in, in datasets/{answers.name}.yaml, from what is known beforehand and not from the rows: "
            f"{', '.join(answers.unfilled)}; nothing trains before"
        )
    print(f"then: cd {target} && primorl check && dvc repro")


def _public_fraction(target: Path) -> float:
    """The share of units that a new project's settings make public."""
    from primorl.config.reading import read_yaml

    files = ("params.yaml", "datasets/defaults.yaml")
    said = (read_yaml(target / file, "the project's settings")["partition"]["public_fraction"] for file in files)
    return float(next(fraction for fraction in said if fraction != "auto"))
