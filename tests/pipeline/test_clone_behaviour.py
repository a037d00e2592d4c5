"""How `clone_behaviour` pays, clones and writes; it is idle unless an ε is given, and nothing is paid twice."""

import dataclasses
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline import clone_behaviour
from primorl.config.params import Params
from primorl.policy.behaviour import BehaviourConfig, BehaviourPolicy
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.epsilon import spent, training_event
from primorl.privacy.mechanism.plan import Plan
from primorl.project.errors import PipelineError
from primorl.setup import clone_work
from primorl.setup.partitions import Partitions
from primorl.training import pooled
from primorl.training.cloning import CloningSetup
from primorl.training.public_evaluation import PublicEvaluator
from primorl.training.state import ENGINE_VERSION
from tests.pipeline.tiny_policy import RememberingRun
from tests.pipeline.training_project import charged, watch_private, with_changes
from tests.trajectories.builders import INFO

FOLDER = Path("models/behaviour")
EPSILON, DELTA = 2.0, 1e-3
NOISE = {(EPSILON, DELTA): 1.0}  # the model's mechanism in these tests, whose cost is known by then


@pytest.fixture
def asked(data: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.setattr(clone_work, "ROUNDS", 4)
    monkeypatch.setattr(clone_work, "SAMPLING_PROBABILITY", 0.5)
    monkeypatch.setattr(clone_work, "noise_for", lambda epsilon, delta: NOISE[epsilon, delta])
    monkeypatch.setattr(pooled, "_POOLED", dataclasses.replace(pooled._POOLED, max_epochs=3))
    return with_changes(data, behaviour={"target_epsilon": EPSILON})


def cloned(params: Params) -> RememberingRun:
    run = RememberingRun()
    clone_behaviour.body(params, run)  # type: ignore[arg-type]
    return run


def statement() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / "privacy.json").read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("variant", ["private", "mopo"])
def test_it_is_idle_unless_an_epsilon_is_given(data: Params, variant: str) -> None:
    shutil.rmtree("data/partitions")
    wanted = None if variant == "private" else EPSILON
    cloned(with_changes(data, behaviour={"target_epsilon": wanted}, dynamics={"variant": variant}))
    assert sorted(file.name for file in FOLDER.iterdir()) == ["behaviour.json"]
    assert not BehaviourConfig.read(FOLDER).made
    assert not Path(".primorl/ledger.db").exists()


