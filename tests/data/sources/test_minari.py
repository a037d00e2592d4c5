import json
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from minari.data_collector import EpisodeBuffer

from primorl.base.errors import PipelineError
from primorl.config.datasets import MinariDataset
from primorl.data.ingestion import ingest
from primorl.data.partitioning import partition
from primorl.data.sources import source_of
from primorl.data.sources.minari import reading as minari_reading
from primorl.data.storage.parquet import PartReader
from primorl.data.storage.schema import vectors
from primorl.simulators.environments import make
from tests.data.builders import snapshot
from tests.data.sources.minari_builders import (
    CHOICES,
    FORMATS,
    MIXED,
    box_episode,
    box_spaces,
    create,
    entry,
    flattened,
    mixed_episode,
)


def collected(chosen: MinariDataset, target: str = "raw") -> MinariDataset:
    Path(target).mkdir()
    source_of("small", chosen).collect(Path(target))
    return chosen


def ingested(chosen: MinariDataset) -> pa.Table:
    ingest(Path("raw"), Path("trajectories"), "small", chosen)
    return pa.concat_tables(PartReader(Path("trajectories"), made_by="ingest").tables())


def refused(chosen: MinariDataset, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as wrong:
        ingested(chosen)
    assert not any(word in str(wrong.value) for word in ("\n", "71"))


def names(table: pa.Table) -> list[str]:
    return list(dict.fromkeys(table["trajectory_id"].to_pylist()))


@pytest.mark.parametrize("data_format", FORMATS)
def test_every_format_gives_the_rows_that_were_written(project: Path, data_format: str) -> None:
    content = [mixed_episode(1 + 2 * i, seed=i) for i in range(4)]
    create(project / "minari", "tiny-v0", content, data_format)
    table = ingested(collected(entry("tiny-v0", root=project / "minari")))
    flat = [flattened(episode) for episode in content]
    np.testing.assert_array_equal(
        vectors(table["observation"]), np.concatenate([rows[:-1] for rows in flat])
    )
    np.testing.assert_array_equal(
        vectors(table["next_observation"]), np.concatenate([rows[1:] for rows in flat])
    )
    for column, name in (
        ("action", "actions"),
        ("terminated", "terminations"),
        ("truncated", "truncations"),
    ):
        np.testing.assert_array_equal(
            table[column], np.concatenate([getattr(one, name) for one in content])
        )
    rewards = np.concatenate([one.rewards for one in content]).astype(np.float32)
    np.testing.assert_array_equal(table["reward"], rewards)
    assert table["action"].type == pa.int32()
    assert names(table) == [f"tiny-v0/{i:09d}" for i in range(4)]
    spaces = PartReader(Path("trajectories"), made_by="ingest").info.spaces
    assert (spaces.discrete_actions, spaces.action_size) == (True, int(CHOICES.n))
    assert spaces.one_hot == ((6, 3), (12, 2), (14, 3))  # the colour and the dials
    whole = gymnasium.spaces.flatten_space(MIXED)
    assert isinstance(whole, Box)
    np.testing.assert_array_equal(spaces.observation_low, whole.low)
    np.testing.assert_array_equal(spaces.observation_high, whole.high)


class Ordered(gymnasium.Env[Any, Any]):
    """An environment whose observation has its entries in another order than the dataset and the alphabet."""

    observation_space = Dict(
        OrderedDict(b=Box(-1, 1, (1,), np.float32), c=Discrete(2), a=Box(-1, 1, (2,), np.float32))
    )
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return {"b": np.float32([0.25]), "c": np.int64(1), "a": np.float32([0.5, 0.75])}, {}


def test_a_dicts_entries_come_in_the_order_in_which_a_policy_meets_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        gymnasium.registry,
        "Ordered-v0",
        gymnasium.envs.registration.EnvSpec("Ordered-v0", entry_point=Ordered),
    )
    spaces = {key: Ordered.observation_space[key] for key in "abc"}
    first, _ = Ordered().reset()
    steps = np.zeros(2)
    content = EpisodeBuffer(
        observations={key: np.stack([first[key]] * 3) for key in "abc"},
        actions=np.zeros((2, 1), np.float32),
        rewards=steps,
        terminations=steps > 0,
        truncations=np.array([False, True]),
    )
    create(
        project / "minari",
        "o-v0",
        [content],
        observation_space=Dict(spaces),
        action_space=Ordered.action_space,
    )
    table = ingested(
        collected(entry("o-v0", root=project / "minari", environment="Ordered-v0", horizon=2))
    )
    np.testing.assert_array_equal(vectors(table["observation"])[0], make("Ordered-v0").reset()[0])
    assert vectors(table["observation"])[0].tolist() == [0.25, 0.0, 1.0, 0.5, 0.75]


