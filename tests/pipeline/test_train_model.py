"""The one stage that reads private data: what it writes, refuses, and never says."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline import train_model
from primorl.config import params as params_module
from primorl.config.params import Params
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_from_json
from primorl.project.errors import PipelineError
from primorl.project.files import write_json
from primorl.tracking import stage_run
from primorl.trajectories.storage.manifest import Manifest
from tests.pipeline.training_project import (
    OUTPUT,
    charged,
    statement,
    trained,
    watch_private,
    with_changes,
    write_partitions,
)
from tests.trajectories.builders import INFO, episode, snapshot


def test_the_model_travels_with_its_statement(data: Params) -> None:
    run = trained(data)
    said = statement()
    assert said["private"] is True
    assert said["void"] == []
    assert said["units"] == 9
    assert (said["rounds"], said["noise_multiplier"], said["sampling_probability"]) == (4, 1.0, 0.5)
    assert said["epsilon"] > 0
    assert float(run.logged["epsilon"]) == said["epsilon"] == pytest.approx(run.logged["epsilon_so_far"])
    assert run.steps["epsilon_so_far"] == [2, 4]
    assert said["spent_on_dataset"]["charges"] == 1
    assert said["spent_on_dataset"]["epsilon"] == pytest.approx(
        accounting.compose([event_from_json(said["event"])], data.privacy.budget.delta).epsilon_pld
    )
    assert run.logged["charge"] == said["charge"] == charged(data)[0].id
    ensemble = GaussianEnsemble.load(OUTPUT, torch.device("cpu"))
    assert ensemble.architecture.hidden == (8,)
    assert ensemble.bounds.observation_high.tolist() == [1.0, 1.0, 8.0]
    assert json.loads((OUTPUT / "config.json").read_text())["environment"] == "Pendulum-v1"


def test_two_runs_of_one_config_differ_in_noise(data: Params) -> None:
    certain = {"sampling_probability": 1.0}
    gaps = {}
    for variant in ("private", "no_privacy"):
        runs = []
        for draw in range(2):  # or the first would be restored
            trained(
                with_changes(data, privacy=certain | {"draw": draw}, dynamics={"variant": variant, "batch_size": 64})
            )
            runs.append(GaussianEnsemble.load(OUTPUT, torch.device("cpu")).weights[0])
        gaps[variant] = float((runs[0] - runs[1]).abs().max())
    assert gaps["no_privacy"] < 1e-5
    assert gaps["private"] > 1e-2


@pytest.mark.parametrize(
    ("variant", "reasons"),
    [
        ("no_privacy", {"no noise is added"}),
        ("no_clip", {"no noise is added", "updates are not clipped"}),
        ("mopo", {"variant mopo: trained on raw private transitions, and its policy's rollouts start from them"}),
    ],
)
def test_variants_without_a_guarantee_say_so(data: Params, variant: str, reasons: set[str]) -> None:
    run = trained(with_changes(data, dynamics={"variant": variant}))
    said = statement()
    assert said["private"] is False
    assert said["epsilon"] is None
    assert set(said["void"]) == reasons
    assert run.logged["private"] == "False"


@pytest.mark.parametrize(("delta", "warned"), [(0.2, True), (1e-3, False)])
def test_a_large_delta_is_warned_of_and_voids_the_statement(
    data: Params, delta: float, warned: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(with_changes(data, privacy={"delta": delta}))
    assert ("privacy.delta = 0.2 is not below 1/9" in capfd.readouterr().err) is warned
    assert bool(statement()["void"]) is warned


def test_bounds_and_normaliser_come_from_the_public_split(data: Params) -> None:
    normalisers, bounds = [], []
    raw = params_module.plain(data)
    raw["chosen"]["bounds"] = {"observation": "public", "reward": "public"}
    changed = params_module.from_plain(raw)
    for scale in (1.0, 1e4):
        private = [episode(10, i) for i in range(5)]
        for one in private:
            one.observations = [o * scale for o in one.observations]
            one.rewards = [r * scale for r in one.rewards]
        shutil.rmtree("data/partitions")
        write_partitions(private, [episode(20, 100 + i) for i in range(4)])
        trained(changed)
        ensemble = GaussianEnsemble.load(OUTPUT, torch.device("cpu"))
        normalisers.append(
            torch.cat([t.flatten() for t in vars(ensemble.normaliser).values() if isinstance(t, torch.Tensor)])
        )
        bounds.append(ensemble.bounds)
    assert torch.equal(*normalisers)
    assert bounds[0].reward_low == bounds[1].reward_low > -16.3
    assert torch.equal(bounds[0].observation_high, bounds[1].observation_high)


MARKERS = [0.7654321, -6.1234567, 1.2349876]


def spellings(value: float) -> list[bytes]:
    single = np.float32(value)
    texts = {f"{value:.5f}", f"{value:.6f}", f"{value:.6g}", repr(float(single))}
    return [text.lstrip("-").encode() for text in texts] + [single.tobytes()]


@pytest.mark.parametrize("planted", [False, True])
def test_nothing_private_is_logged(
    data: Params,
    empty_store: Path,
    capfd: pytest.CaptureFixture[str],
    planted: bool,
) -> None:
    private = [episode(20, i) for i in range(6)]
    for one in private:
        for row in one.observations:
            row[:] = MARKERS
        one.actions = [np.full(1, MARKERS[2], dtype=np.float32) for _ in one.actions]
        one.rewards = [MARKERS[1]] * len(one.rewards)
    shutil.rmtree("data/partitions")
    units = [f"mallory-{i}" for i in range(6)]
    write_partitions(private, [episode(20, 100 + i) for i in range(4)], units)
    Path("mlflow.db").write_bytes(empty_store.read_bytes())
    chosen = with_changes(data)
    with stage_run("train_model", chosen) as run:
        if planted:
            run.metric("oops", float(private[0].observations[0][0]))
        train_model.body(chosen, run)
    with sqlite3.connect("mlflow.db") as store:
        tables = [name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        dump = repr([store.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables]).encode()
    captured = capfd.readouterr()
    seen = b"\n".join([dump, captured.out.encode(), captured.err.encode()])
    released = [*snapshot(Path("mlruns")).values(), *snapshot(Path("models")).values()]
    needles = [b"mallory", *(spelling for value in MARKERS for spelling in spellings(value))]
    found = [needle for needle in needles if any(needle in hay for hay in (seen, *released))]
    assert bool(found) is planted, found


def test_bad_input_is_one_clear_error_and_the_last_model_stays(data: Params) -> None:
    trained(data)
    before = snapshot(Path("models"))
    folder, sound = Path("data/partitions"), Path("sound")
    shutil.copytree(folder, sound)
    (part,) = (folder / "private").iterdir()
    manifest, units = folder / "manifest.json", folder / "units.bin"
    damages: list[tuple[str, Callable[[], object]]] = [
        ("manifest.json: not a manifest", lambda: manifest.write_text("{}", encoding="utf-8")),
        ("manifest.json: not there", manifest.unlink),
        ("units.bin: missing, or not of 8 units", lambda: write_json(manifest, Manifest(INFO, 8, 4).to_json())),
        ("data/partitions/private", lambda: part.write_bytes(part.read_bytes()[:-40])),
        ("data/partitions/private", part.unlink),
        ("units.bin: missing, or not of 9 units", units.unlink),
        ("units.bin: missing, or not of 9 units", lambda: units.write_bytes(units.read_bytes()[:-16])),
    ]
    for says, damage in damages:
        damage()
        with pytest.raises(PipelineError, match=says) as refused:
            trained(replace(data, seed=1))
        assert "\n" not in str(refused.value)
        assert snapshot(Path("models")) == before
        shutil.rmtree(folder)
        shutil.copytree(sound, folder)


def test_an_impossible_budget_is_refused_before_private_data_is_read(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_private(monkeypatch, lambda: pytest.fail("private data was opened"))
    impossible = {"target_epsilon": 1e-6, "noise_multiplier": None, "delta": 1e-9}
    with pytest.raises(PipelineError, match="target_epsilon = 1e-06: no noise"):
        trained(with_changes(data, privacy=impossible))
