"""The audit table: what each variant claims, what audits prove that it leaks at least, how well attacks do.

python -m benchmarks.privacy.attacks --seeds 1 2 3 --shadows 3

On simulated units (`primorl.attacks.population`), by the real engine, on one thread. Resumable: rows that are already
in benchmarks/results/attacks.json are not run again (delete the file to start afresh). Prints the table of
docs/audits.md and draws docs/figures/attacks.png.
"""

import argparse
import dataclasses
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from absl import logging
from matplotlib.figure import Figure

from benchmarks.machine import RESULTS, command, machine
from primorl.attacks import membership
from primorl.attacks.one_run import audit_one_run
from primorl.attacks.population import population
from primorl.attacks.victims import Recipe
from primorl.privacy.audits.canaries import audit_mechanism, enough_runs
from primorl.project.files import replaced_file
from primorl.project.progress import progress_bar

FILE = RESULTS / "attacks.json"
FIGURE = Path("docs/figures/attacks.png")
VARIANTS: list[tuple[membership.Variant, float | None]] = [
    ("no_clip", None),
    ("no_privacy", None),
    ("private", 10.0),
    ("private", 3.0),
    ("private", 1.0),
    ("private", 0.3),
]
CANARIES, CONFIDENCE = 200, 0.95
MECHANISM_CANARIES, ORDINARY = 2048, 100
CANARY_UNITS_SEED = 4_000_000


