"""A log of two recorded policies in equal parts, as D4RL's medium-expert sets are: one of half the
return of the other.

TD3 is trained once (Fujimoto et al. 2018). The medium policy is its first with at least half of the
last one's return. Episodes are recorded with a little noise in the actions, and become two of
Minari's datasets, which `datasets/halfcheetah-two-policies.yaml` names.

python -m research.two_policies --root FOLDER
"""

from primorl.simulators.environments import make  # before Stable-Baselines3, which imports Gym

# isort: split
import argparse
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import minari
import numpy as np
import torch
from minari.data_collector import EpisodeBuffer
from stable_baselines3 import TD3
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from primorl.base.processes import environment as variables
from primorl.data.sources.recording import Recorder

ENVIRONMENT = "HalfCheetah-v5"
STEPS, UPDATES, EVERY = 300_000, 4, 50_000
"""Of the training, updates in ten steps, and steps between two policies that are looked at."""
EPISODES, TOGETHER, NOISE = 1_000, 20, 0.1
LOOKED_AT = 5  # episodes


def record(policy: Any, episodes: int, seed: int) -> list[EpisodeBuffer]:
    """Record episodes of a policy, with noise in its actions."""
    ended: list[EpisodeBuffer] = []
    count = min(TOGETHER, episodes)
    envs = DummyVecEnv([lambda: Recorder(make(ENVIRONMENT), ended)] * count)
    envs.seed(seed)
    seen, drawn = envs.reset(), np.random.default_rng(seed)
    while len(ended) < episodes:
        actions, _ = policy.predict(seen, deterministic=True)
        noisy = actions + NOISE * drawn.standard_normal(actions.shape)
        seen, _, _, _ = envs.step(np.clip(noisy, -1.0, 1.0).astype(np.float32))
    return ended[:episodes]


def mean_return(episodes: list[EpisodeBuffer]) -> float:
    """Average the returns of episodes."""
    return float(np.mean([np.sum(episode.rewards) for episode in episodes]))


def train() -> list[tuple[float, dict[str, Any]]]:
    """Train, and keep every policy that is looked at with its return."""
    envs = DummyVecEnv([partial(make, ENVIRONMENT)] * 10)
    size = envs.action_space.shape or ()
    learner = TD3(
        "MlpPolicy",
        envs,
        learning_starts=10_000,
        gradient_steps=UPDATES,
        policy_kwargs={"net_arch": [256, 256]},
        action_noise=NormalActionNoise(np.zeros(size), np.full(size, NOISE)),
        seed=0,
        device="cpu",
    )
    found = []
    for done in range(EVERY, STEPS + 1, EVERY):
        learner.learn(EVERY, reset_num_timesteps=False)
        value = mean_return(record(learner.policy, LOOKED_AT, 10_000))
        weights = {name: part.clone() for name, part in learner.policy.state_dict().items()}
        found.append((value, weights))
        print(f"{done} steps: return {value:.0f}", flush=True)
    return found


def main() -> None:
    """Train, record both halves, and print their mean returns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True, help="folder of Minari datasets")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = train()
    last = found[-1][0]
    medium = next(each for each in found if each[0] >= last / 2)
    arguments.root.mkdir(parents=True, exist_ok=True)
    policy = TD3("MlpPolicy", make(ENVIRONMENT), policy_kwargs={"net_arch": [256, 256]}).policy
    with (
        variables({"MINARI_DATASETS_PATH": str(arguments.root.resolve())}),
        warnings.catch_warnings(),
        make(ENVIRONMENT) as env,
    ):
        warnings.simplefilter("ignore")  # Minari asks for authors and links
        for name, (_, weights) in {"medium": medium, "expert": found[-1]}.items():
            policy.load_state_dict(weights)
            episodes = record(policy, EPISODES, 20_000 + EPISODES * (name == "expert"))
            minari.create_dataset_from_buffers(
                f"two-policies/{name}-v0",
                episodes,
                algorithm_name="TD3",
                data_format="hdf5",
                observation_space=env.observation_space,
                action_space=env.action_space,
            )
            value = mean_return(episodes)
            print(f"{name}: {EPISODES} episodes, mean return {value:.0f}", flush=True)


if __name__ == "__main__":
    main()
