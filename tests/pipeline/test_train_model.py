"""The stage that reads private data: what it writes, refuses, and never says."""

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
from primorl.config.params import Params
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.termination import RULES, Rule
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_from_json
from primorl.project.errors import PipelineError
from primorl.tracking import stage_run
from tests.pipeline import tiny_policy
from tests.pipeline.training_project import (
    OUTPUT,
    charged,
    edited,
    statement,
    trained,
    unopened,
    with_changes,
    write_partitions,
)
from tests.trajectories.builders import INFO, episode, snapshot

CPU = torch.device("cpu")
MARKERS = [0.7654321, -6.1234567, 1.2349876]


def test_the_model_travels_with_its_statement(data: Params) -> None:
    run = trained(data)
    said = statement()
    assert (said["private"], said["void"], said["units"]) == (True, [], 9)
    assert (said["rounds"], said["noise_multiplier"], said["sampling_probability"]) == (4, 1.0, 0.5)
    assert float(run.logged["epsilon"]) == said["epsilon"] == pytest.approx(run.logged["epsilon_so_far"])
    assert said["epsilon"] > 0
    assert run.steps["epsilon_so_far"] == [2, 4]
    assert said["spent_on_dataset"]["charges"] == 1
    assert said["spent_on_dataset"]["epsilon"] == pytest.approx(
        accounting.compose([event_from_json(said["event"])], data.privacy.budget.delta).epsilon_pld
    )
    assert run.logged["charge"] == said["charge"] == charged(data)[0].id
    ensemble = GaussianEnsemble.load(OUTPUT, CPU)
    assert ensemble.architecture.hidden == (8,)
    assert ensemble.bounds.observation_high.tolist() == [1.0, 1.0, 8.0]
    assert json.loads((OUTPUT / "config.json").read_text())["environment"] == "Pendulum-v1"


def test_what_has_no_guarantee_says_so(data: Params, capfd: pytest.CaptureFixture[str]) -> None:
    for variant, reasons in (
        ("no_privacy", {"no noise is added"}),
        ("no_clip", {"no noise is added", "updates are not clipped"}),
        ("mopo", {"variant mopo: trained on raw private transitions, and its policy's rollouts start from them"}),
    ):
        run = trained(with_changes(data, dynamics={"variant": variant}))
        said = statement()
        assert (said["private"], said["epsilon"], set(said["void"])) == (False, None, reasons)
        assert said["spent_on_dataset"]["epsilon"] is None
        assert run.logged["private"] == "False"
    mopo = charged(data)[-1].id
    assert not list(Path(".primorl/checkpoints").glob(f"{mopo}*")), "its weights are private"
    assert "privacy.delta" not in capfd.readouterr().err
    trained(with_changes(data, privacy={"delta": 0.2}))
    assert "privacy.delta = 0.2 is not below 1/9" in capfd.readouterr().err
    assert statement()["void"]


def test_bounds_and_normaliser_come_from_the_public_split(data: Params) -> None:
    normalisers, bounds = [], []
    changed = edited(data, chosen={"bounds": {"observation": "public", "reward": "public"}})
    for scale in (1.0, 1e4):
        private = [episode(10, i) for i in range(5)]
        for one in private:
            one.observations = [o * scale for o in one.observations]
            one.rewards = [r * scale for r in one.rewards]
        shutil.rmtree("data/partitions")
        write_partitions(private, [episode(20, 100 + i) for i in range(4)])
        trained(changed)
        ensemble = GaussianEnsemble.load(OUTPUT, CPU)
        normalisers.append(
            torch.cat([t.flatten() for t in vars(ensemble.normaliser).values() if isinstance(t, torch.Tensor)])
        )
        bounds.append(ensemble.bounds)
    assert torch.equal(*normalisers)
    assert bounds[0].reward_low == bounds[1].reward_low > -16.3
    assert torch.equal(bounds[0].observation_high, bounds[1].observation_high)


def spellings(value: float) -> list[bytes]:
    single = np.float32(value)
    texts = {f"{value:.5f}", f"{value:.6f}", f"{value:.6g}", repr(float(single))}
    return [text.lstrip("-").encode() for text in texts] + [single.tobytes()]


