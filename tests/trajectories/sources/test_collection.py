import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise

from primorl.config.datasets import ReplayOptions, checked
from primorl.project.errors import PipelineError
from primorl.trajectories.sources.replay.collection import _Noise, record_training
from tests.trajectories.builders import snapshot


def options(**changes: Any) -> ReplayOptions:
    small = {
        "backend": "gymnasium",
        "algorithm": "ddpg",
        "episodes": 5,
        "runs": 1,
        "num_envs": 3,
        "gradient_steps": 1,
        "learning_starts": 450,
        "hidden": [8],
        "learning_rate": 0.001,
        "action_noise": 0.2,
        "seed": 0,
    }
    return checked(ReplayOptions, small | changes)


def recorded(folder: str, name: str = "x-v0") -> list[minari.EpisodeData]:
    return list(minari.MinariDataset(f"{folder}/{name}/data").iterate_episodes())


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac"])
def test_every_recorded_transition_obeys_the_pendulum(project: Path, algorithm: str) -> None:
    """Replaying the equations of motion on every transition, the last ones included, proves the record true."""
    record_training("Pendulum-v1", options(algorithm=algorithm), Path("raw"), "x-v0")
    episodes = recorded("raw")
    assert len(episodes) == 5
    assert minari.MinariDataset("raw/x-v0/data").spec.env_spec.id == "Pendulum-v1"
    starts = []
    for episode in episodes:
        assert len(episode.rewards) == 200
        assert episode.truncations.tolist() == [False] * 199 + [True]
        assert not episode.terminations.any()
        cosine, sine, velocity = episode.observations.astype(float).T
        force = episode.actions[:, 0].astype(float)
        assert (np.abs(force) <= 2).all()
        angle = np.arctan2(sine, cosine)
        after = np.clip(velocity[:-1] + (15 * sine[:-1] + 3 * force) * 0.05, -8, 8)
        assert np.allclose(velocity[1:], after, atol=1e-5)
        moved = angle[:-1] + after * 0.05
        assert np.allclose(cosine[1:], np.cos(moved), atol=1e-5)
        assert np.allclose(sine[1:], np.sin(moved), atol=1e-5)
        cost = angle[:-1] ** 2 + 0.1 * velocity[:-1] ** 2 + 0.001 * force**2
        near_pi = np.abs(angle[:-1]) > np.pi - 1e-3  # float32 may have turned +pi into -pi: the same cost
        assert np.allclose(episode.rewards[~near_pi], -cost[~near_pi], atol=1e-4)
        assert abs(velocity[0]) <= 1  # a reset draws it from [-1, 1]
        starts.append(tuple(episode.observations[0]))
    assert len(set(starts)) == 5


def test_the_seed_repeats_the_data_and_another_does_not(project: Path) -> None:
    """Everything but noise and cohorts is reproducible; the data must not depend on who collected it."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        record_training("Pendulum-v1", options(seed=seed, episodes=3), Path(name), "x-v0")
    first, again, other = (np.stack([e.observations for e in recorded(name)]) for name in "abc")
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_runs_side_by_side_are_those_done_one_by_one(project: Path) -> None:
    """Which process ends first must not show: runs of 3 and 2 episodes, in order, with seeds of their own."""
    record_training("Pendulum-v1", options(runs=2, num_envs=2), Path("together"), "x-v0")
    assert [path.name for path in Path("together").iterdir()] == ["x-v0"]
    together = recorded("together")
    assert [e.id for e in together] == list(range(5))
    alone = []
    for run, episodes in enumerate((3, 2)):
        record_training("Pendulum-v1", options(num_envs=2, episodes=episodes, seed=2 * run), Path(f"{run}"), "x-v0")
        alone += recorded(f"{run}")
    for one, other in zip(together, alone, strict=True):
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.actions, other.actions)
    assert len({tuple(e.observations[0]) for e in together}) == 5
    dataset = minari.MinariDataset("together/x-v0/data")
    assert (dataset.total_episodes, dataset.total_steps) == (5, 1000)


def test_a_box_of_discrete_actions_is_learned_by_dqn(project: Path) -> None:
    """Episodes of many lengths that terminate; actions come out as whole numbers."""
    record_training("CartPole-v1", options(algorithm="dqn", episodes=30, learning_starts=100), Path("raw"), "x-v0")
    episodes = recorded("raw")
    assert len({len(e.rewards) for e in episodes}) > 5
    for episode in episodes:
        assert set(episode.actions.tolist()) <= {0, 1}
        assert episode.actions.shape == episode.rewards.shape
        assert episode.terminations[-1]
        assert (np.abs(episode.observations[:-1, 2]) <= 0.2095).all()
        last = episode.observations[-1]
        assert abs(last[2]) > 0.2094 or abs(last[0]) > 2.4


def test_dm_control_by_its_name_and_both_backends_keep_the_same_columns(project: Path) -> None:
    """Position (x, cos, sin), then velocity, in both: were the order another, envpool's data would be nonsense."""
    pytest.importorskip("dm_control")
    backends = ["gymnasium"]
    try:
        import envpool  # noqa: F401

        backends.append("envpool")
    except ImportError:
        pass
    for backend in backends:
        small = options(backend=backend, episodes=1, num_envs=1, learning_starts=990)
        record_training("dm_control/cartpole-swingup-v0", small, Path(backend), "x-v0")
        for episode in recorded(backend):
            x, cosine, sine, velocity, spin = episode.observations.astype(float).T
            assert len(episode.rewards) == 1000
            assert episode.truncations[-1]
            assert not episode.terminations.any()
            assert np.allclose(cosine**2 + sine**2, 1, atol=1e-4)
            angle = np.unwrap(np.arctan2(sine, cosine))
            for place, speed in ((x, velocity), (angle, spin)):  # the median: at the rail's end a speed jumps
                moved = 0.01 * (speed[1:] + speed[:-1]) / 2
                assert np.median(np.abs(np.diff(place) - moved)) < 0.02 * np.median(np.abs(moved))
            assert episode.observations.dtype == np.float32


