"""One episode of the final policy as a GIF, where the environment can draw itself."""

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

from primorl.evaluation.returns import as_the_space_has_them, reset_seeds
from primorl.policy.exported import DeterministicPolicy
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
    if not _draws(environment):
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


def _draws(environment: str) -> bool:
    env = environments.make(environment)
    try:
        by_opengl = any(base.__module__.startswith(_OPENGL) for base in type(env.unwrapped).__mro__)
        return "rgb_array" in env.metadata.get("render_modes", ()) and not by_opengl
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