def test_a_filter_keeps_whole_episodes_by_what_they_are_themselves(project: Path) -> None:
    content = [box_episode(1 + 2 * i, seed=i) for i in range(4)]
    for i, episode in enumerate(content):
        episode.rewards[:] = 1.0 if i % 2 else -1.0
    create(project / "minari", "tiny-v0", content, **box_spaces())
    collected(entry("tiny-v0", root=project / "minari"))
    for ranges, kept in (
        ({}, [0, 1, 2, 3]),
        ({"lengths": [3, 5]}, [1, 2]),
        ({"lengths": [None, 3]}, [0, 1]),
        ({"episodes": [2, None]}, [2, 3]),
        ({"returns": [0.0, None]}, [1, 3]),
        ({"episodes": [0, 2], "lengths": [3, None]}, [1, 2]),
    ):
        table = ingested(entry({"id": "tiny-v0"} | ranges))
        assert names(table) == [f"tiny-v0/{i:09d}" for i in kept]
        assert table.num_rows == sum(1 + 2 * i for i in kept)
    refused(
        entry({"id": "tiny-v0", "lengths": [9, None]}), "found no episode that passes its filter"
    )
    with h5py.File("raw/tiny-v0/data/main_data.hdf5", "a") as file:
        file["episode_1/rewards"][1] = np.nan
    hidden = entry({"id": "tiny-v0", "returns": [-100, 100]})
    refused(hidden, "trajectory number 2, step 1: found a non-finite reward")


def test_a_mixture_keeps_its_parts_apart_and_their_filters(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minari_reading, "_ROWS_PER_BATCH", 4)
    medium, expert = ([box_episode(1 + i, seed=i + shift) for i in range(4)] for shift in (0, 10))
    create(project / "minari", "hop/medium-v0", medium, **box_spaces())
    create(project / "minari", "hop/expert-v0", expert, "parquet", **box_spaces())
    some = {"id": "hop/medium-v0", "episodes": [1, 2]}
    before = ingested(collected(entry(some, root=project / "minari")))
    shutil.rmtree("raw")
    table = ingested(collected(entry(some, "hop/expert-v0", root=project / "minari")))
    assert names(table) == [
        *(f"hop/expert-v0/{i:09d}" for i in range(4)),
        *(f"hop/medium-v0/{i:09d}" for i in (1, 2)),
    ]
    assert table.slice(table.num_rows - before.num_rows).equals(before)
    expected = np.concatenate([one.observations[:-1] for one in (*expert, *medium[1:3])])
    np.testing.assert_array_equal(vectors(table["observation"]), expected)


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("key", ["patient", "options/patient"])
def test_all_episodes_of_one_person_are_one_unit(
    project: Path, data_format: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minari_reading, "_ROWS_PER_BATCH", 1)
    people = ["zoe", "anna", "zoe", "bob", "anna"]
    create(
        project / "minari",
        "a-v0",
        [mixed_episode(3, i, who) for i, who in enumerate(people)],
        data_format,
    )
    create(project / "minari", "b-v0", [mixed_episode(2, 9, "bob")], "hdf5")
    table = ingested(collected(entry("a-v0", "b-v0", root=project / "minari", unit=key)))
    pairs = list(
        dict.fromkeys(
            zip(table["unit_id"].to_pylist(), table["trajectory_id"].to_pylist(), strict=True)
        )
    )
    whose = {"anna": ("a1", "a4"), "bob": ("a3", "b0"), "zoe": ("a0", "a2")}
    assert pairs == [(who, f"{i[0]}-v0/00000000{i[1]}") for who, own in whose.items() for i in own]
    assert partition(
        Path("trajectories"), Path("partitions"), public_fraction=0.4, salt="s"
    ).private_units in (1, 2)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_whose_an_episode_is_must_be_clear(project: Path, data_format: str) -> None:
    create(project / "minari", "a-v0", [mixed_episode(3, 0, 71.5, key="weight")], data_format)
    collected(entry("a-v0", root=project / "minari"))
    for key, message in (
        ("nobody", "unit: found no 'nobody'; allowed: trajectory, an attribute of every episode"),
        ("clock", "unit: 'clock' has 4 values; allowed is one"),
        ("weight", "unit: 'weight' is no name; allowed: text or whole numbers"),
    ):
        refused(entry("a-v0", unit=key), f"episode 0: {message}")


