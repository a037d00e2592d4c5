"""``primorl audit``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primorl.attacks.success import Success
    from primorl.config.params import Params
    from primorl.tracking import StageRun

HELP = "try to refute the claimed ε, and measure how well attacks do"
EXAMPLES = """examples:
  primorl audit mechanism                        canary updates through sampler, clip and noise; reads no data
  primorl audit one-run --canaries 400           canary trajectories through the whole training, on the public split
  primorl audit membership --epsilons 10 1 0.3   who was in the data? on simulated units, minutes for each ε
Reports go to reports/audit/ and to MLflow. No private data is read, so nothing is charged. A lower bound above the
claimed ε ends with an error and status 1.
"""
REPORTS = Path("reports/audit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    also = argparse.ArgumentParser(add_help=False)
    also.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    also.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")
    audits = parser.add_subparsers(dest="audit", required=True, metavar="AUDIT")
    mechanism = audits.add_parser(
        "mechanism", parents=[also], help="white box: every round's release, canaries in directions of their own"
    )
    mechanism.add_argument("--canaries", type=_count, metavar="M", help="in one run (default: 256)")
    mechanism.add_argument("--runs", type=_count, metavar="N", help="of all rounds (default: 64)")
    one_run = audits.add_parser("one-run", parents=[also], help="train once with canary trajectories in the data")
    one_run.add_argument("--canaries", type=_count, metavar="M", help="trajectories (default: 200)")
    membership = audits.add_parser("membership", parents=[also], help="attack released models and policies")
    membership.add_argument(
        "--epsilons", type=_positive, nargs="+", metavar="ε", default=[10.0, 1.0], help="of variant private"
    )
    membership.add_argument(
        "--seeds", type=_seed, nargs="+", metavar="SEED", default=[1], help="one victim each (default: 1)"
    )
    membership.add_argument(
        "--shadows", type=_count, metavar="N", default=3, help="the attacker's own models of each variant (default: 3)"
    )


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {value}, allowed are 1 and more")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 1_000_000:  # beyond begin the seeds of other units
        raise argparse.ArgumentTypeError(f"found {value}, allowed are 0 to 999999")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text}, allowed are finite numbers above 0")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Do it; return the exit status."""
    from absl import logging

    from primorl.config import params
    from primorl.tracking import stage_run

    logging.set_verbosity(logging.ERROR)  # the RDP accountant names every order that it leaves out
    audit = {"mechanism": _mechanism, "one-run": _one_run, "membership": _membership}[arguments.audit]
    checked = params.load(Path("params.yaml"))
    with stage_run("audit", checked) as log:
        audit(checked, arguments, log)
    return 0


def _mechanism(params: "Params", arguments: argparse.Namespace, log: "StageRun") -> None:
    from pipeline import audit

    found = audit.of_mechanism(
        params, arguments.canaries or audit.MECHANISM_CANARIES, arguments.runs or audit.MECHANISM_RUNS
    )
    audit.log_mechanism(log, found)
    rows = [
        ("claimed", found.claimed),
        ("lower bound, from right and wrong guesses alone", found.epsilon),
        ("lower bound, if rounds are Gaussian with the plan's q", found.epsilon_gaussian),
    ]
    _finish("mechanism", audit.mechanism_report(found), _bounds(rows, found.delta, found.confidence), arguments, log)
    audit.refuse(found)


def _one_run(params: "Params", arguments: argparse.Namespace, log: "StageRun") -> None:
    from pipeline import audit

    found = audit.of_one_run(params, arguments.canaries or audit.ONE_RUN_CANARIES)
    audit.log_one_run(log, found)
    rows: list[tuple[str, float | None]] = [("claimed", found.claimed)]
    for name, view in (("the released model", found.model), ("every round's release", found.rounds)):
        rows.append((f"lower bound, from {name} ({view.correct} of {view.guesses} guesses right)", view.epsilon))
    table = _bounds(rows, found.delta, found.confidence)
    table += [f"trained on {found.units} public units and {found.canaries} canaries; the model was dropped"]
    _finish("one-run", audit.one_run_report(found), table, arguments, log)
    audit.refuse(found)


def _membership(params: "Params", arguments: argparse.Namespace, log: "StageRun") -> None:
    from primorl.attacks import membership
    from primorl.project.progress import progress_bar

    variants: list[tuple[membership.Variant, float | None]] = [("no_clip", None), ("no_privacy", None)]
    variants += [("private", epsilon) for epsilon in arguments.epsilons]
    results: list[dict[str, Any]] = []
    lines = [("variant", "claimed ε", *(f"{kind} {what}" for kind in membership.HEADLINE for what in ("AUC", "TPR")))]
    recipes = [membership.recipe(variant, epsilon) for variant, epsilon in variants]
    rounds = sum(recipe.setup.plan.rounds for recipe in recipes) * (arguments.shadows + len(arguments.seeds))
    with progress_bar(rounds, "membership", "round") as bar:
        for (variant, epsilon), recipe in zip(variants, recipes, strict=True):
            attacker = membership.Attacker(recipe, arguments.shadows, bar.update)
            successes = membership.successes([attacker.attack(seed) for seed in arguments.seeds])
            spent = recipe.setup.plan.spent()
            claimed = None if spent is None else spent.epsilon_pld
            attacks = {kind: {k: v.to_json() for k, v in by_name.items()} for kind, by_name in successes.items()}
            results.append(
                {"variant": variant, "epsilon": claimed, "delta": recipe.setup.plan.delta, "attacks": attacks}
            )
            headline = {kind: successes[kind][name] for kind, name in membership.HEADLINE.items()}
            lines.append((variant, "none" if claimed is None else f"{claimed:.3g}", *_successes(headline)))
            for kind, success in headline.items():
                name = variant if epsilon is None else f"{variant}_{epsilon:g}"
                log.metric(f"attack.{name}.{kind}.auc", success.auc)
                log.metric(f"attack.{name}.{kind}.tpr", success.tpr)
    report = {"data": "simulated", "seeds": arguments.seeds, "shadows": arguments.shadows, "results": results}
    table = [*_aligned(lines), "TPR at 1% FPR; 95% intervals; attack success, which says nothing of ε from above"]
    _finish("membership", report, table, arguments, log)


def _finish(
    name: str, report: dict[str, Any], table: "Sequence[str]", arguments: argparse.Namespace, log: "StageRun"
) -> None:
    """Write the report, log it, and print it or the table."""
    import json

    from primorl.project.files import write_json

    path = REPORTS / f"{name}.json"
    write_json(path, report)
    log.artifact(path)
    if arguments.json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        print("\n".join([*table, f"report: {path}"]))


def _bounds(rows: "Sequence[tuple[str, float | None]]", delta: float, confidence: float) -> list[str]:
    lines = [
        (f"ε at δ = {delta:g}", ""),
        *((name, "none" if value is None else f"{value:.3f}") for name, value in rows),
    ]
    return [*_aligned(lines), f"each bound is below the true ε with {confidence:.0%} confidence"]


def _successes(found: "Mapping[str, Success]") -> list[str]:
    cells = []
    for success in found.values():
        for value, (low, high) in ((success.auc, success.auc_interval), (success.tpr, success.tpr_interval)):
            cells.append(f"{value:.2f} [{low:.2f}, {high:.2f}]")
    return cells


def _aligned(lines: "Sequence[Sequence[str]]") -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
