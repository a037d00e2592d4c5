"""From an entry of params.yaml to the partitions, for data that others have recorded."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline import collect, ingest, partition
from primorl.config import params
from primorl.config.params import Params
from tests.pipeline.fakes import FakeRun
from tests.projects import project_settings, write_settings
from tests.trajectories.sources.d4rl_builders import columns, write
from tests.trajectories.sources.minari_builders import create, mixed_episode


def chosen(name: str, like: str, **changes: Any) -> Params:
    """The project's settings with one more dataset, made from another one, and that chosen."""
    raw = params.plain(params.load(Path("params.yaml")))
    raw["chosen"] = project_settings(like)["chosen"] | changes
    raw["dataset"] = name
    raw["policy"]["starts"] = "public"  # also where there is no environment to reset
    return write_settings(raw)


def run(checked: Params) -> dict[str, Any]:
    for stage in (collect, ingest, partition):
        stage.body(checked, FakeRun())
    manifest: dict[str, Any] = json.loads(Path("data/partitions/manifest.json").read_text(encoding="utf-8"))
    return manifest


def test_a_minari_id_that_was_made_here(small: Params, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve episodes of four people, from a folder of Minari datasets, without a simulator."""
    people = ["anna", "bob", "cleo", "dan"]
    create(Path.cwd() / "minari", "ward/stays-v0", [mixed_episode(2 + i % 3, i, people[i % 4]) for i in range(12)])
    manifest = run(
        chosen(
            "stays",
            "hopper-medium",
            environment=None,
            unit="patient",
            termination="learned",
            options={"root": "minari", "remote": False, "parts": [{"id": "ward/stays-v0", "filter": None}]},
        )
    )
    assert manifest["private_units"] + manifest["public_units"] == len(people)
    assert manifest["dataset"] == "stays"
    assert capsys.readouterr().out == ""


def test_a_file_in_d4rls_layout_that_was_made_here(small: Params) -> None:
    write(Path("logs/pendulum.hdf5"), columns())
    manifest = run(
        chosen(
            "pendulum-log",
            "halfcheetah-medium-expert",
            environment="Pendulum-v1",
            termination="learned",
            options={"file": "logs/pendulum.hdf5", "name": None, "remote": False},
        )
    )
    assert manifest["private_units"] + manifest["public_units"] == 5
    assert manifest["spaces"]["action_high"] == [2.0]
