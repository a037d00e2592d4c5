import json
from pathlib import Path

import pytest

from pipeline import ingest, partition
from primorl.config.params import Params
from tests.pipeline.fakes import FakeRun
from tests.trajectories.builders import episodes, write_raw


def test_it_logs_the_declared_counts_and_the_keyed_fingerprint_only(
    small: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    write_raw(Path("data/raw"), episodes(6))
    ingest.body(small, FakeRun())
    run = FakeRun()
    partition.body(small, run)
    manifest = json.loads(Path("data/partitions/manifest.json").read_text(encoding="utf-8"))
    assert run.logged == {
        "public_by": "hash",
        "public_fraction": 0.5,
        "salt": "primorl",
        "private_units": manifest["private_units"],
        "public_units": manifest["public_units"],
        "dataset_fingerprint": manifest["dataset_fingerprint"],
    }
    assert manifest["private_units"] + manifest["public_units"] == 6
    assert sorted(item.name for item in Path("data/partitions").iterdir()) == [
        "manifest.json",
        "private",
        "public",
        "public_units.bin",
        "units.bin",
    ]
    assert capsys.readouterr() == ("", "")
