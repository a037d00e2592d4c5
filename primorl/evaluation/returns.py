"""Episodes in the true environment: returns of many policies side by side, and a GIF of one where it can be drawn."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.error import DependencyNotInstalled
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from primorl.policy.exported import DeterministicPolicy
from primorl.project.errors import PipelineError
from primorl.project.logs import Log
from primorl.simulators import environments

Frame = npt.NDArray[np.uint8]

NAME = "episode.gif"
_OPENGL = ("gymnasium.envs.mujoco.", "shimmy.")  # they draw by OpenGL, which few servers have and which fails loudly
# pygame needs neither a display nor a loudspeaker for this, and would complain where there is none.
_QUIET = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
_MOST_DRAWN = 250  # states; each takes some milliseconds
_MOST_FRAMES, _MOST_PIXELS, _COLOURS = 100, 240, 32
_SECONDS = 6.0  # that a whole episode of as many frames takes to watch
_MOST_BYTES = 2_000_000
_ENVIRONMENTS_AT_ONCE = 256


def episode_returns(
    environment_id: str, policy: DeterministicPolicy, episodes: int, seed: int, limit: int | None = None
) -> npt.NDArray[np.float64]:
    """Undiscounted returns of whole episodes, from reset to termination or truncation.

    Episode e starts from the same reset seed for every policy (common random numbers: differences between
    policies are not differences between starts), and from the same one whatever ``episodes`` is.

    Args:
        environment_id: a registered Gymnasium id.
        policy: P policies.
        episodes: E, of each policy.
        seed: of the environments' resets.
        limit: steps after which an episode counts as over; None: the environment's own limit.

    Returns:
        ``[P, E]``.

    Raises:
        PipelineError: the environment cannot be built, its spaces are not the policy's, or nothing says that its
            episodes end.
    """
    seeds = reset_seeds(seed, episodes)
    at_once = min(episodes, max(1, _ENVIRONMENTS_AT_ONCE // policy.policies))
    envs = _build(environment_id, policy, limit, policy.policies * at_once)
    try:
        parts = [_returns(envs, policy, seeds[start : start + at_once], limit) for start in range(0, episodes, at_once)]
    finally:
        envs.close()
    return np.concatenate(parts, axis=1)


def reset_seeds(seed: int, episodes: int) -> list[int]:
    """The seed of each episode's reset; that of an episode is the same however many there are."""
    return [int(drawn) for drawn in np.random.SeedSequence(seed).generate_state(episodes)]


def _returns(
    envs: SyncVectorEnv, policy: DeterministicPolicy, seeds: list[int], limit: int | None
) -> npt.NDArray[np.float64]:
    """Returns ``[P, len(seeds)]`` of one batch; the environments left over in a last, smaller batch run idle."""
    count = envs.num_envs // policy.policies
    alive = np.tile(np.arange(count) < len(seeds), policy.policies)
    resets: list[int | None] = [*seeds, *seeds[:1] * (count - len(seeds))]
    observations, _ = envs.reset(seed=resets * policy.policies)
    totals, steps = np.zeros(envs.num_envs), 0
    while alive.any() and steps != limit:
        batch = torch.as_tensor(observations, dtype=torch.float32).view(policy.policies, count, -1)
        actions = as_the_space_has_them(policy.act(batch).flatten(0, 1), envs.single_action_space)
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        totals[alive] += rewards[alive]
        alive = alive & ~(terminated | truncated)  # the next episode of a finished environment counts for nothing
        steps += 1
    return totals.reshape(policy.policies, count)[:, : len(seeds)]


def as_the_space_has_them(actions: Tensor, space: Any) -> npt.NDArray[Any]:
    """Vectors of a box as they are, one-hot ones ``[B, A]`` as the numbers of the actions, ``[B]``."""
    plain: npt.NDArray[Any] = actions.numpy()
    if isinstance(space, Discrete):
        plain = plain.argmax(axis=1) + space.start
    return plain.astype(space.dtype, copy=False)