def test_a_clone_is_charged_before_it_is_trained_and_says_what_it_cost(
    asked: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[list[str]] = []
    watch_private(monkeypatch, lambda: states.append([charge.state for charge in charged(asked)]))
    run = cloned(asked)
    assert states
    assert all(state == ["reserved"] for state in states)
    (charge,) = charged(asked)
    assert (charge.state, charge.stage, charge.dataset, charge.units) == (
        "committed",
        "clone_behaviour",
        INFO.dataset,
        9,
    )
    stated = statement()
    assert stated["epsilon"] == pytest.approx(charge.epsilon, rel=1e-3)
    assert (stated["charge"], stated["private"], stated["rounds"]) == (charge.id, True, 4)
    assert stated["noise_multiplier"] == 1.0
    assert float(run.logged["epsilon"]) == stated["epsilon"]
    config = BehaviourConfig.read(FOLDER)
    assert (config.made, config.rounds, config.engine_version) == (True, 4, ENGINE_VERSION)
    assert config.public_loss is not None
    policy, rows = DeterministicPolicy.load(FOLDER), torch.randn(1, 7, 3)
    mean, _ = BehaviourPolicy.load(FOLDER, torch.device("cpu")).mean_and_std(rows[0])
    torch.testing.assert_close(policy.act(rows)[0], 2 * mean)  # Pendulum's torque
    assert float(mean.abs().max()) > 0


def test_a_version_with_other_constants_charges_nobody_again(asked: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = Partitions.open(Path("data/partitions"))

    def prepared(params: Params) -> tuple[str, str]:
        setup = clone_work.cloning_setup(params, partitions.manifest, partitions.public)
        return clone_work.CLONING.identity(params, partitions), setup.digest

    identity, digest = prepared(asked)
    with monkeypatch.context() as patched:
        patched.setattr(clone_work, "ROUNDS", 5)
        assert prepared(asked)[0] == identity
        assert prepared(asked)[1] != digest
    monkeypatch.setattr(clone_work, "noise_for", lambda epsilon, delta: 1.0)
    changes: list[dict[str, Any]] = [
        {"behaviour": {"target_epsilon": 1.0}},
        {"behaviour": {"hidden": [8]}},
        {"behaviour": {"log_variance_bounds": [-5.0, -4.0]}},
        {"privacy": {"delta": 1e-4}},
        {"privacy": {"draw": 1}},
    ]
    found = {prepared(with_changes(asked, **each))[0] for each in changes}
    assert len({identity, *found}) == 6


def test_a_budget_that_the_clone_exceeds_refuses_it(asked: Params) -> None:
    tight = with_changes(asked, privacy={"budget": {"epsilon": 1.0, "delta": DELTA}})
    with pytest.raises(PipelineError, match=r"with clone_behaviour it would be .*behaviour\.target_epsilon"):
        cloned(tight)
    assert not charged(asked)
    assert not FOLDER.exists()


def test_no_noise_is_drawn_beside_the_plan(asked: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    release, seen = Plan.release, []

    def spying(self: Plan, total: Any) -> Any:
        seen.append((self.noise_multiplier, self.sampling_probability, self.units))
        return release(self, total)

    monkeypatch.setattr(Plan, "release", spying)
    cloned(asked)
    assert seen == [(1.0, clone_work.SAMPLING_PROBABILITY, 9)] * 4


def test_a_clone_costs_what_was_asked_for() -> None:
    noise = clone_work.noise_for(0.5, 1e-5)
    found = spent(clone_work.clone_event(0.5, 1e-5), 1e-5).epsilon_pld
    assert 0.49 < found <= 0.5
    assert clone_work.clone_event(0.5, 1e-5) == training_event(
        clone_work.SAMPLING_PROBABILITY, noise, clone_work.ROUNDS
    )


@pytest.mark.parametrize(("units", "expected"), [(100_000, 0.2), (3_000, 0.1059), (300, 0.01059)])
def test_the_clip_shrinks_where_noise_would_carry_the_weights_away(units: int, expected: float) -> None:
    norm = clone_work.clipping_norm(2457, units, 13.55)
    walk = 13.55 * norm * math.sqrt(2457 * 40) / (0.3 * units) / (1 - 0.9)
    assert walk <= 5.001
    assert norm == expected
    assert clone_work.clipping_norm(2457, units, 0.0) == 0.2


def setup_of(params: Params) -> tuple[CloningSetup, Partitions]:
    partitions = Partitions.open(Path("data/partitions"))
    return clone_work.cloning_setup(params, partitions.manifest, partitions.public), partitions


def test_rounds_begin_with_weights_of_the_public_split_and_move_them_less(asked: Params) -> None:
    setup, partitions = setup_of(asked)
    public = setup.public_of(partitions.public.flat())
    judge = PublicEvaluator(setup.architecture, setup.make_normaliser(public, {}), *public)
    losses = judge.compare(setup.initial_weights(), setup.first_weights())
    assert losses.final < losses.initial - 0.01
    assert setup.local == clone_work.LOCAL_FROM_PUBLIC
    assert setup.plan.clip == clone_work.clone_plan(setup.architecture, partitions.manifest, 1.0, DELTA, walk=0.3).clip


def test_a_network_whose_noise_leaves_no_clip_is_refused_before_the_charge(
    asked: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_work, "noise_for", lambda epsilon, delta: 2000.0)
    with pytest.raises(PipelineError, match=r"behaviour\.hidden: found \[2048, 2048\], .* weights"):
        cloned(with_changes(asked, behaviour={"hidden": [2048, 2048]}))
    assert not charged(asked)


def test_a_spread_of_discrete_actions_is_refused(asked: Params) -> None:
    spaces = dataclasses.replace(INFO.spaces, discrete_actions=True, action_low=(0.0,), action_high=(1.0,))
    manifest: Any = SimpleNamespace(info=dataclasses.replace(INFO, spaces=spaces))
    clone_work.check_actions(asked, manifest)
    with pytest.raises(PipelineError, match=r"log_variance_bounds: found \[-5.0, -4.0\], .* discrete"):
        clone_work.check_actions(with_changes(asked, behaviour={"log_variance_bounds": [-5.0, -4.0]}), manifest)