def test_nothing_private_is_logged(data: Params, empty_store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    private = [episode(20, i) for i in range(6)]
    for one in private:
        for row in one.observations:
            row[:] = MARKERS
        one.actions = [np.full(1, MARKERS[2], dtype=np.float32) for _ in one.actions]
        one.rewards = [MARKERS[1]] * len(one.rewards)
    shutil.rmtree("data/partitions")
    write_partitions(private, [episode(20, 100 + i) for i in range(4)], [f"mallory-{i}" for i in range(6)])
    Path("mlflow.db").write_bytes(empty_store.read_bytes())

    def leaked() -> list[bytes]:
        with sqlite3.connect("mlflow.db") as store:
            tables = [name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            dump = repr([store.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables]).encode()
        captured = capfd.readouterr()
        seen = b"\n".join([dump, captured.out.encode(), captured.err.encode()])
        released = [*snapshot(Path("mlruns")).values(), *snapshot(Path("models")).values()]
        needles = [b"mallory", *(spelling for value in MARKERS for spelling in spellings(value))]
        return [needle for needle in needles if any(needle in hay for hay in (seen, *released))]

    with stage_run("train_model", data) as run:
        train_model.body(data, run)
    assert leaked() == []
    with stage_run("train_model", data) as run:
        run.metric("oops", float(private[0].observations[0][0]))
    assert leaked(), "the search finds a value that is logged"


def test_bad_input_is_one_clear_error_and_the_last_model_stays(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(data)
    before = snapshot(Path("models"))
    folder, sound = Path("data/partitions"), Path("sound")
    shutil.copytree(folder, sound)
    (part,) = (folder / "private").iterdir()
    manifest, units = folder / "manifest.json", folder / "units.bin"
    damages: list[tuple[str, Callable[[], object]]] = [
        ("manifest.json: not a manifest", lambda: manifest.write_text("{}", encoding="utf-8")),
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
    unopened(monkeypatch)
    for privacy, says in (
        ({"target_epsilon": 1e-6, "noise_multiplier": None, "delta": 1e-9}, "target_epsilon = 1e-06: no noise"),
        ({"budget": {"epsilon": 1.0, "delta": 0.5}}, "privacy.budget.delta: found 0.5, allowed is below 1/9"),
    ):
        with pytest.raises(PipelineError, match=says):
            trained(with_changes(data, privacy=privacy))


@pytest.fixture
def upright(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "upright", Rule(3, lambda observation, action, following: following[:, 0] < 0))


def declare(monkeypatch: pytest.MonkeyPatch, termination: str) -> None:
    """Episodes that terminate, and what the dataset declares of that."""
    monkeypatch.setattr(tiny_policy, "INFO", replace(INFO, termination=termination))
    shutil.rmtree("data/partitions", ignore_errors=True)
    write_partitions(*([episode(n, n + i, terminated=True) for i in range(k)] for n, k in ((5, 3), (20, 2))))


@pytest.mark.usefixtures("upright")
def test_terminations_that_nobody_declared_are_refused(small: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    for termination, says in (
        ("none", r"replay.yaml: termination: found none, but episodes of .* terminate; allowed is learned"),
        ("sideways", r"found 'sideways'; allowed for observations of size 3 are none, learned, upright$"),
        ("hopper", r"found 'hopper', a rule for observations of size 11; allowed for those of size 3"),
    ):
        declare(monkeypatch, termination)
        with pytest.raises(PipelineError, match=says):
            trained(with_changes(small))
    assert not OUTPUT.exists()
    assert charged(small) == []


@pytest.mark.usefixtures("upright")
@pytest.mark.parametrize("termination", ["learned", "upright"])
def test_ends_are_part_of_the_model_and_of_what_is_stated(
    small: Params, monkeypatch: pytest.MonkeyPatch, termination: str
) -> None:
    declare(monkeypatch, termination)
    run = trained(with_changes(small))
    ensemble, learned = GaussianEnsemble.load(OUTPUT, CPU), termination == "learned"
    assert (ensemble.termination, ensemble.architecture.learned_termination) == (termination, learned)
    assert ensemble.weights[-1].shape == (3, 1, 9 if learned else 8)
    if learned:
        first = ensemble.architecture.initial_weights(0)[-1]
        assert bool((ensemble.weights[-1][..., -1] != first[..., -1]).any())
    assert statement()["termination"] == termination
    taken = "when an episode ends: the declared rule upright"
    assert (taken in statement()["public_assumptions"]) is not learned
    assert ("public_error.termination" in run.steps) is learned