def main() -> None:
    """Run what is missing, then print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the victims' members")
    parser.add_argument("--shadows", type=int, default=3, help="shadow models of each variant")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity(logging.ERROR)  # the RDP accountant speaks of every order that it skips
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    for variant, epsilon in VARIANTS:
        key = {
            "variant": variant,
            "target_epsilon": epsilon,
            "seeds": arguments.seeds,
            "shadows": arguments.shadows,
        }
        if any(row.items() >= key.items() for row in rows):
            continue
        row = key | measure(variant, epsilon, arguments.seeds, arguments.shadows)
        rows = [old for old in rows if (old["variant"], old["target_epsilon"]) != (variant, epsilon)] + [row]
        with replaced_file(FILE) as fresh:
            fresh.write_text(json.dumps(rows, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    order = {name: i for i, name in enumerate(VARIANTS)}
    rows.sort(key=lambda row: order[row["variant"], row["target_epsilon"]])
    print(table(rows))
    draw(rows)


def measure(variant: membership.Variant, epsilon: float | None, seeds: list[int], shadows: int) -> dict[str, Any]:
    """Everything about one variant."""
    started, used = time.perf_counter(), time.process_time()
    recipe = membership.recipe(variant, epsilon)
    spent = recipe.setup.plan.spent()
    name = variant if epsilon is None else f"{variant}, ε {epsilon:g}"
    with progress_bar((shadows + len(seeds) + 1) * recipe.setup.plan.rounds, name, "round") as bar:
        attacker = membership.Attacker(recipe, shadows, bar.update)
        attacks = [attacker.attack(seed) for seed in seeds]
        one_run = audit(recipe, bar.update)
    row: dict[str, Any] = {
        "epsilon": spent.epsilon_pld if spent else None,
        "delta": recipe.setup.plan.delta,
        "noise_multiplier": recipe.setup.plan.noise_multiplier,
        "mechanism": None,
        "one_run": one_run,
        "attacks": {
            kind: {name: success.to_json() for name, success in successes.items()}
            for kind, successes in membership.successes(attacks).items()
        },
        "error": [attack.error for attack in attacks],
    }
    if recipe.setup.plan.is_private:
        plan = dataclasses.replace(recipe.setup.plan, units=MECHANISM_CANARIES + ORDINARY)
        runs = enough_runs(plan, MECHANISM_CANARIES)
        bound = audit_mechanism(plan, canaries=MECHANISM_CANARIES, runs=runs, confidence=CONFIDENCE)
        row["mechanism"] = dataclasses.asdict(bound) | {"epsilon": bound.epsilon}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return row | {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - used,
        "machine": machine(),
        "commit": commit,
        "command": command("benchmarks.privacy.attacks"),
    }


def audit(recipe: Recipe, on_round: Any) -> dict[str, Any]:
    """The one-run audit of the recipe's training, on as many units as its victims have."""
    result = audit_one_run(
        dataclasses.replace(
            recipe.setup, plan=dataclasses.replace(recipe.setup.plan, units=membership.MEMBERS + CANARIES)
        ),
        population(membership.MEMBERS, membership.STEPS, CANARY_UNITS_SEED),
        membership.public_units().flat(),
        canaries=CANARIES,
        confidence=CONFIDENCE,
        on_round=on_round,
    )
    return dataclasses.asdict(result) | {"epsilon": result.epsilon}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, one line a variant."""
    lines = [
        "| variant | claimed ε | ε ≥ (mechanism) | ε ≥ (one run) | model: AUC | model: TPR at 1% FPR | policy: AUC "
        "| policy: TPR at 1% FPR |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        claimed = "∞" if row["epsilon"] is None else f"{row['epsilon']:.2f}"
        mechanism = row["mechanism"]
        proved = "–" if mechanism is None else f"{mechanism['epsilon']:.2f}"
        cells = [f"`{row['variant']}`", claimed, proved, f"{row['one_run']['epsilon']:.2f}"]
        for kind, name in membership.HEADLINE.items():
            success = row["attacks"][kind][name]
            cells += [_with_interval(success, "auc"), _with_interval(success, "tpr")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _with_interval(success: dict[str, Any], what: str) -> str:
    low, high = success[f"{what}_interval"]
    return f"{success[what]:.2f} [{low:.2f}, {high:.2f}]"


def draw(rows: list[dict[str, Any]]) -> None:
    """Attack success on the left, claims and lower bounds on the right."""
    figure = Figure(figsize=(9.5, 4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [
        row["variant"].replace("_", " ") if row["epsilon"] is None else f"ε = {row['target_epsilon']:g}" for row in rows
    ]
    for offset, marker, (kind, name) in zip((-0.1, 0.1), "os", membership.HEADLINE.items(), strict=True):
        successes = [row["attacks"][kind][name] for row in rows]
        aucs = [success["auc"] for success in successes]
        errors = [
            [success["auc"] - success["auc_interval"][0] for success in successes],
            [success["auc_interval"][1] - success["auc"] for success in successes],
        ]
        places = [i + offset for i in range(len(rows))]
        left.errorbar(places, aucs, yerr=errors, fmt=marker, capsize=3, label=f"released {kind}")
    left.axhline(0.5, color="0.6", linestyle="--", linewidth=1)
    left.annotate("a coin", (len(rows) - 0.6, 0.505), color="0.4", ha="right", fontsize=9)
    left.set_xticks(range(len(rows)), names, rotation=20)
    left.set(ylabel="AUC of membership inference", ylim=(0.4, 1.02))
    left.legend(frameon=False, fontsize=9)

    private = [row for row in rows if row["epsilon"] is not None]
    claims = [row["epsilon"] for row in private]
    right.plot([0.25, 12], [0.25, 12], color="0.6", linestyle="--", linewidth=1)
    right.annotate("claimed: no bound may lie above", (1.05, 1.35), color="0.4", rotation=37, fontsize=9)
    bounds = {
        "mechanism, white box": [row["mechanism"]["epsilon"] for row in private],
        "one run": [row["one_run"]["epsilon"] for row in private],
    }
    for marker, (name, values) in zip("D^", bounds.items(), strict=True):
        right.plot(claims, values, marker, label=name, clip_on=False)
    right.set_xscale("log")
    right.set_yscale("symlog", linthresh=0.1, linscale=0.4)
    right.set(xlabel="claimed ε (δ = 1e-5)", ylabel="lower bound on ε, 95%", ylim=(0, 14))
    right.set_xticks(claims, [f"{claim:.2g}" for claim in claims])
    right.set_yticks([0, 0.1, 1, 10], ["0", "0.1", "1", "10"])
    right.minorticks_off()
    right.legend(frameon=False, fontsize=9, loc="upper left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Software": None})


if __name__ == "__main__":
    main()
