"""Mean returns of actions that nobody learned: uniform ones, and none at all.

python -m research.nulls research.control_suite:primorl/cartpole-swingup-v0 HalfCheetah-v5
"""

import sys

import numpy as np

from primorl.simulators.environments import make


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


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: none {play(name, still=True):.1f}, uniform {play(name):.1f}")