def test_damaged_parquet_is_refused_and_the_last_good_data_stay(project: Path) -> None:
    create(
        project / "minari",
        "tiny-v0",
        [box_episode(3, i) for i in range(3)],
        "parquet",
        **box_spaces(),
    )
    chosen = collected(entry("tiny-v0", root=project / "minari"))
    ingested(chosen)
    before = snapshot(Path("trajectories"))
    file = Path("raw/tiny-v0/data/1/part-0.parquet")
    good, table = file.read_bytes(), pq.ParquetFile(file).read()
    with_null = pa.array([None, *table["rewards"].to_pylist()[1:]])
    place = table.column_names.index("rewards")
    for damage in (
        table.drop_columns(["rewards"]),
        table.set_column(place, "rewards", with_null),
        None,
    ):
        file.write_bytes(good[:100])
        if damage is not None:
            pq.write_table(damage, file)
        refused(chosen, "episode 1: a file or array is missing, nested or corrupt")
    shutil.rmtree(file.parent)
    refused(chosen, r"its number of episodes is not the one in metadata\.json")
    assert snapshot(Path("trajectories")) == before


def test_a_category_that_the_space_does_not_have_is_refused(project: Path) -> None:
    create(project / "minari", "tiny-v0", [mixed_episode(3, 0), mixed_episode(3, 1)])
    chosen = collected(entry("tiny-v0", root=project / "minari"))
    with h5py.File("raw/tiny-v0/data/main_data.hdf5", "a") as file:
        file["episode_1/observations/colour"][2] = 4
    refused(chosen, "episode 1: observations/colour: found a category outside")
    with h5py.File("raw/tiny-v0/data/main_data.hdf5", "a") as file:
        file["episode_1/observations/colour"][2] = 3
        file["episode_1/actions"][0] = 2**32  # 0, were it cut down to int32
    refused(chosen, "trajectory number 2, step 0: found an action outside the declared")


def test_parts_of_different_spaces_are_refused(project: Path) -> None:
    create(project / "minari", "a-v0", [box_episode(3, 0)], **box_spaces())
    create(project / "minari", "b-v0", [box_episode(3, 1, size=3)], **box_spaces(3))
    refused(
        collected(entry("a-v0", "b-v0", root=project / "minari")), "its spaces are not those of"
    )
    refused(entry("a-v0", "b-v0", environment="MountainCarContinuous-v0"), "b-v0.*space: found")


def test_a_dataset_without_spaces_needs_an_environment_that_is_never_its_own(project: Path) -> None:
    create(project / "minari", "a-v0", [box_episode(3, 0)], **box_spaces())
    chosen = collected(entry("a-v0", root=project / "minari"))
    path = Path("raw/a-v0/data/metadata.json")
    (project / "payload.py").write_text("from pathlib import Path\nPath('executed').touch()\n")
    content = {
        key: value
        for key, value in json.loads(path.read_text()).items()
        if not key.endswith("_space")
    }
    spec = gymnasium.envs.registration.EnvSpec("Evil-v0", entry_point="payload:Env")
    path.write_text(json.dumps(content | {"env_spec": spec.to_json()}))
    refused(chosen, "stores no spaces; name the environment that declares them")
    assert ingested(entry("a-v0", environment="MountainCarContinuous-v0")).num_rows == 3
    assert not Path("executed").exists()


def test_a_dataset_that_is_not_here_is_named_with_those_that_are(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(project / "minari", "hop/medium-v0", [box_episode(3, 0)], **box_spaces())
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(project / "minari"))
    with pytest.raises(PipelineError) as wrong:
        collected(entry("hop/expert-v0"))
    assert "no Minari dataset 'hop/expert-v0'" in str(wrong.value)
    assert "there: hop/medium-v0; set options.remote to true" in str(wrong.value)
    with pytest.raises(PipelineError, match="there: none"):
        collected(entry("hop/expert-v0", root=project / "elsewhere"), "raw2")
    collected(entry("hop/medium-v0"), "raw3")
    with pytest.raises(PipelineError, match="no Minari dataset here; run `dvc repro collect`"):
        source_of("small", entry("other-v0")).open(Path("raw3"))
