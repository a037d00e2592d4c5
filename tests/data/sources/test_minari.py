import json
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from minari.data_collector import EpisodeBuffer

from primorl.base import PipelineError
from primorl.config.datasets import MinariDataset
from primorl.data import sources as batching
from primorl.data.sources import source_of
from primorl.data.sources.minari import flatten_observations as flatten_rows
from primorl.data.storage.schema import vectors
from primorl.simulators.environments import make
from tests.data.builders import PENDULUM, collected, create, dataset, episode, ingested, made

FORMATS = ("hdf5", "arrow", "parquet")
# Every kind of space that flattens.
ARM = Tuple((Box(-1, 1, (1,), np.float64), MultiBinary(2)))
NUMBERS: dict[str, Space[Any]] = {
    "velocity": Box(-9, 9, (2,), np.float32),
    "grid": Box(0, 255, (2, 2), np.uint8),
}
MIXED = Dict(NUMBERS | {"colour": Discrete(3, start=1), "arm": ARM, "dials": MultiDiscrete([2, 3])})
CHOICES = Discrete(4)
SPACES: dict[str, Any] = {"observation_space": MIXED, "action_space": CHOICES}


def mixed_episode(steps: int, seed: int) -> EpisodeBuffer:
    """T = ``steps`` random transitions of `MIXED` and `CHOICES`."""
    rng = np.random.default_rng([steps, seed])
    rows = steps + 1
    last = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        seed=seed,
        observations={
            "velocity": rng.uniform(-9, 9, (rows, 2)).astype(np.float32),
            "grid": rng.integers(0, 256, (rows, 2, 2), dtype=np.uint8),
            "colour": rng.integers(1, 4, rows),
            "arm": (rng.uniform(-1, 1, (rows, 1)), rng.integers(0, 2, (rows, 2), dtype=np.int8)),
            "dials": rng.integers(0, (2, 3), (rows, 2)),
        },
        actions=rng.integers(0, 4, steps),
        rewards=rng.normal(size=steps),
        terminations=last & (seed % 2 == 0),
        truncations=last & (seed % 2 == 1),
    )


def flattened(mixed: EpisodeBuffer) -> np.ndarray[Any, Any]:
    """The observations of a `mixed_episode` as Gymnasium itself flattens them, [T + 1, S]."""
    assert isinstance(mixed.observations, dict)
    whole = mixed.observations | {"arm": list(zip(*mixed.observations["arm"], strict=True))}
    rows = [{key: whole[key][i] for key in MIXED.spaces} for i in range(len(mixed.rewards) + 1)]
    flat = [np.asarray(gymnasium.spaces.flatten(MIXED, row)) for row in rows]
    return np.stack(flat).astype(np.float32)


def entry(
    *parts: str, root: Path | None = None, remote: bool = False, **changes: Any
) -> MinariDataset:
    """A dataset without an environment, of parts by their ids."""
    options = {"root": None if root is None else str(root), "remote": remote, "parts": parts}
    plain = {"environment": None, "bounds": {"observation": "public", "reward": "public"}} | changes
    return dataset(MinariDataset, "minari", options, **plain)


