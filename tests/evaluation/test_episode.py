"""The GIF of an episode: it shows the first evaluated one, is small, and costs the stage nothing where it cannot be."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from PIL import Image

from primorl.evaluation import returns
from primorl.evaluation.returns import log_episode, reset_seeds
from tests.evaluation.conftest import Countdown, random_policy
from tests.pipeline.fakes import FakeRun

DRAWN = "DrawnCountdown-v0"
HEIGHT, WIDTH = 500, 300


class DrawnCountdown(Countdown):
    """A bar as long as what is left."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def render(self) -> Any:
        picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        picture[:, : 40 * self.left] = 255
        return picture


class Broken(DrawnCountdown):
    def render(self) -> Any:
        raise RuntimeError("no display")


@pytest.fixture
def drawn() -> Iterator[str]:
    gymnasium.register(DRAWN, DrawnCountdown)
    yield DRAWN
    del gymnasium.registry[DRAWN]


class Kept(FakeRun):
    """Reads the file while it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.frames: list[Any] = []

    def artifact(self, path: Path) -> None:
        assert path.name == "episode.gif"
        self.size = path.stat().st_size
        with Image.open(path) as picture:
            for number in range(getattr(picture, "n_frames", 1)):
                picture.seek(number)
                self.frames.append(np.asarray(picture.convert("L")))


def test_it_is_the_first_of_the_evaluated_episodes(drawn: str) -> None:
    env = gymnasium.make(drawn)
    (left, _), _ = env.reset(seed=reset_seeds(3, 9)[0])
    log = Kept()
    log_episode(log, drawn, random_policy(3, 2, 1.0), 3, None)
    assert len(log.frames) == left + 1, "after the reset and after each step"
    assert log.frames[0].shape == (167, 100), "small"
    shown = [float((frame > 128).mean()) * WIDTH / 40 for frame in log.frames]
    np.testing.assert_allclose(shown, np.arange(left, -1, -1), atol=0.15)


def test_an_episode_ends_at_the_declared_horizon_and_has_few_frames(
    drawn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frames(limit: int | None) -> int:
        log = Kept()
        log_episode(log, drawn, random_policy(1, 2, 1.0), 3, limit)
        return len(log.frames)

    assert frames(1) == 2
    monkeypatch.setattr(returns, "_MOST_FRAMES", 3)
    assert frames(None) == 3
    monkeypatch.setattr(returns, "_MOST_DRAWN", 2)
    assert frames(5) == 3, "the first state, that after three steps and the last"


def test_what_cannot_draw_or_draws_too_much_logs_nothing(
    countdown: str, drawn: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = Kept()
    log_episode(log, countdown, random_policy(1, 2, 1.0), 4, None)
    with monkeypatch.context() as patched:
        patched.setattr(returns, "_OPENGL", (__name__,))
        log_episode(log, drawn, random_policy(1, 2, 1.0), 4, None)
    with monkeypatch.context() as patched:
        patched.setattr(returns, "_MOST_BYTES", 10)
        log_episode(log, drawn, random_policy(1, 2, 1.0), 4, None)
    assert capfd.readouterr() == ("", "")
    gymnasium.registry[drawn].entry_point = Broken
    log_episode(log, drawn, random_policy(1, 2, 1.0), 4, None)
    assert capfd.readouterr().err == f"note: episode.gif: {drawn} cannot be drawn here (RuntimeError)\n"
    assert log.size == 0
