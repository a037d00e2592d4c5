"""How `train_model` pays: charged before private data is read, and never paid twice."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from primorl.config.params import Params
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.ledger import charges
from primorl.privacy.mechanism.plan import Plan
from primorl.project.errors import PipelineError
from primorl.training.training import ENGINE_VERSION
from tests.pipeline import tiny_policy
from tests.pipeline.training_project import (
    OUTPUT,
    charged,
    statement,
    trained,
    watch_private,
    with_changes,
    write_partitions,
)
from tests.privacy.ledger.ledgers import adaptive
from tests.trajectories.builders import INFO, episode, snapshot, table


def with_seed(params: Params, seed: int) -> Params:
    return replace(params, seed=seed)


def limited(params: Params, runs: int) -> Params:
    event = accounting.training_event(0.5, 1.0, 4)
    fits, beyond = (adaptive(*[event] * n, delta=1e-3) for n in (runs, runs + 1))
    return with_changes(params, privacy={"budget": {"epsilon": (fits + beyond) / 2, "delta": 1e-3}})


def test_the_charge_is_made_before_a_private_byte_is_read(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[list[str]] = []
    watch_private(monkeypatch, lambda: states.append([charge.state for charge in charged(data)]))
    trained(data)
    assert states
    assert all(state == ["reserved"] for state in states)
    (charge,) = charged(data)
    assert (charge.state, charge.stage, charge.dataset, charge.units) == ("committed", "train_model", INFO.dataset, 9)
    assert charge.epsilon == pytest.approx(statement()["epsilon"], rel=1e-3)


def test_a_sweep_is_refused_where_the_budget_ends_and_needs_no_private_data_for_it(data: Params) -> None:
    tight = limited(data, 2)
    for seed in (0, 1):
        trained(with_seed(tight, seed))
    before = snapshot(Path("models"))
    shutil.rmtree("data/partitions/private")
    with pytest.raises(PipelineError, match="budget") as refused:
        trained(with_seed(tight, 2))
    assert "\n" not in str(refused.value)
    assert snapshot(Path("models")) == before
    assert len(charged(data)) == len(list(Path(".primorl/checkpoints").glob("*.safetensors"))) == 2
    trained(with_seed(tight, 1))  # what was paid for is still there to be had
    assert len(charged(data)) == 2


def test_a_variant_without_a_guarantee_is_counted_and_fits_no_budget(data: Params) -> None:
    free = with_changes(data, dynamics={"variant": "mopo"})
    with pytest.raises(PipelineError, match="budget"):
        trained(limited(free, 100))
    trained(free)
    nothing_left = {"epsilon": None, "epsilon_fixed": None, "epsilon_rdp": None}
    assert statement()["spent_on_dataset"] == nothing_left | {"delta": 1e-5, "charges": 1}
    trained(data)
    assert statement()["private"] is True
    assert statement()["spent_on_dataset"]["epsilon"] is None
    assert not list(Path(".primorl/checkpoints").glob(f"{charged(data)[0].id}*")), "its weights are private"


def test_what_was_paid_for_is_not_paid_twice(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(data)
    first = snapshot(Path("models"))
    shutil.rmtree("models")
    watch_private(monkeypatch, lambda: pytest.fail("private data was opened"))
    trained(data)
    assert snapshot(Path("models")) == first
    trained(with_changes(data, privacy={"delta": 1e-4}))  # the same release, read at another δ
    assert statement()["delta"] == 1e-4
    assert len(charged(data)) == 1
    with pytest.raises(pytest.fail.Exception, match="private data was opened"):
        trained(with_seed(data, 1))
    assert [charge.state for charge in charged(data)] == ["committed", "reserved"]


def test_other_units_under_the_same_fingerprint_are_paid_for(data: Params) -> None:
    trained(data)
    shutil.rmtree("data/partitions")
    write_partitions([episode(1 + 7 * i % 30, 50 + i) for i in range(9)], [episode(20, 100 + i) for i in range(4)])
    trained(data)
    assert [charge.state for charge in charged(data)] == ["committed", "committed"]


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
    assert [charge.state for charge in charged(data)] == ["committed"]
    assert not OUTPUT.exists()
    trained(with_seed(data, 1))
    assert statement()["spent_on_dataset"]["charges"] == 2


def test_an_edit_of_the_engine_charges_nobody_and_says_what_made_the_model(
    data: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(data)
    first = snapshot(Path("models"))
    monkeypatch.setattr("primorl.setup.paid_training.ENGINE_VERSION", ENGINE_VERSION + 1)
    trained(data)
    assert len(charged(data)) == 1
    assert snapshot(Path("models")) == first
    assert f"Engine version {ENGINE_VERSION} began it; this is version {ENGINE_VERSION + 1}." in capsys.readouterr().err
    again = with_changes(data, privacy={"draw": 1})
    for _ in range(2):
        trained(again)
        assert len(charged(data)) == 2
    assert snapshot(Path("models")) != first
    trained(data)
    files = ("model.safetensors", "config.json")  # the statement counts the second charge
    assert [snapshot(Path("models"))[f"dynamics/{name}"] for name in files] == [
        first[f"dynamics/{name}"] for name in files
    ]


@pytest.mark.verdict
def test_a_model_that_training_made_worse_is_an_error_that_keeps_what_was_paid_for(data: Params) -> None:
    loud = with_changes(data, privacy={"target_epsilon": None, "noise_multiplier": 500.0})
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"no better than a constant: its public loss is .* lower dynamics"):
            trained(loud)
        assert [charge.state for charge in charged(loud)] == ["committed"]
    assert not Path("models/dynamics").exists()


@pytest.mark.verdict
def test_a_model_that_learned_something_is_kept(data: Params) -> None:
    learning = {"learning_rate": 0.05, "hidden": [32]}
    privacy = {"rounds": 150, "clipping_norm": 5.0}
    trained(with_changes(data, privacy=privacy, dynamics={**learning, "variant": "no_privacy"}))
    assert Path("models/dynamics/config.json").exists()


def test_a_full_disk_costs_nothing(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, state: Any, **_: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(charges, "write_checkpoint", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                trained(data)
    assert charged(data) == []


def test_a_budgets_delta_must_mean_something(data: Params) -> None:
    with pytest.raises(PipelineError, match=r"privacy.budget.delta: found 0.5, allowed is below 1/9"):
        trained(with_changes(data, privacy={"budget": {"epsilon": 1.0, "delta": 0.5}}))
    assert charged(data) == []


def test_units_that_were_charged_as_private_are_not_published(data: Params) -> None:
    trained(data)
    shutil.rmtree("data/partitions")
    private, public = [episode(20, i) for i in range(9)], [episode(20, 100 + i) for i in range(4)]
    private[0], public[0] = public[0], episode(1, 0)  # the first private unit of `data`, by its rows, is public now
    write_partitions(private, public)
    with pytest.raises(PipelineError, match="holds units that earlier runs were charged for as private"):
        trained(with_seed(data, 1))
    assert len(charged(data)) == 1


def test_rows_of_another_partition_than_the_one_charged_are_refused(data: Params) -> None:
    shutil.rmtree("data/partitions/private")
    names = [f"a{i:03d}" for i in range(9)]
    tiny_policy.write_partition(
        Path("data/partitions/private"), table([episode(9, 50 + i) for i in range(9)], units=names, names=names)
    )
    with pytest.raises(PipelineError, match="its parts are of different partitions; run `dvc repro --force"):
        trained(data)
