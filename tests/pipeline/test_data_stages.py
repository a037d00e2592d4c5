"""The stages before training say and log nothing of the rows, and leave the last good data where
they fail.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import minari
import pytest

from pipeline import collect, ingest, partition
from primorl.base.errors import PipelineError
from primorl.config.params import Params
from primorl.data.storage.parquet import PartReader
from tests.data.builders import episodes, snapshot, write_raw
from tests.data.sources.tabular_builders import entry, row, write
from tests.pipeline.fakes import FakeRun


def test_collect_leaves_one_dataset_and_tells_nothing_of_it(
    small: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun()
    collect.body(small, run)
    assert minari.MinariDataset("data/raw/pendulum-replay-v0/data").total_episodes == 6
    assert run.logged == {
        "dataset": "pendulum-replay",
        "source": "replay",
        "environment": "Pendulum-v1",
    }
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "6 of 6 episodes" in printed.err


def test_only_counts_and_the_keyed_fingerprint_are_logged(
    small: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    write_raw(Path("data/raw"), episodes(6))
    ingested, partitioned = FakeRun(), FakeRun()
    ingest.body(small, ingested)
    partition.body(small, partitioned)
    fingerprint = PartReader(Path("data/trajectories"), made_by="ingest").info.dataset_fingerprint
    assert Path(".primorl/secret").read_bytes().hex() not in fingerprint
    said = {"dataset": "pendulum-replay", "environment": "Pendulum-v1", "unit": "trajectory"}
    assert ingested.logged == said | {"dataset_fingerprint": fingerprint}
    manifest = json.loads(Path("data/partitions/manifest.json").read_text(encoding="utf-8"))
    counts = {name: manifest[name] for name in ("private_units", "public_units")}
    assert sum(counts.values()) == 6
    by = {"public_by": "hash", "public_fraction": 0.5}
    assert partitioned.logged == counts | by | {"dataset_fingerprint": fingerprint}
    files = {item.name for item in Path("data/partitions").iterdir()}
    assert files == {"manifest.json", "private", "public", "public_units.bin", "units.bin"}
    told = "partition: 3 units are public, drawn by a hash of the id, nobody was asked\n"
    assert capsys.readouterr() == ("", told)


def test_people_become_public_by_a_word(small: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is charged. Twin: trajectories of a simulator may be drawn anew."""
    write_raw(Path("data/raw"), episodes(6))
    ingest.body(small, FakeRun())
    for salt in (b"7:primorl", b"other"):
        monkeypatch.setattr("primorl.data.identity.consent._SALT", salt)
        partition.body(small, FakeRun())
    write(
        [
            row(user, 0, time, x=float(user), left=time == 2)
            for user in range(20)
            for time in range(3)
        ]
    )
    people = replace(
        small, dataset="log", chosen=entry(), policy=replace(small.policy, starts="public")
    )
    shutil.rmtree("data/raw")
    collect.body(people, FakeRun())
    ingest.body(people, FakeRun())

    def split(fraction: float, publish: str | None = None, salt: str = "7:primorl") -> None:
        chosen = replace(people.partition, public_fraction=fraction, publish=publish)
        monkeypatch.setattr("primorl.data.identity.consent._SALT", salt.encode())
        partition.body(replace(people, partition=chosen), FakeRun())

    split(0.2)
    before = snapshot(Path("data/partitions"))
    with pytest.raises(PipelineError, match=r"partition\.publish: p") as refused:
        split(0.6)
    with pytest.raises(PipelineError, match="an earlier split made public"):
        split(0.2, salt="other")
    assert snapshot(Path("data/partitions")) == before
    (word,) = re.findall(r"partition\.publish: (p\w{8}),", str(refused.value))
    split(0.6, word)
    assert snapshot(Path("data/partitions")) != before
    split(0.6)
