"""What the mean action of a clone returns before any private round, by the size of its network.

    python -m benchmarks.quality.clone_sizes --project FOLDER --hidden 32 --hidden 256 256

FOLDER is a project whose dataset has a simulator and whose partitions are made. Only the public split is read, and
nothing is charged. Each size is trained as the stage `clone_behaviour` begins (`primorl.training.public_start`).
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import torch

from primorl.config.params import load
from primorl.evaluation.returns import episode_returns
from primorl.project.paths import PARTITIONS
from primorl.setup.clone_work import cloning_setup
from primorl.setup.model_files import behaviour_policy
from primorl.setup.partitions import Partitions


def main() -> None:
    """Print one line for each size and bounds of the log-variance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--hidden", type=int, nargs="+", action="append", required=True)
    parser.add_argument("--bounds", type=float, nargs=2, default=[-5.0, 1.0], help="of the log-variance")
    parser.add_argument("--episodes", type=int, default=10)
    given = parser.parse_args()
    os.chdir(given.project)
    torch.set_num_threads(1)
    params, partitions = load(), Partitions.open(PARTITIONS)
    environment = params.chosen.environment
    if environment is None:
        parser.error(f"dataset {params.dataset} has no environment")
    for hidden in given.hidden:
        low, high = given.bounds
        # Any ε will do: it sets the noise of the rounds, and none is made.
        asked = replace(params.behaviour, target_epsilon=1.0, hidden=tuple(hidden), log_variance_bounds=(low, high))
        begun = time.perf_counter()
        setup = cloning_setup(replace(params, behaviour=asked), partitions.manifest, partitions.public)
        seconds = time.perf_counter() - begun
        if setup.start is None or setup.architecture.discrete_actions:
            parser.error(f"{params.dataset}: needs a public start, and actions in a box")
        rows = setup.public_of(partitions.public.flat())
        clone = behaviour_policy(
            setup.architecture, setup.first_weights(), setup.make_normaliser(rows, {}), setup.bounds
        )
        returns = episode_returns(environment, clone.policy, given.episodes, 1000)
        std = clone.mean_and_std(rows[0])[1].mean()
        print(
            f"{hidden}: return {returns.mean():.0f} ± {returns.std():.0f}, std {std:.2f}, {seconds:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
