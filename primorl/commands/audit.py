"""``primorl audit``."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primorl.commands.printing import rendered
from primorl.privacy.accounting.rounding import at_least, at_most
from primorl.project.paths import AUDIT_RECORDS, PARAMS

if TYPE_CHECKING:
    from primorl.attacks.one_run import OneRun
    from primorl.attacks.success import Success
    from primorl.config.params import Params
    from primorl.privacy.audits.bounds import LowerBound
    from primorl.tracking import StageRun

_EXAMPLES = """\b
Examples:
  primorl audit mechanism                        2,048 canary updates through sampler, clip and noise; reads no data
  primorl audit one-run --canaries 400           canary trajectories through the whole training, on the public split
  primorl audit membership --epsilons 10 1 0.3   who was in the data? on simulated units, minutes for each ε

Reports go to reports/audit/ and to MLflow. No private data is read, so nothing is charged. A lower bound above the
claimed ε ends with an error and status 1.
"""
_MOST_SEEDS = 1_000_000  # beyond begin the seeds of other units
_Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of a table.")]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    actions = typer.Typer(help=f"Try to refute the claimed ε, and measure how well attacks do.\n\n{_EXAMPLES}")
    for name, function, about in (
        (
            "mechanism",
            _mechanism,
            "White box: look at every round's release, with canaries in directions of their own.",
        ),
        ("one-run", _one_run, "Train once with canary trajectories in the data."),
        ("membership", _membership, "Attack released models and policies."),
    ):
        actions.command(name, help=f"{about}\n\n{_EXAMPLES}")(function)
    app.add_typer(actions, name="audit")


def _number(kind: type[int] | type[float], fits: Callable[[float], bool], allowed: str) -> Callable[[str], Any]:
    """A parser of numbers of ``kind`` that satisfy ``fits``."""

    def parsed(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not fits(number):
            raise typer.BadParameter(f"found {text[:40]!r}, allowed are {allowed}")
        return number

    return parsed


_COUNT = _number(int, lambda number: number >= 1, "1 and more")
_SEED = _number(int, lambda number: 0 <= number < _MOST_SEEDS, f"0 to {_MOST_SEEDS - 1}")
_EPSILON = _number(float, lambda number: 0 < number < float("inf"), "finite numbers above 0")
LISTS = ("--epsilons", "--seeds")
"""Options that take several values, separated by spaces."""


@contextmanager
def _logged() -> "Iterator[tuple[Params, StageRun]]":
    """The settings, and a run in MLflow."""
    from absl import logging

    from primorl import tracking
    from primorl.config import params

    logging.set_verbosity(logging.ERROR)  # the RDP accountant names every order that it leaves out
    checked = params.load(PARAMS)
    with tracking.stage_run("audit", checked) as log:
        yield checked, log


def _mechanism(
    canaries: Annotated[
        int | None, typer.Option(metavar="M", parser=_COUNT, help="Canaries in one run.  [default: 2048]")
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=_COUNT, help="Runs of all rounds.  [default: as many as see 131,072 canaries]"
        ),
    ] = None,
    as_json: _Json = False,
) -> None:
    from primorl.setup import audits

    with _logged() as (params, log):
        found = audits.of_mechanism(params, canaries or audits.MECHANISM_CANARIES, runs, audits.CONFIDENCE)
        audits.log_mechanism(log, found)
        table = _bounds(found) + f"\n{found.canaries} canaries were seen"
        _finish("mechanism", audits.mechanism_report(found), table, as_json, log)
        audits.refuse(found)


def _one_run(
    canaries: Annotated[
        int | None, typer.Option(metavar="M", parser=_COUNT, help="Canary trajectories.  [default: 200]")
    ] = None,
    as_json: _Json = False,
) -> None:
    from primorl.setup import audits

    with _logged() as (params, log):
        found = audits.of_one_run(params, canaries or audits.ONE_RUN_CANARIES, audits.CONFIDENCE)
        audits.log_one_run(log, found)
        table = _bounds(found)
        for name, view in (("every round's release", found.rounds), ("the released model", found.model)):
            table += f"\n{name}: {view.correct} of {view.guesses} guesses right"
        table += f"\ntrained on {found.units} public units and {found.canaries} canaries; the model was dropped"
        _finish("one-run", audits.one_run_report(found), table, as_json, log)
        audits.refuse(found)


def _membership(
    epsilons: Annotated[
        list[float] | None,
        typer.Option(metavar="ε…", parser=_EPSILON, help="ε of variant private.  [default: 10 1]"),
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option(metavar="SEED…", parser=_SEED, help="One victim for each.  [default: 1]")
    ] = None,
    shadows: Annotated[
        int, typer.Option(metavar="N", parser=_COUNT, help="The attacker's own models of each variant.")
    ] = 3,
    as_json: _Json = False,
) -> None:
    from primorl.attacks import membership
    from primorl.project.progress import progress_bar

    epsilons, seeds = epsilons or [10.0, 1.0], seeds or [1]
    variants: list[tuple[membership.Variant, float | None]] = [("no_clip", None), ("no_privacy", None)]
    variants += [("private", epsilon) for epsilon in epsilons]
    results: list[dict[str, Any]] = []
    headers = ("variant", "claimed ε", *(f"{kind} {what}" for kind in membership.HEADLINE for what in ("AUC", "TPR")))
    lines: list[tuple[str, ...]] = []
    recipes = [membership.recipe(variant, epsilon) for variant, epsilon in variants]
    rounds = sum(recipe.setup.plan.rounds for recipe in recipes) * (shadows + len(seeds))
    with _logged() as (_, log), progress_bar(rounds, "membership", "round") as bar:
        for (variant, epsilon), recipe in zip(variants, recipes, strict=True):
            attacker = membership.Attacker(recipe, shadows, bar.update)
            successes = membership.successes([attacker.attack(seed) for seed in seeds])
            spent = recipe.setup.plan.spent()
            claimed = None if spent is None else spent.epsilon_pld
            attacks = {kind: {k: v.to_json() for k, v in by_name.items()} for kind, by_name in successes.items()}
            results.append(
                {"variant": variant, "epsilon": claimed, "delta": recipe.setup.plan.delta, "attacks": attacks}
            )
            headline = {kind: successes[kind][name] for kind, name in membership.HEADLINE.items()}
            lines.append((variant, "none" if claimed is None else at_most(claimed), *_successes(headline)))
            for kind, success in headline.items():
                name = variant if epsilon is None else f"{variant}_{epsilon:g}"
                log.metric(f"attack.{name}.{kind}.auc", success.auc)
                log.metric(f"attack.{name}.{kind}.tpr", success.tpr)
        report = {"data": "simulated", "seeds": seeds, "shadows": shadows, "results": results}
        table = rendered(headers, lines)
        table += "\nTPR at 1% FPR; 95% intervals. Attack success is no upper bound on ε."
        _finish("membership", report, table, as_json, log)


def _finish(name: str, report: dict[str, Any], table: str, as_json: bool, log: "StageRun") -> None:
    """Write the report, log it, and print it or the table."""
    import json

    from primorl.project.files import write_json

    path = AUDIT_RECORDS / f"{name}.json"
    write_json(path, report)
    log.artifact(path)
    print(json.dumps(report, indent=2, allow_nan=False) if as_json else f"{table}\nreport: {path}")


def _bounds(found: "LowerBound | OneRun") -> str:
    claimed = found.claimed
    cells = [("claimed", "none" if claimed is None else at_most(claimed), "", "")]
    for bound in found.bounds:
        share = f"{math.floor(100 * bound.epsilon / claimed)}%" if claimed else ""
        cells.append((f"lower bound: {bound.name}", at_least(bound.epsilon), share, bound.assumes))
    header = (f"ε at δ = {at_most(found.delta)}", "", "of the claim", "assumes")
    table = rendered(header, cells, right=("", "of the claim"))
    each = (1 - found.confidence) / len(found.bounds)
    return (
        f"{table}\nall {len(found.bounds)} bounds are below the true ε with {100 * found.confidence:.6g}% confidence "
        f"(Bonferroni: error {each:.3g} each)"
    )


def _successes(found: "Mapping[str, Success]") -> list[str]:
    cells = []
    for success in found.values():
        for value, (low, high) in ((success.auc, success.auc_interval), (success.tpr, success.tpr_interval)):
            cells.append(f"{value:.2f} [{low:.2f}, {high:.2f}]")
    return cells
