"""The whole pipeline at a tiny size, from a clean clone of this repository: `python
tests/smoke.py`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent

TINY_DATASET = """
options: {episodes: 500, num_envs: 50, learning_starts: 100000, hidden: [16], gradient_steps: 1}
"""
TINY = """
partition: {public_fraction: 0.2}
privacy: {target_epsilon: 5.0, sampling_probability: 0.2, rounds: 25, clipping_norm: 0.35}
dynamics:
  {train_anyway: true, start: random, ensemble_size: 3, log_variance_bounds: [-10.0, 0.5],
   hidden: [16], beta_nll: 0.0, learning_rate: 0.005, max_transitions_per_unit: 1000,
   server_momentum: 0.6, server_averaging: 0.9}
policy:
  {epochs: 2, updates_per_epoch: 10, rollout_every: 5, rollout_batch: 8, buffer_size: 2000,
   batch_size: 32, hidden: [8]}
evaluation: {episodes: 4, epoch_episodes: 2}
"""
NO_PUBLIC_SPLIT = {
    "dataset": "csv-log",
    "partition": {"public_fraction": 0},
    "policy": {"starts": "released"},
}
FILES = [
    *("data/raw", "data/trajectories", "data/partitions/private", "data/partitions/public"),
    "data/partitions/manifest.json",
    *(f"models/dynamics/{name}" for name in ("model.safetensors", "config.json", "privacy.json")),
    *(f"models/policy/{name}" for name in ("policy.safetensors", "config.json", "privacy.json")),
    "metrics/summary.json",
    "plots/curves.csv",
    "reports/report.html",
    "mlflow.db",
]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="primorl-smoke-") as folder:
        clone = Path(folder) / "clone"
        run(ROOT, "git", "clone", "--quiet", str(ROOT), str(clone))
        shrink(clone / "params.yaml", TINY)
        shrink(clone / "datasets/pendulum-replay.yaml", TINY_DATASET)
        run(clone, "dvc", "repro")
        before = store_size(clone)
        run(clone, "python", "-m", "docs.tools.notebooks", "examples/quick_start.ipynb")
        again = (clone / "examples/quick_start.ipynb").read_text(encoding="utf-8")
        expect(
            "Data and pipelines are up to date." in again,
            "a second `dvc repro`, of a notebook, does nothing",
        )
        expect(store_size(clone) == before, "a second `dvc repro` logs nothing")
        run(clone, "git", "checkout", "--quiet", "examples")
        another_dataset_and_back(clone)
        experiment_in_a_copy(clone)
        readme_in_order(clone)
    print("smoke: passed")


def another_dataset_and_back(clone: Path) -> None:
    """A log of people (`tests/own_data.py` runs one to its end); then the first dataset again, out
    of the cache.
    """
    ours, before = contents(clone), (clone / "params.yaml").read_bytes()
    run(clone, "python", "examples/insulin_log.py", "--patients", "600")
    content = yaml.safe_load(before)
    overlay(content, NO_PUBLIC_SPLIT)
    (clone / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    run(clone, "dvc", "repro", "partition")
    manifest = json.loads((clone / "data/partitions/manifest.json").read_text(encoding="utf-8"))
    expect(
        (manifest["unit"], manifest["private_units"]) == ("patient", 600), "the unit is the person"
    )
    (clone / "params.yaml").write_bytes(before)
    said = run(clone, "dvc", "repro")
    expect("Running stage" not in said, "a dataset that is swapped back comes out of the cache")
    expect(contents(clone) == ours, "and is what it was")


def experiment_in_a_copy(clone: Path) -> None:
    """An experiment in DVC's temporary copy has its own results, leaves ours alone and logs to our
    MLflow.
    """
    run(clone, "git", "add", "params.yaml", "dvc.lock", "datasets")
    identity = ("-c", "user.name=smoke", "-c", "user.email=smoke@localhost")
    run(clone, "git", *identity, "commit", "--quiet", "-m", "smoke")
    ours, before = contents(clone), store_size(clone)
    run(clone, "dvc", "exp", "run", "--temp", "--name", "copy", "-S", "privacy.target_epsilon=1.2")
    expect(contents(clone) == ours, "an experiment leaves ours alone")
    expect(store_size(clone) > before, "an experiment in a copy logs to the project's MLflow")
    run(clone, "dvc", "exp", "apply", "copy")
    summary = json.loads((clone / "metrics/summary.json").read_text(encoding="utf-8"))
    expect(
        1.1 < summary["epsilon"] <= 1.2, "the experiment's results are those of its own parameters"
    )
    # the README's next steps make the same one
    run(clone, "git", "checkout", "--quiet", "params.yaml", "dvc.lock")


def readme_in_order(clone: Path) -> None:
    """Every step of README and settings.md works when pasted in order; going back trains and
    charges nothing.
    """
    # instead of installing everything once more
    (clone / ".venv").symlink_to(Path(sys.executable).parents[1])
    (Path(sys.executable).parents[1] / ".pipeline").touch()
    text = "".join(
        (clone / page).read_text(encoding="utf-8") for page in ("README.md", "docs/settings.md")
    )
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    expect(len(blocks) == 4, "README and docs/settings.md have their steps in four blocks")
    for block in blocks:
        back = "git checkout" in block
        charges = run(clone, "primorl", "ledger", "show") if back else ""
        run(clone, "bash", "-euc", block)
        if back:
            expect(run(clone, "primorl", "ledger", "show") == charges, "going back charges nothing")


def run(cwd: Path, *command: str) -> str:
    print("+", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DVC_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment |= {"PATH": path, "PYTHONPATH": str(cwd), "OMP_NUM_THREADS": "1"}
    said = ""
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            said += line
    if process.returncode != 0:
        sys.exit(f"smoke: {' '.join(command)} failed with exit status {process.returncode}")
    return said


def shrink(path: Path, changes: str) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    overlay(content, yaml.safe_load(changes))
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def overlay(content: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict):
            content[key] = content.get(key) or {}
            overlay(content[key], value)
        else:
            content[key] = value


def contents(clone: Path) -> dict[str, bytes]:
    return {
        name: (clone / name).read_bytes()
        for name in FILES
        if (clone / name).is_file() and name != "mlflow.db"
    }


def store_size(clone: Path) -> int:
    return len(list((clone / "mlruns").iterdir())) if (clone / "mlruns").exists() else 0


def expect(true: bool, what: str) -> None:
    if not true:
        sys.exit(f"smoke: not so: {what}")


if __name__ == "__main__":
    main()
