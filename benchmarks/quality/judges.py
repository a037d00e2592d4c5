"""NOT PRIVATE: fitted Q evaluation of d3rlpy on the same data, as a judge beside `benchmarks.quality.value_error`.

d3rlpy has its own requirements, so it lives in an environment of its own. First the project writes what the judge
reads, then the judge runs where only d3rlpy is installed:

python3.11 -m venv judges && judges/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu
judges/bin/pip install d3rlpy==2.8.1
python -m benchmarks.quality.judges export STUDIES FOLDER --tasks pendulum-replay
judges/bin/python benchmarks/quality/judges.py judge FOLDER --out benchmarks/results/judges.json

`export` writes private rows in the clear to FOLDER: for simulated data only. `value_error` must have run before: its
rows name the policies and their true values. The judge prints nothing about single units.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 20_000


def main() -> None:
    """Export in the project's environment, judge in the other one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("export")
    first.add_argument("studies", type=Path)
    first.add_argument("folder", type=Path)
    first.add_argument("--tasks", nargs="+", required=True)
    first.add_argument("--units", type=int, default=3000, help="at most")
    second = commands.add_parser("judge")
    second.add_argument("folder", type=Path)
    second.add_argument("--out", type=Path, required=True)
    second.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    if arguments.command == "export":
        for task in arguments.tasks:
            export(arguments.studies / task, task, arguments.folder, arguments.units)
    else:
        rows = [row for file in sorted(arguments.folder.glob("*.npz")) for row in judge(file, arguments.steps)]
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def export(study: Path, task: str, folder: Path, most: int) -> None:
    """Rows of the private units, and what each of the five policies does at them, as one ``.npz``.

    Observations get the time left behind them, and the end of the horizon counts as terminal: values are finite.
    """
    import torch

    from benchmarks.quality import value_error
    from primorl.evaluation.private.episodes import Episodes

    rows = json.loads(value_error.FILE.read_text(encoding="utf-8"))
    (true,) = [row for row in rows if row["task"] == task and row["what"] == "truth"]
    source = value_error.Study(study, task)
    whole = Episodes.read(source.private, torch.arange(min(most, source.private.units)))
    own, first = whole.own, whole.begins
    problem = source.problem(true["policies"][0])
    over = ~problem.continues(whole.step, whole.terminated)
    timed = torch.cat((whole.observation, problem.time_left(whole.step)[..., None]), -1)
    parts = {
        "observation": timed[own],
        "action": whole.action[own],
        "reward": whole.reward[own],
        "terminal": over[own],
        "timeout": (whole.ends & ~over)[own],
        "first": timed[first],
    }
    for policy in true["policies"]:
        act = source.problem(policy).actions
        parts[f"at_{policy}"], parts[f"first_{policy}"] = act(whole.observation[own]), act(whole.observation[first])
    facts = {name: true[name] for name in ("task", "discount", "policies", "true_values")}
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: part.numpy().astype(np.float32) for name, part in parts.items()}
    np.savez(folder / f"{task}.npz", facts=json.dumps(facts), **arrays)


class _Logged:
    """A policy that only knows logged states, in the shape in which d3rlpy asks an algorithm: it looks them up."""

    def __init__(self, observation: Any, action: Any, discrete: bool) -> None:
        self.impl = self
        self._rows = {row.tobytes(): number for number, row in enumerate(observation)}
        self._action = action.argmax(1) if discrete else action

    def predict_best_action(self, x: Any) -> Any:
        """Actions at ``[B, S]``, as a tensor; any at the zeros that d3rlpy puts after a terminal state."""
        import torch

        return torch.as_tensor(self._action[[self._rows.get(row.tobytes(), 0) for row in x.numpy()]])


def judge(file: Path, steps: int) -> list[dict[str, Any]]:
    """One row for each policy: the value that d3rlpy's FQE says, without privacy."""
    import d3rlpy

    data = np.load(file)
    facts = json.loads(str(data["facts"]))
    discrete = bool(((data["action"] == 0) | (data["action"] == 1)).all())
    logged = data["action"].argmax(1) if discrete else data["action"]
    dataset = d3rlpy.dataset.MDPDataset(data["observation"], logged, data["reward"], data["terminal"], data["timeout"])
    rows = []
    for policy, true in zip(facts["policies"], facts["true_values"], strict=True):
        started = time.perf_counter()
        inputs = np.concatenate((data["observation"], data["first"]))
        actions = np.concatenate((data[f"at_{policy}"], data[f"first_{policy}"]))
        algorithm = _Logged(inputs, actions, discrete)
        config = d3rlpy.ope.FQEConfig(gamma=facts["discount"], batch_size=256, learning_rate=3e-4)
        kind = d3rlpy.ope.DiscreteFQE if discrete else d3rlpy.ope.FQE
        fitted = kind(algo=algorithm, config=config, device=False)
        fitted.fit(
            dataset,
            n_steps=steps,
            n_steps_per_epoch=steps,
            show_progress=False,
            save_interval=10**9,
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        )
        first = data[f"first_{policy}"]
        value = fitted.predict_value(data["first"], first.argmax(1) if discrete else first).mean()
        rows.append(
            {
                "task": facts["task"],
                "what": "d3rlpy FQE, NOT PRIVATE",
                "policy": policy,
                "true_value": true,
                "values": [float(value)],
                "steps": steps,
                "seconds": round(time.perf_counter() - started, 1),
            }
        )
    return rows


if __name__ == "__main__":
    main()
