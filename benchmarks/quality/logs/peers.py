"""NOT PRIVATE: offline RL of d3rlpy on the same people, beside this pipeline on the zoo of logs.

d3rlpy has its own requirements, so it lives in an environment of its own. Three commands, each of which does only what
is missing; the first and the last run in the project's environment, the second where only d3rlpy is installed:

python3.11 -m venv judges && judges/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu
judges/bin/pip install d3rlpy==2.8.1
python -m benchmarks.quality.logs.peers export --work /tmp/zoo --people 10000
OMP_NUM_THREADS=1 judges/bin/python benchmarks/quality/logs/peers.py train --work /tmp/zoo
python -m benchmarks.quality.logs.peers measure --work /tmp/zoo

1. `export` writes the rows of the private people IN THE CLEAR to WORK/peers: for simulated people only. Continuous
   actions are scaled from the log's bounds to [-1, 1], where d3rlpy's policies end. A trajectory that ends without a
   termination gets one more row, its timeout: d3rlpy makes no transition of a timeout's row.
2. `train` trains IQL or TD3+BC for continuous actions, CQL for discrete ones, with d3rlpy's defaults, without scalers,
   for `--steps` gradient steps on one thread: far fewer than papers take.
3. `measure` asks the hidden simulator for the policy's true return, in the episodes in which `benchmarks.quality.logs`
   measures this pipeline's policies.
"""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from benchmarks.quality.logs.log import Act, Box, Levels, Log
    from primorl.evaluate.private.problem import Episodes, EpisodeSource

ALGORITHMS = {"IQL": False, "TD3PlusBC": False, "DiscreteCQL": True}
"""Names in d3rlpy, and whether their actions are discrete."""
STEPS = 10_000
_FOLDER = "peers"


