"""``primorl data``: what it shows is public, and what it sends goes only where somebody said."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from primorl.config.datasets import AnyDataset
from primorl.data.description import describe
from primorl.data.ingestion import ingest
from primorl.data.partitioning import partition
from primorl.data.sources import source_of
from tests.commands.conftest import Call
from tests.data.builders import entry, episode, write_raw
from tests.projects import project_settings, write_settings


def partitioned(public_fraction: float, dataset: str, chosen: AnyDataset) -> None:
    ingest(Path("raw"), Path("data/trajectories"), dataset, chosen)
    partition(Path("data/trajectories"), Path("data/partitions"), public_fraction=public_fraction)


def test_it_says_what_is_declared_and_what_the_public_split_holds(primorl: Call) -> None:
    """With the private side and all data before the split gone, the very same; without a public
    split nothing.
    """
    assert primorl("data", "describe")[2].startswith(
        "error: data/partitions/manifest.json: not there; run `dvc repro"
    )
    write_raw(Path("raw"), [episode(4 + i % 3, seed=i) for i in range(20)])
    partitioned(0, "small", entry(termination="none"))
    said = primorl("data", "describe")[1]
    assert "public split: none, and nothing may be said of the private one" in said
    shutil.rmtree("data")
    partitioned(0.4, "small", entry(termination="none"))
    about = json.loads(primorl("data", "describe", "--json")[1])
    assert about["public"]["trajectories"] == about["public_units"] == 20 - about["private_units"]
    before, rows = describe(Path("data/partitions"))
    assert rows is not None
    partitions = Path("data/partitions")
    for folder in (partitions / "private", "data/trajectories", "raw", partitions / "units.bin"):
        Path(folder).rename(f"{folder}-elsewhere")
    after, same = describe(Path("data/partitions"))
    assert same is not None
    assert after == before
    assert np.array_equal(same.observation, rows.observation)
    assert f"{about['private_units']} private, " in primorl("data", "describe")[1]


@pytest.mark.parametrize("terminated", [False, True])
def test_a_log_shows_declared_bounds_and_what_becomes_of_last_rewards(
    primorl: Call, terminated: bool
) -> None:
    """A score in the last row is lost where that row is cut, and is never advised away where it is
    kept.
    """
    lines = [
        f"p{i},{t},{0.9 * (t % 2) + i / 1000},{t % 2},{3.0 * (t == 3)},{int(t == 3)}"
        for i in range(20)
        for t in range(4)
    ]
    Path("log.csv").write_text("\n".join(["person,t,x,a,r,done", *lines]) + "\n", encoding="utf-8")
    columns = {"unit": "person", "trajectory": "person", "order": "t", "observation": ["x"]}
    columns |= {"action": {"column": "a", "count": 2}, "terminated": "done" if terminated else None}
    raw = project_settings("csv-log") | {"dataset": "log"}
    ends = {"termination": ("none", "learned")[terminated]}
    raw["chosen"] |= {"unit": "person", "horizon": 9, "ingestion": {}} | ends
    raw["chosen"]["bounds"] = {"observation": {"low": [-1.0], "high": [1.5]}, "reward": [0.0, 4.0]}
    options = {"files": "log.csv", "trajectory_ids": "global", "end": "last_row"}
    raw["chosen"]["options"] = options | {"columns": columns | {"reward": "r"}}
    chosen = write_settings(raw).chosen
    source_of("log", chosen).collect(Path("raw"))
    partitioned(0.5, "log", chosen)
    status, text, _ = primorl("data", "describe")
    assert status == 0
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line}
    assert (rows["x"][:9], rows["x"][-4:]) == ("[-1, 1.5]", "0.0%")
    assert ("their reward is lost" in text) is not terminated
    assert ("a discharge, a cut or a time limit is no termination" in text) is terminated
