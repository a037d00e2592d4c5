"""How `train_model` pays: charged before private data is read, never twice, and not on what was lost or exchanged."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline import ingest, optimize_mopo, partition, train_model
from primorl.config.params import Params
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.mechanism.plan import Plan
from primorl.project.errors import PipelineError
from primorl.training.training import ENGINE_VERSION
from tests.pipeline.fakes import FakeRun
from tests.pipeline.training_project import (
    OUTPUT,
    KilledError,
    charged,
    dying,
    statement,
    states,
    trained,
    unopened,
    watch_private,
    with_changes,
)
from tests.trajectories.builders import INFO, episodes, snapshot, write_raw

REMAKE = "`dvc repro --force --single-item ingest partition`"


def with_seed(params: Params, seed: int) -> Params:
    return replace(params, seed=seed)


def test_it_is_charged_before_a_private_byte_is_read_and_never_twice(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    with monkeypatch.context() as watched:
        watch_private(watched, lambda: seen.append(states(data)))
        trained(data)
    assert seen
    assert all(state == ["reserved"] for state in seen)
    (charge,) = charged(data)
    assert (charge.state, charge.stage, charge.dataset, charge.units) == ("committed", "train_model", INFO.dataset, 9)
    assert charge.epsilon == pytest.approx(statement()["epsilon"], rel=1e-3)
    first = snapshot(Path("models"))
    shutil.rmtree("models")
    unopened(monkeypatch)
    trained(data)
    assert snapshot(Path("models")) == first
    budget = {"epsilon": 1.01 * charge.epsilon, "delta": 1e-3}
    with pytest.raises(PipelineError, match="budget") as refused:
        trained(with_seed(with_changes(data, privacy={"budget": budget}), 1))
    assert "\n" not in str(refused.value)
    trained(with_changes(data, privacy={"budget": budget, "delta": 1e-4}))
    assert statement()["delta"] == 1e-4, "the same release, read at another δ"
    assert len(charged(data)) == 1
    with pytest.raises(pytest.fail.Exception, match="was opened"):
        trained(with_seed(data, 1))
    assert states(data) == ["committed", "reserved"]


def test_training_that_diverges_stays_spent_and_is_not_paid_for_again(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    def infinite(self: Plan, total: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.full_like(part, math.inf).float() for part in total)

    with monkeypatch.context() as patched:
        patched.setattr(Plan, "release", infinite)
        with pytest.raises(PipelineError, match="diverged"):
            trained(data)
    with pytest.raises(PipelineError, match=r"diverged .* the same settings cost nothing again"):
        trained(data)
    assert states(data) == ["committed"]
    assert not OUTPUT.exists()
    trained(with_seed(data, 1))
    assert statement()["spent_on_dataset"]["charges"] == 2


def test_an_edit_of_the_engine_charges_nobody_and_another_draw_has_other_noise(
    data: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alike = {"sampling_probability": 1.0}  # and one batch: the same rows in every round
    everybody = with_changes(data, privacy=alike, dynamics={"batch_size": 64})
    trained(everybody)
    first, weights = snapshot(Path("models")), GaussianEnsemble.load(OUTPUT, torch.device("cpu")).weights[0]
    monkeypatch.setattr("primorl.setup.paid_training.ENGINE_VERSION", ENGINE_VERSION + 1)
    trained(everybody)
    assert len(charged(data)) == 1
    assert snapshot(Path("models")) == first
    assert f"Engine version {ENGINE_VERSION} began it; this is version {ENGINE_VERSION + 1}." in capsys.readouterr().err
    again = with_changes(data, privacy=alike | {"draw": 1}, dynamics={"batch_size": 64})
    for _ in range(2):
        trained(again)
        assert len(charged(data)) == 2
    other = GaussianEnsemble.load(OUTPUT, torch.device("cpu")).weights[0]
    assert float((weights - other).abs().max()) > 1e-2
    trained(everybody)
    files = ("dynamics/model.safetensors", "dynamics/config.json")  # the statement counts the second charge
    assert [snapshot(Path("models"))[name] for name in files] == [first[name] for name in files]


@pytest.mark.verdict
def test_a_model_that_training_made_worse_is_an_error_that_keeps_what_was_paid_for(data: Params) -> None:
    loud = with_changes(data, privacy={"noise_multiplier": 500.0})
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"no better than a constant: its public loss is .* lower dynamics"):
            trained(loud)
        assert states(loud) == ["committed"]
    assert not OUTPUT.exists()
    learning = {"learning_rate": 0.05, "hidden": [32], "variant": "no_privacy"}
    trained(with_changes(data, privacy={"rounds": 150, "clipping_norm": 5.0}, dynamics=learning))
    assert OUTPUT.exists(), "a model that learned something is kept"


def test_a_killed_run_is_taken_up_and_costs_nothing_more(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        dying(patched, 3)
        with pytest.raises(KilledError):
            trained(data)
    assert states(data) == ["reserved"]
    assert not OUTPUT.exists()
    run = trained(data)
    (charge,) = charged(data)
    assert charge.state == "committed"
    assert statement()["epsilon"] == pytest.approx(charge.epsilon, rel=1e-3)
    assert statement()["rounds"] == 4
    assert json.loads((OUTPUT / "config.json").read_text())["rounds"] == 3
    assert run.logged["epsilon_so_far"] == pytest.approx(statement()["epsilon"])


def test_what_was_lost_or_exchanged_is_refused_before_anything_is_charged(
    small: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, public, secret = with_changes(small), Path("data/partitions/public_units.bin"), Path(".primorl/secret")
    baseline = with_changes(small, dynamics={"variant": "mopo"})
    write_raw(Path("data/raw"), episodes(12))

    def remake() -> None:
        ingest.body(params, FakeRun())
        partition.body(params, FakeRun())

    remake()
    for break_it, says in (
        (lambda: secret.write_bytes(b"n" * 32), "secret_check: made under another secret than"),
        (lambda: public.write_bytes(b"\0" * public.stat().st_size), "public_units.bin: not of the units in data/"),
        (secret.unlink, r"secret: not there, and data/partitions was made under it.*`primorl ledger repair`"),
    ):
        break_it()
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "reserve", lambda *_: pytest.fail("a charge was asked for"))
            unopened(patch)
            patch.setattr(optimize_mopo.Released, "read", lambda *_, **__: None)
            patch.setattr(optimize_mopo.GaussianEnsemble, "load", lambda *_, **__: None)
            patch.setattr(optimize_mopo, "PessimisticModel", lambda *_, **__: None)
            for stage, chosen in ((train_model, params), (train_model, baseline), (optimize_mopo, baseline)):
                with pytest.raises(PipelineError, match=says) as refused:
                    stage.body(chosen, FakeRun())
                assert "\n" not in str(refused.value)
                assert REMAKE in str(refused.value)
        remake()
    trained(params)
    assert len(charged(params)) == 1
