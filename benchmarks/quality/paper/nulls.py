"""What nobody learned: mean returns of uniform actions and of none at all, and a log's returns.

python -m benchmarks.quality.paper.nulls         # the simulators of PriMORL's tables
python -m benchmarks.quality.paper.nulls --log   # data/trajectories, after `dvc repro ingest`
"""

import argparse

import numpy as np
import pyarrow.parquet as pq

from primorl.base.files import TRAJECTORIES
from primorl.config.params import load
from primorl.simulators.environments import make
from research.rows import Row, complete_rows, read

TASKS = {
    "pendulum": "Pendulum-v1",
    "balance": "research.control_suite:primorl/cartpole-balance-v0",
    "swingup": "research.control_suite:primorl/cartpole-swingup-v0",
    "halfcheetah": "HalfCheetah-v5",
}
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def play(environment: str, *, still: bool = False, episodes: int = 30) -> float:
    """Return the mean return of uniform actions, or of ``still`` ones: zeros of a box.

    Args:
        environment: a registered Gymnasium id.
        still: take no action.
        episodes: that are played.
    """
    total = 0.0
    with make(environment) as env:
        env.action_space.seed(0)
        nothing = np.zeros(env.action_space.shape or (), env.action_space.dtype)
        for episode in range(episodes):
            env.reset(seed=episode)
            over = False
            while not over:
                action = nothing if still else env.action_space.sample()
                _, reward, terminated, truncated, _ = env.step(action)
                total += float(reward)
                over = terminated or truncated
    return total / episodes


def read_plays(task: str) -> list[Row]:
    """Read the rows of a task's actions that nobody learned."""
    return [row for row in read("nulls") if row.get("task") == task]


def log_quantiles() -> Row:
    """Return `QUANTILES` of the returns of a simulator's trajectories."""
    rows = pq.read_table(TRAJECTORIES, columns=["trajectory_id", "reward"])
    returns = rows.group_by("trajectory_id").aggregate([("reward", "sum")])["reward_sum"]
    return {"quantiles": np.quantile(returns.to_numpy(), QUANTILES).tolist()}


def main() -> None:
    """Make the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", action="store_true", help="of the project's log")
    if parser.parse_args().log:
        complete_rows("nulls", [{"log": load().dataset}], lambda key: log_quantiles())
        return
    keys = [{"task": task, "still": still} for task in TASKS for still in (True, False)]
    complete_rows(
        "nulls", keys, lambda key: {"return": play(TASKS[key["task"]], still=key["still"])}
    )


if __name__ == "__main__":
    main()
