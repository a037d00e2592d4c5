"""Small files in D4RL's layout, and the package's tables in a folder of its name."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from primorl.config.datasets import D4rlDataset
from primorl.trajectories.storage.schema import trajectory_table
from tests.trajectories.builders import SPACES, dataset

Columns = dict[str, np.ndarray[Any, Any]]
LENGTHS = (4, 1, 3, 2, 5)
TERMINATES = (True, True, False, True, False)


def columns(lengths: tuple[int, ...] = LENGTHS, terminates: tuple[bool, ...] = TERMINATES) -> Columns:
    """All arrays of episodes in Pendulum's spaces, each ended by a terminal or by a timeout."""
    rows = sum(lengths)
    rng = np.random.default_rng(rows)
    last = np.zeros(rows, dtype=bool)
    last[np.cumsum(lengths) - 1] = True
    terminal = np.repeat(terminates, lengths)
    return {
        "observations": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "actions": rng.uniform(-2, 2, (rows, 1)).astype(np.float32),
        "rewards": rng.uniform(-16, 0, rows).astype(np.float32),
        "next_observations": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "terminals": last & terminal,
        "timeouts": last & ~terminal,
        "infos/qpos": rng.normal(size=(rows, 2)),
        "metadata/algorithm": np.array(b"SAC"),
    }


def write(path: Path, content: Columns) -> Path:
    """Write the arrays to a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            file[name] = values
    return path


def expected(content: Columns, horizon: int | None = None) -> pa.Table:
    """Slow and obvious: row by row, as the source's page says."""
    timeouts = content.get("timeouts")
    episodes: list[list[int]] = [[]]
    for row, terminal in enumerate(content["terminals"].ravel()):
        episodes[-1].append(row)
        out_of_time = len(episodes[-1]) == horizon if timeouts is None else bool(timeouts[row])
        if terminal or out_of_time:
            episodes.append([])
    tables = []
    for number, rows in enumerate(episodes):
        ended = bool(rows) and bool(content["terminals"].ravel()[rows[-1]])
        if "next_observations" in content:
            after = {row: content["next_observations"][row] for row in rows}
        else:
            after = {row: content["observations"][row + 1] for row in rows[:-1]}
            if ended:
                after[rows[-1]] = content["observations"][rows[-1]]
        kept = sorted(after)
        for step, row in enumerate(kept):
            last = step == len(kept) - 1
            tables.append(
                trajectory_table(
                    SPACES,
                    [f"{number:09d}"],
                    [f"{number:09d}"],
                    [np.stack([content["observations"][row], after[row]])],
                    [content["actions"][[row]]],
                    [content["rewards"].ravel()[[row]]],
                    [np.array([last and ended])],
                    [np.array([last and not ended])],
                ).set_column(2, "step", pa.array([step], pa.int32()))
            )
    return pa.concat_tables(tables)


def package(folder: Path, url: str) -> Path:
    """The package d4rl as far as it is read; like the real one without MuJoCo 2.1, it cannot be imported."""
    (folder / "d4rl").mkdir(parents=True)
    (folder / "d4rl" / "__init__.py").write_text("raise Exception('no MuJoCo 2.1')\n", encoding="utf-8")
    (folder / "d4rl" / "infos.py").write_text(
        f"DATASET_URLS = {{'tiny-medium-v0': {url!r}, 'tiny-expert-v0': {url!r}}}\n"
        "REF_MIN_SCORE = {}\nREF_MAX_SCORE = {}\n"
        "for name in ('medium',):\n"
        "    REF_MIN_SCORE[f'tiny-{name}-v0'] = -1500.0\n"
        "    REF_MAX_SCORE[f'tiny-{name}-v0'] = -150\n",
        encoding="utf-8",
    )
    return folder


def entry(file: Path | None = None, name: str | None = None, remote: bool = False, **changes: Any) -> D4rlDataset:
    """A dataset."""
    options = {"file": None if file is None else str(file), "name": name, "remote": remote}
    return dataset(D4rlDataset, "d4rl", options, **changes)
