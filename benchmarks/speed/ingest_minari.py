"""Ingest of a Minari dataset in HDF5: the whole of `primorl.trajectories.ingestion.ingest` beside Minari's iteration.

python -m benchmarks.speed.ingest_minari [--episodes 30000] [--steps 1000] [--peer-episodes 3000] [--folder DIR]
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import minari
import numpy as np
from gymnasium.spaces import Box
from minari import MinariDataset as PeerDataset
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from benchmarks.machine import machine, write
from primorl.config.datasets import MinariDataset, checked
from primorl.trajectories.ingestion import ingest

OBSERVATION, ACTION, DATASET = 5, 1, "bench-v0"
_EPISODES_PER_WRITE = 250
_ENTRY = {
    "source": "minari",
    "environment": None,
    "unit": "trajectory",
    "horizon": None,
    "termination": "none",
    "ingestion": {},
    "options": {"root": None, "remote": False, "parts": [{"id": DATASET, "filter": None}]},
    "bounds": {"observation": "public", "reward": "public"},
    "score": None,
    "suggested": {"partition": {}, "privacy": {}, "dynamics": {}, "behaviour": {}, "policy": {}, "evaluation": {}},
}


def main() -> None:
    """Write the file, ingest it in a process of its own, read a part of it as Minari does, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=30_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--peer-episodes", type=int, default=3_000, help="how many Minari iterates over")
    parser.add_argument("--folder", type=Path, default=None, help="where the files go (about 3 GB); default: temporary")
    parser.add_argument("--ingest", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ingest is not None:
        _ingest(arguments.ingest)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        _record(folder / "raw" / DATASET / "data", arguments.episodes, arguments.steps)
        command = [sys.executable, "-m", "benchmarks.speed.ingest_minari", "--ingest", str(folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds, gigabytes = (float(word) for word in done.stdout.split())
        peer = _iterate(folder / "raw" / DATASET / "data", min(arguments.peer_episodes, arguments.episodes))
    rows = arguments.episodes * arguments.steps
    of = f"{arguments.episodes} x {arguments.steps}, observation {OBSERVATION}, action {ACTION}"
    common = {
        "machine": machine(),
        "command": "python -m benchmarks.speed.ingest_minari "
        f"--episodes {arguments.episodes} --steps {arguments.steps}",
    }
    write(
        "ingest_minari",
        [
            {
                "what": f"ingest from Minari HDF5, {of}",
                "ours": rows / seconds,
                "peer": peer,
                "peer_name": f"Minari's iterate_episodes over {arguments.peer_episodes} of them: reading alone",
                "ratio": rows / seconds / peer,
                "unit": "transitions/s",
                **common,
            },
            {
                "what": f"peak memory of that ingest, {of}",
                "ours": gigabytes,
                "peer": None,
                "peer_name": None,
                "ratio": None,
                "unit": "GB",
                **common,
            },
        ],
    )


def _record(data: Path, episodes: int, steps: int) -> None:
    """Have Minari write truncated episodes of normal numbers, some hundreds at a time."""
    data.mkdir(parents=True)
    storage = MinariStorage.new(
        data.resolve(),
        observation_space=Box(-np.inf, np.inf, (OBSERVATION,), np.float32),
        action_space=Box(-1, 1, (ACTION,), np.float32),
        data_format="hdf5",
    )
    storage.update_metadata({"dataset_id": DATASET, "minari_version": minari.__version__})
    rng = np.random.default_rng(0)
    last = np.arange(steps) == steps - 1
    for first in range(0, episodes, _EPISODES_PER_WRITE):
        storage.update_episodes(
            EpisodeBuffer(
                observations=rng.standard_normal((steps + 1, OBSERVATION), dtype=np.float32),
                actions=rng.uniform(-1, 1, (steps, ACTION)).astype(np.float32),
                rewards=rng.standard_normal(steps),
                terminations=np.zeros(steps, dtype=bool),
                truncations=last,
            )
            for _ in range(min(_EPISODES_PER_WRITE, episodes - first))
        )


def _ingest(folder: Path) -> None:
    started = time.perf_counter()
    ingest(folder / "raw", folder / "trajectories", "bench", checked(MinariDataset, _ENTRY))
    seconds = time.perf_counter() - started
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)


def _iterate(data: Path, episodes: int) -> float:
    """Transitions a second."""
    dataset = PeerDataset(data)
    started = time.perf_counter()
    rows = sum(len(episode) for episode in dataset.iterate_episodes(range(episodes)))
    return rows / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