def main() -> None:
    """Export and measure in the project's environment, train in the other one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=["export", "train", "measure"])
    parser.add_argument(
        "--work", type=Path, required=True, help="of benchmarks.quality.logs, whose data are used"
    )
    parser.add_argument("--logs", nargs="+", help="by default all")
    parser.add_argument("--people", type=int, nargs="+", default=[10000], help="for export")
    parser.add_argument("--seeds", type=int, default=1, help="for export")
    parser.add_argument(
        "--algorithms",
        nargs="+",
        choices=ALGORITHMS,
        default=["IQL", "DiscreteCQL"],
        help="for train",
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="for train")
    arguments = parser.parse_args()
    folder = arguments.work.resolve() / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.do == "export":
        export(
            arguments.work.resolve() / "data",
            folder,
            arguments.logs,
            arguments.people,
            arguments.seeds,
        )
    elif arguments.do == "train":
        for file in _chosen(folder, "*.npz", arguments.logs):
            for algorithm in arguments.algorithms:
                train(file, algorithm, arguments.steps)
    else:
        measure(folder, arguments.logs)


def _chosen(folder: Path, pattern: str, logs: list[str] | None) -> list[Path]:
    return [
        file
        for file in sorted(folder.glob(pattern))
        if logs is None or file.name.split("-")[0] in logs
    ]


def export(
    data: Path, folder: Path, names: list[str] | None, people: list[int], seeds: int
) -> None:
    """Write ``<log>-<people>-<seed>.npz`` for each log: what `rows` makes of its private people, and facts."""
    import torch

    from benchmarks.quality.logs import LOGS
    from benchmarks.quality.logs.log import Levels
    from benchmarks.quality.logs.project import partitions
    from primorl.base.paths import PRIVATE
    from primorl.data.storage.rows import UnitStore

    torch.set_num_threads(1)
    for count in people:
        for seed in range(seeds):
            for name in names or LOGS:
                log = LOGS[name]
                file = folder / f"{name}-{count}-{seed}.npz"
                if file.exists():
                    continue
                project = partitions(log, count, seed, data)
                arrays = rows(log.action, UnitStore.open(project / PRIVATE))
                actions = (
                    log.action.count if isinstance(log.action, Levels) else len(log.action.columns)
                )
                facts = {"log": name, "people": count, "seed": seed, "action_size": actions}
                fresh = file.with_suffix(".new")
                with fresh.open("wb") as opened:
                    np.savez(opened, **arrays, facts=np.array(json.dumps(facts)))  # type: ignore[arg-type]
                fresh.rename(file)
                print(f"{file.name} is written", flush=True)


def rows(action: "Box | Levels", source: "EpisodeSource") -> dict[str, NDArray[Any]]:
    """Make the arrays of d3rlpy's ``MDPDataset``, trajectory after trajectory. Sensitive."""
    import torch

    from primorl.evaluate.private.problem import portions

    units = torch.arange(source.units)
    parts = [_rows(action, whole) for whole in portions(source, units, row_bytes=1024)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _rows(action: "Box | Levels", whole: "Episodes") -> dict[str, NDArray[Any]]:
    from benchmarks.quality.logs.log import Levels

    own = whole.own
    terminated = whole.terminated[own].numpy()
    cut = whole.ends[own].numpy() & ~terminated
    at = np.repeat(
        np.arange(len(cut)), 1 + cut
    )  # a row that ends without a termination comes twice
    last = np.append(False, at[1:] == at[:-1])
    logged = whole.action[own].numpy()
    if isinstance(action, Levels):
        done: NDArray[Any] = logged.argmax(1)[:, None].astype(np.int32)
    else:
        low, high = np.array(action.low), np.array(action.high)
        done = (2 * (logged - low) / (high - low) - 1).astype(np.float32)
    here, following = whole.observation[own].numpy(), whole.following[own].numpy()
    return {
        "observations": np.where(last[:, None], following[at], here[at]).astype(np.float32),
        "actions": done[at] * ~last[:, None],
        "rewards": (whole.reward[own].numpy()[at] * ~last).astype(np.float32),
        "terminals": terminated[at].astype(np.float32),
        "timeouts": last.astype(np.float32),
    }


def train(file: Path, algorithm: str, steps: int) -> None:
    """Train one algorithm on an exported log and keep its greedy policy, and facts once all is done."""
    import d3rlpy
    import torch

    kept = file.with_name(f"{file.stem}-{algorithm}-{steps}.json")
    data = np.load(file)
    discrete = data["actions"].dtype.kind == "i"
    if kept.exists() or ALGORITHMS[algorithm] != discrete:
        return
    facts = json.loads(str(data["facts"]))
    torch.set_num_threads(1)
    d3rlpy.seed(facts["seed"])
    spaces = d3rlpy.constants.ActionSpace
    dataset = d3rlpy.dataset.MDPDataset(
        *(data[name] for name in ("observations", "actions", "rewards", "terminals", "timeouts")),
        action_space=spaces.DISCRETE if discrete else spaces.CONTINUOUS,
        action_size=facts.pop("action_size"),
    )
    learner = getattr(d3rlpy.algos, f"{algorithm}Config")().create(device=False)
    started = time.perf_counter()
    learner.fit(
        dataset,
        n_steps=steps,
        n_steps_per_epoch=steps,
        show_progress=False,
        save_interval=10**9,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )
    seconds = round(time.perf_counter() - started, 1)
    learner.save_policy(str(kept.with_suffix(".pt")))
    facts |= {
        "algorithm": algorithm,
        "version": d3rlpy.__version__,
        "steps": steps,
        "seconds": seconds,
    }
    kept.write_text(json.dumps(facts), encoding="utf-8")
    print(f"{kept.stem}: {seconds} s", flush=True)


def measure(folder: Path, names: list[str] | None) -> None:
    """Add a row for each policy that has none yet, for the tables of `benchmarks.quality.logs.report`."""
    import torch

    from benchmarks.machine import command, commit, keep, machine, read
    from benchmarks.quality.logs import LOGS
    from benchmarks.quality.logs.project import truth, valued
    from benchmarks.quality.logs.report import relative

    torch.set_num_threads(1)
    found = read("logs_peers")
    for file in _chosen(folder, "*.json", names):
        facts = json.loads(file.read_text(encoding="utf-8"))
        key = {name: facts[name] for name in ("log", "people", "seed", "algorithm", "steps")}
        if any(row.items() >= key.items() for row in found):
            continue
        log = LOGS[facts["log"]]
        value = valued(log, act_of(log, file.with_suffix(".pt")))
        gain = relative({"truth": truth(log), "policy": value}, "policy")
        found.append(
            facts
            | value
            | {"gain": gain, "truth": truth(log)}
            | {
                "machine": machine(),
                "commit": commit(),
                "command": command("benchmarks.quality.logs.peers"),
            }
        )
        keep("logs_peers", found)


def act_of(log: "Log", file: Path) -> "Act":
    """A TorchScript policy as the simulators ask it; continuous actions go from [-1, 1] back to the log's bounds."""
    import torch

    from benchmarks.quality.logs.log import Levels

    policy = torch.jit.load(str(file))  # type: ignore[no-untyped-call]

    def act(observed: NDArray[np.float32]) -> NDArray[Any]:
        with torch.no_grad():
            said: NDArray[Any] = policy(torch.from_numpy(observed)).numpy()
        if isinstance(log.action, Levels):
            return said.reshape(len(observed))
        low, high = np.array(log.action.low), np.array(log.action.high)
        action: NDArray[Any] = low + (said.reshape(len(observed), -1) + 1) / 2 * (high - low)
        return action

    return act


if __name__ == "__main__":
    main()