@pytest.mark.parametrize(
    ("environment", "changes", "message"),
    [
        ("Pendulum-v77", {}, "environment 'Pendulum-v77': Gymnasium cannot build it"),
        ("no_such_module:Thing-v0", {}, "environment 'no_such_module:Thing-v0': Gymnasium cannot build it"),
        ("CartPole-v1", {}, "options.algorithm: found 'ddpg', but the actions of 'CartPole-v1' are discrete"),
        ("Pendulum-v1", {"algorithm": "dqn"}, "allowed is ddpg, td3 or sac"),
        ("tests/Unbounded-v0", {}, "found an action space without finite bounds"),
        ("Acrobot-v1", {"algorithm": "dqn", "backend": "envpool"}, "set backend: gymnasium"),
    ],
)
def test_unfit_environments_are_refused(project: Path, environment: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError) as wrong:
        record_training(environment, options(**changes), Path("raw"), "x-v0")
    assert message in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert snapshot(project) == {}


@pytest.mark.parametrize(
    ("environment", "module", "backend", "extra"),
    [
        ("dm_control/cartpole-swingup-v0", "dm_control", "gymnasium", "dm-control"),
        ("HalfCheetah-v5", "mujoco", "gymnasium", "mujoco"),
        ("Pendulum-v1", "envpool", "envpool", "envpool"),
    ],
)
def test_a_missing_extra_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, environment: str, module: str, backend: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(PipelineError, match=re.escape(f"pip install primorl[{extra}]")) as wrong:
        record_training(environment, options(backend=backend), Path("raw"), "x-v0")
    assert "\n" not in str(wrong.value)


class Unbounded(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))


gymnasium.register("tests/Unbounded-v0", Unbounded)


LONG = """
import sys
from pathlib import Path
from tests.trajectories.sources.test_collection import options, record_training
if __name__ == "__main__":
    record_training("Pendulum-v1", options(runs=2, episodes=100_000, learning_starts=10**9), Path("raw"), "x-v0")
"""


@pytest.mark.parametrize("victim", ["a run", "the stage"])
def test_killed_runs_are_one_error_and_an_orphaned_run_ends(project: Path, victim: str) -> None:
    """A run that memory's end kills must not hang the stage; a killed stage must not leave runs behind."""
    Path("long.py").write_text(LONG)
    stage = subprocess.Popen(
        [sys.executable, "long.py"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    runs = _runs_of(stage.pid)
    assert len(runs) == 2
    os.kill(runs[0] if victim == "a run" else stage.pid, signal.SIGKILL)
    _, errors = stage.communicate(timeout=30)  # the runs have this pipe too: it closes when all have ended
    assert ("PipelineError: a behaviour run's process was killed" in errors) == (victim == "a run")


def _runs_of(stage: int) -> list[int]:
    """The stage's processes that record, once both have begun."""
    deadline = time.monotonic() + 60
    while len(list(Path(".primorl/collect").glob("x-v0/*/[01]"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = Path(f"/proc/{stage}/task/{stage}/children").read_text().split()
    return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


def test_noise_drawn_at_once_is_that_of_stable_baselines3() -> None:
    """A faster way to the same data, not to other data."""
    theirs = VectorizedActionNoise(NormalActionNoise(np.zeros(2), np.full(2, 0.3)), 5)
    ours = _Noise(0.3, 2, 5)
    np.random.seed(0)
    expected = [theirs() for _ in range(3)]
    np.random.seed(0)
    assert np.array_equal(expected, [ours() for _ in range(3)])