def refused(chosen: MinariDataset, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as wrong:
        ingested(chosen)
    assert not any(word in str(wrong.value) for word in ("\n", "71"))


@pytest.mark.parametrize("data_format", FORMATS)
def test_every_format_gives_the_rows_that_were_written(project: Path, data_format: str) -> None:
    content = [mixed_episode(1 + 2 * i, seed=i) for i in range(4)]
    create(project / "minari", "tiny-v0", content, data_format, **SPACES)
    table = ingested(collected(entry("tiny-v0", root=project / "minari")))
    flat = [flattened(one) for one in content]
    written = {
        "observation": [rows[:-1] for rows in flat],
        "next_observation": [rows[1:] for rows in flat],
        "action": [one.actions for one in content],
        "terminated": [one.terminations for one in content],
        "truncated": [one.truncations for one in content],
        "reward": [np.float32(one.rewards) for one in content],
    }
    for name, rows in written.items():
        found = vectors(table[name]) if "observation" in name else table[name]
        np.testing.assert_array_equal(found, np.concatenate(rows))
    spaces = made().info.spaces
    assert (spaces.discrete_actions, spaces.action_size) == (True, int(CHOICES.n))
    whole = gymnasium.spaces.flatten_space(MIXED)
    assert isinstance(whole, Box)
    assert len(spaces.one_hot) == 3  # the colour and the dials
    bounds = spaces.observation_low, spaces.observation_high
    assert bounds == (tuple(whole.low), tuple(whole.high))
    assert {"colour=3", "grid_3", "dials_1=2", "arm/0"} < set(spaces.observation_names)


class Ordered(gymnasium.Env[Any, Any]):
    """An environment whose observation has its entries in another order than the dataset and the
    alphabet.
    """

    observation_space = Dict(
        OrderedDict(b=Box(-1, 1, (1,), np.float32), c=Discrete(2), a=Box(-1, 1, (2,), np.float32))
    )
    action_space = Box(-2, 2, (1,), np.float32)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        parts = {"b": np.array([0.25], np.float32), "a": np.array([0.5, 0.75], np.float32)}
        return parts | {"c": np.int64(1)}, {}


def test_a_dicts_entries_come_in_the_order_in_which_a_policy_meets_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Ordered-v0", entry_point=lambda **_: Ordered())
    monkeypatch.setitem(gymnasium.registry, "Ordered-v0", spec)
    first, _ = Ordered().reset()
    observations = {key: np.stack([first[key]] * 3) for key in "abc"}
    content = replace(episode(2, 0), observations=observations)
    spaces = dict(PENDULUM)
    spaces["observation_space"] = Dict({key: Ordered.observation_space[key] for key in "abc"})
    create(project / "minari", "o-v0", [content], **spaces)
    chosen = entry("o-v0", root=project / "minari", environment="Ordered-v0", horizon=2)
    table = ingested(collected(chosen))
    np.testing.assert_array_equal(vectors(table["observation"])[0], make("Ordered-v0").reset()[0])
    longer = observations | {"c": np.stack([first["c"]] * 4)}
    with pytest.raises(ValueError, match="rows"):  # and not cut to the shortest
        flatten_rows(spaces["observation_space"], longer)


def test_a_mixture_keeps_its_parts_apart(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_ROWS_PER_BATCH", 4)
    medium, expert = ([episode(1 + i, seed=i + shift) for i in range(4)] for shift in (0, 10))
    create(project / "minari", "hop/medium-v0", medium, **PENDULUM)
    create(project / "minari", "hop/expert-v0", expert, "parquet", **PENDULUM)
    chosen = entry("hop/medium-v0", "hop/expert-v0", root=project / "minari")
    table = ingested(collected(chosen))
    names = [f"hop/{name}-v0/{i:09d}" for name in ("expert", "medium") for i in range(4)]
    assert list(dict.fromkeys(table["trajectory_id"].to_pylist())) == names
    expected = np.concatenate([one.observations[:-1] for one in (*expert, *medium)])
    np.testing.assert_array_equal(vectors(table["observation"]), expected)


def exchange(name: str, values: Any) -> Any:
    def change(file: h5py.File) -> None:
        del file[f"episode_1/{name}"]
        if values is not None:
            file[f"episode_1/{name}"] = values

    return change


@pytest.mark.parametrize(
    "damage",
    [
        exchange("observations", np.zeros((4, 4))),
        exchange("truncations", None),
        lambda file: file.pop("episode_1"),
    ],
)
def test_a_damaged_episode_is_named(project: Path, damage: Any) -> None:
    create(project / "minari", "tiny-v0", [episode(3, i) for i in range(3)], **PENDULUM)
    chosen = collected(entry("tiny-v0", root=project / "minari"))
    path = Path("raw/tiny-v0/data/main_data.hdf5")
    with h5py.File(path, "a") as file:
        damage(file)
    refused(chosen, "data: episode 1: ")
    path.write_bytes(b"not HDF5")
    refused(chosen, "data: episode 0: ")


def test_an_episode_that_minari_reads_in_part_is_refused(project: Path) -> None:
    episodes = [episode(3, 0), episode(2**17, 1), episode(3, 2)]
    create(project / "minari", "a-v0", episodes, "arrow", **PENDULUM)
    refused(collected(entry("a-v0", root=project / "minari")), "data: episode [1-3]: missing")


@pytest.mark.parametrize(
    ("spaces", "says"),
    [
        ({"action_space": Box(-1, np.inf, (1,), np.float32)}, "a Box without finite bounds"),
        ({"observation_space": Dict({"a": Box(0, 1, (64, 65))})}, "found 4160 numbers"),
    ],
)
def test_images_and_actions_without_bounds_are_refused(
    project: Path, spaces: dict[str, Any], says: str
) -> None:
    create(project / "minari", "a-v0", [episode(3, 0)], **PENDULUM | spaces)
    refused(collected(entry("a-v0", root=project / "minari")), says)


def test_parts_of_different_spaces_are_refused(project: Path) -> None:
    create(project / "minari", "a-v0", [episode(3, 0)], **PENDULUM)
    create(project / "minari", "b-v0", [mixed_episode(3, 1)], **SPACES)
    refused(collected(entry("a-v0", "b-v0", root=project / "minari")), "observation_size: found")
    refused(entry("a-v0", environment="MountainCarContinuous-v0"), "observation_size: found 3")


def test_a_dataset_without_spaces_is_refused_and_its_environment_is_never_built(
    project: Path,
) -> None:
    create(project / "minari", "a-v0", [episode(3, 0)], **PENDULUM)
    chosen = collected(entry("a-v0", root=project / "minari"))
    path = Path("raw/a-v0/data/metadata.json")
    (project / "payload.py").write_text("from pathlib import Path\nPath('executed').touch()\n")
    content = json.loads(path.read_text())
    del content["observation_space"]
    spec = gymnasium.envs.registration.EnvSpec("Evil-v0", entry_point="payload:Env")
    path.write_text(json.dumps(content | {"env_spec": spec.to_json()}))
    refused(chosen, "found no spaces or no episodes")
    assert not Path("executed").exists()


def test_what_is_there_in_another_format_is_neither_missing_nor_fetched(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: one of which nothing is here; tests/commands/test_init.py fetches one."""
    monkeypatch.setattr(minari, "download_dataset", None)
    (project / "minari/hop/medium-v0/data").mkdir(parents=True)
    with pytest.raises(PipelineError, match="no Minari dataset 'hop/expert-v0'"):
        source_of("small", entry("hop/expert-v0", root=project / "minari")).collect(Path("raw"))
    chosen = entry("hop/medium-v0", root=project / "minari", remote=True)
    with pytest.raises(PipelineError, match=r"data: found no metadata.json.*Minari 0\.5"):
        source_of("small", chosen).collect(Path("raw"))