def _build(environment_id: str, policy: DeterministicPolicy, limit: int | None, count: int) -> SyncVectorEnv:
    envs = SyncVectorEnv([lambda: environments.make(environment_id)] * count, autoreset_mode=AutoresetMode.NEXT_STEP)
    observation, action, spec = envs.single_observation_space, envs.single_action_space, envs.envs[0].spec
    actions = f"{action.n} discrete actions" if isinstance(action, Discrete) else f"actions of shape {action.shape}"
    expected = f"actions of shape {(policy.action_size,)}"
    if policy.discrete_actions:
        expected = f"{policy.action_size} discrete actions"
    wrong = None
    if observation.shape != (policy.observation_size,) or actions != expected:
        wrong = (
            f"found observations of shape {observation.shape} and {actions}, the policy was trained for observations "
            f"of shape {(policy.observation_size,)} and {expected}; evaluate in the environment of its dataset"
        )
    elif limit is None and (spec is None or spec.max_episode_steps is None):
        wrong = "its episodes have no step limit and may never end; declare one, datasets/NAME.yaml: horizon"
    if wrong is not None:
        envs.close()
        raise PipelineError(f"environment {environment_id!r}: {wrong}")
    return envs


def log_episode(log: Log, environment: str, policy: DeterministicPolicy, seed: int, limit: int | None) -> None:
    """Log the first of the episodes that `episode_returns` measures, as ``episode.gif``.

    It is simulated, and so says no more about the data than the policy does. Where the environment draws nothing, or
    what it draws with is not installed, nothing is logged.

    Args:
        log: the run.
        environment: a registered Gymnasium id.
        policy: P policies; the first is shown.
        seed: of the environments' resets.
        limit: steps after which the episode counts as over; None: the environment's own limit.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        frames = list(_frames(environment, policy.one(0), reset_seeds(seed, 1)[0], limit))
    except DependencyNotInstalled:
        return
    except Exception as broken:  # a picture must not cost the stage, whatever a simulator's drawing raises
        print(f"note: {NAME}: {environment} cannot be drawn here ({type(broken).__name__})", file=sys.stderr)
        return
    with TemporaryDirectory() as folder:
        if frames and _write(Path(folder) / NAME, frames):
            log.artifact(Path(folder) / NAME)


def _frames(environment: str, policy: DeterministicPolicy, seed: int, limit: int | None) -> Iterator[Frame]:
    """Pictures ``[height, width, 3]`` of an episode, its first and last state among them; none if it cannot draw.

    Where an episode may have more than 250 steps, some of those between are left out.
    """
    env = environments.make(environment)
    by_opengl = any(base.__module__.startswith(_OPENGL) for base in type(env.unwrapped).__mro__)
    env.close()
    if by_opengl or "rgb_array" not in env.metadata.get("render_modes", ()):
        return
    env = environments.make(environment, render_mode="rgb_array")
    try:
        most = limit or (env.spec.max_episode_steps if env.spec else None) or 1
        every = -(-most // _MOST_DRAWN)
        observation, _ = env.reset(seed=seed)
        yield _drawn(env)
        ended, steps = False, 0
        while not ended and steps != limit:
            batch = torch.as_tensor(observation, dtype=torch.float32).view(1, 1, -1)
            action = as_the_space_has_them(policy.act(batch)[0], env.action_space)[0]
            observation, _, terminated, truncated, _ = env.step(action)
            ended, steps = terminated or truncated, steps + 1
            if ended or steps == limit or steps % every == 0:
                yield _drawn(env)
    finally:
        env.close()


def _drawn(env: gymnasium.Env[Any, Any]) -> Frame:
    """A small picture of the present state."""
    picture = np.asarray(env.render(), np.uint8)
    step = -(-max(picture.shape[:2]) // _MOST_PIXELS)
    return picture[::step, ::step]


def _write(path: Path, frames: list[Frame]) -> bool:
    """Write at most 100 of the frames, evenly spaced, as a GIF; False if it is large."""
    from PIL import Image

    chosen = np.unique(np.linspace(0, len(frames) - 1, _MOST_FRAMES).astype(int))
    pictures = [Image.fromarray(frames[place]).quantize(_COLOURS) for place in chosen]
    each = int(1000 * _SECONDS / _MOST_FRAMES)
    pictures[0].save(path, "GIF", save_all=True, append_images=pictures[1:], duration=each, loop=0)
    return path.stat().st_size <= _MOST_BYTES
