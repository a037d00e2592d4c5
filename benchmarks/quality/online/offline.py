"""From a private offline policy to an online one: the return against the users so far, over seeds.

Run it in a project whose ``models/policy`` falls short, for example after

    dvc exp run -S privacy.target_epsilon=0.1 -S dynamics.start=random
    python -m benchmarks.quality.online.offline --users 20000 --seeds 10 --figure

It runs the stage's own learning (`primorl.setup.online`) with the settings of params.yaml, without the ledger, and
leaves ``models`` alone. Resumable: rows in benchmarks/results/online_offline.json are not made again.
"""

import argparse
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.machine import RESULTS, command, machine
from primorl.config import params as params_module
from primorl.evaluation.returns import episode_returns
from primorl.evaluation.statistics import MeanInterval
from primorl.online.learning import OnlineState, learn
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.statement import Statement
from primorl.privacy.together import after_offline
from primorl.project.paths import POLICY
from primorl.setup.online import online_run
from primorl.setup.online_files import users_statement

FILE = RESULTS / "online_offline.json"
FIGURE = Path("docs/figures/online-offline.png")
EPISODES = 100


def main() -> None:
    """Make the rows that are missing, print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--figure", action="store_true", help=f"draw {FIGURE}")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    online = params_module.load().online
    key = {
        "dataset": params_module.load().dataset,
        "epsilon_offline": Statement.read(POLICY).epsilon,
        "users": arguments.users,
        "cohort": online.cohort,
        "learning_rate": online.learning_rate,
    }
    for seed in range(arguments.seeds):
        if not any(row.items() >= (key | {"seed": seed}).items() for row in rows):
            rows.append(run(seed, arguments.users))
            FILE.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    shown = [row for row in rows if row.items() >= key.items()]
    print(table(shown))
    if arguments.figure:
        draw(shown)


def run(seed: int, users: int) -> dict[str, Any]:
    """One run with users of their own."""
    loaded = params_module.load()
    chosen = replace(loaded, seed=seed, online=replace(loaded.online, users=users, start="policy"))
    started, asked = time.perf_counter(), online_run(chosen)
    cohorts = asked.arrivals.cohorts
    begin = asked.update.begin(asked.start.network, asked.start.parameters)
    state = learn(
        asked.update,
        asked.start.network,
        asked.plan,
        asked.users,
        cohorts,
        OnlineState.begin(begin, len(cohorts), max(1, len(cohorts) // 20)),
    )
    seconds = time.perf_counter() - started
    policies = DeterministicPolicy.stacked([asked.start.network.exported(kept) for kept in state.kept])
    returns = episode_returns(str(chosen.chosen.environment), policies, EPISODES, chosen.evaluation.seed).mean(1)
    own = users_statement(chosen, asked)
    assert asked.start.statement is not None
    return {
        "dataset": chosen.dataset,
        "seed": seed,
        "users": users,
        "cohort": chosen.online.cohort,
        "algorithm": asked.update.name,
        "learning_rate": chosen.online.learning_rate,
        "epsilon_offline": asked.start.statement.epsilon,
        "epsilon_user": own.epsilon,
        "epsilon_both": after_offline(asked.start.statement, own).epsilon,
        "before": returns[0],
        "after": returns[-1],
        "after_users": [after * chosen.online.cohort for after in state.kept_after],
        "curve": [round(float(value), 2) for value in returns],
        "seconds": round(seconds, 1),
        "machine": machine(),
        "commit": subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "command": command("benchmarks.quality.online.offline"),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: the return before and after, and ε of those who are in the log, users, and both."""
    after = MeanInterval.of(np.array([row["after"] for row in rows]))
    first = rows[0]
    parts = [at_most(first[f"epsilon_{key}"]) for key in ("offline", "user", "both")]
    return "\n".join(
        [
            "| dataset | users | return before | after, mean over seeds | worst seed | ε log | ε user | ε both |",
            "|---|---|---|---|---|---|---|---|",
            f"| `{first['dataset']}` | {first['users']} | {first['before']:.0f} | {after.mean:.0f} ± "
            f"{after.high - after.mean:.0f} ({len(rows)} seeds) | {min(row['after'] for row in rows):.0f} | "
            f"{' | '.join(parts)} |",
        ]
    )


def draw(rows: list[dict[str, Any]]) -> None:
    """The return against the users so far, every seed and their mean."""
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    users, curves = rows[0]["after_users"], np.array([row["curve"] for row in rows])
    for curve in curves:
        axes.plot(users, curve, color="C0", alpha=0.25, linewidth=1)
    axes.plot(users, curves.mean(0), color="C0", marker=".", label=f"mean of {len(rows)} seeds")
    axes.axhline(curves[0, 0], color="C7", linestyle="--", linewidth=1, label="offline policy")
    axes.set(xlabel="users so far", ylabel="return of the likeliest actions")
    axes.set_title(
        f"{rows[0]['dataset']}: offline at ε = {at_most(rows[0]['epsilon_offline'])}, then ε = "
        f"{at_most(rows[0]['epsilon_user'])} a user (both: {at_most(rows[0]['epsilon_both'])})",
        fontsize=11,
    )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(FIGURE, metadata={"Software": None})


if __name__ == "__main__":
    main()
