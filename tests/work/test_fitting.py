"""What is left open is decided from public facts; what cannot learn, and declared facts that
public rows contradict, are refused before anything is charged.
"""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import yaml
from torch import Tensor

from primorl.base import PipelineError
from primorl.base.files import MANIFEST, MODEL, PARTITIONS, PUBLIC
from primorl.base.processes import choose_device, is_worker
from primorl.config import params as params_module
from primorl.config.params import RULED, Compute, Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine import heads
from primorl.engine import public as pooling
from primorl.model.architecture import TERMINATION_GAIN, Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble
from primorl.model.termination import LEARNED, NONE
from primorl.stages.policy import PublicLog, decide_policy, find_ends, is_undecided
from primorl.stages.training import choose_execution
from primorl.work import rules
from primorl.work.desk import rows_in_memory
from primorl.work.resolve import check_choices, find_objections
from primorl.work.rules import Fit, clone_job
from tests.data.builders import INFO, episode, table
from tests.model.models import plain_maps
from tests.pipeline.training_project import (
    charged,
    noise_of_model,
    states,
    trained,
    unopened,
    with_changes,
    write_partition,
    write_partitions,
)
from tests.projects import ROOT, from_plain, project_settings, write_settings

PRIVACY = {"target_epsilon": 5.0, "delta": 1e-3}
COMMON = {"dynamics.ensemble_size": 2, "dynamics.log_variance_bounds": (-5.0, 3.0)}
COMMON |= {"dynamics.server_momentum": 0.6, "dynamics.server_averaging": 0.9}


def write_data(public: int = 10) -> None:
    write_partitions(
        [episode(1 + 7 * i % 30, i) for i in range(9)],
        [episode(20, 100 + i) for i in range(public)],
    )


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_COMMON", COMMON)
    pooled = replace(pooling._POOLED, max_epochs=3)
    monkeypatch.setattr(pooling, "_POOLED", pooled)


def automatic(small: Params, **given: Any) -> Params:
    raw = params_module.plain(small) | {"dataset": INFO.dataset}
    write_settings(raw)
    raw["privacy"] |= PRIVACY
    raw["dynamics"] |= {"train_anyway": False, "early_stopping": {"every": 2, "patience": None}}
    for key, value in (dict.fromkeys(RULED) | given).items():
        *path, name = key.replace("__", ".").split(".")
        block = raw
        for part in path:
            block = block[part]
        block[name] = value
    own = {key: value for key, value in raw.items() if key not in ("chosen", "online")}
    Path("params.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    return params_module.load(Path("params.yaml"))


def fit(params: Params, units: int | None = None) -> tuple[Params, Fit]:
    manifest = Manifest.load(MANIFEST)
    if units is not None:
        manifest = replace(manifest, private_units=units)
    return rules.fit_model(params, manifest, UnitStore.open(PUBLIC))


@pytest.fixture
def data(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    write_data()
    quick(monkeypatch)
    return small


def public_units(number: int) -> None:
    shutil.rmtree(PARTITIONS)
    write_data(public=number)


def test_a_round_that_hardly_anybody_joins_is_refused(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise_of_model(monkeypatch, 1.0)
    manifest, public = Manifest.load(MANIFEST), UnitStore.open(PUBLIC)
    asked = [fit(automatic(data, privacy__sampling_probability=q))[0] for q in (0.12, 0.1)]
    check_choices(asked[0], manifest, public)
    with pytest.raises(PipelineError, match=r"found 0\.1; allowed is at least 1/9"):
        check_choices(asked[1], manifest, public)


def test_what_cannot_learn_is_refused_before_the_ledger_is_asked(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise_of_model(monkeypatch, 20.0)
    noisy = {"privacy__sampling_probability": 1.0}
    params = automatic(data, **noisy)
    with monkeypatch.context() as patched:
        unopened(patched)
        with pytest.raises(PipelineError, match=r"cannot learn: .* Nothing was charged"):
            trained(params)
    assert charged(params) == []
    assert not MODEL.exists()
    anyway = automatic(data, **noisy, dynamics__train_anyway=True)
    trained(anyway)
    config = json.loads((MODEL / "config.json").read_text())
    assert config["can_learn"] == "no"
    assert any("cannot learn" in line for line in config["warnings"]), "it bars a trial"
    unopened(monkeypatch)
    trained(anyway)
    assert states(anyway) == ["committed"]


def test_the_noise_of_all_rounds_decides_about_a_network(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    public_units(3)
    given = {"privacy__sampling_probability": 0.5, "privacy__rounds": 16, "dynamics__hidden": [5]}
    chosen, _ = fit(automatic(data, **given))
    layers = ((4 + 1, 5), (5 + 1, 2 * 4 + 1))
    weights = (chosen.dynamics.ensemble_size or 0) * sum(w * b for w, b in layers)
    for share, answer in ((0.199, "yes"), (0.201, "marginal"), (0.549, "marginal"), (0.551, "no")):
        noise = share * 0.5 * 9 * 4 / math.sqrt(weights)
        noise_of_model(monkeypatch, noise)
        found = fit(automatic(data, **given))[1]
        assert (found.answer, "(too much: at most 0.2 is a yes" in found.why) == (
            answer,
            answer != "yes",
        )
    noise_of_model(monkeypatch, 1.0)
    params = automatic(data)
    sizes = [fit(params, units=units)[0].dynamics.hidden for units in (100_000, 60, 35, 9)]
    assert (sizes[0], sizes[-1]) == ((64, 64), (16,)), "the largest that the noise leaves room for"
    assert sizes == sorted(sizes, key=lambda hidden: -sum(hidden or ()))
    assert fit(params, units=5)[1].answer == "no"


def test_the_noise_in_predictions_decides_about_linear_heads(small: Params) -> None:
    write_partitions([episode(9, i) for i in range(12)])
    asked = {"partition__public_fraction": 0, "privacy__target_epsilon": 1.0}
    params = automatic(small, **asked, dynamics__model="linear", dynamics__degree=2)
    answers = {}
    for units in (20, 100, 3000):
        chosen, found = fit(params, units)
        assert chosen.dynamics.model == "linear"
        answers[units] = found.answer
    assert answers == {20: "no", 100: "marginal", 3000: "yes"}


def test_the_class_is_a_network_where_noise_and_rows_allow_one(small: Params) -> None:
    write_partitions([episode(9, i) for i in range(12)])
    for units, epsilon, hidden, expected, answer in (
        (10**6, 1.0, None, "network", "yes"),
        (10**5, 0.002, None, "linear", "marginal"),  # instead of a network that may learn little
        (10**4, 0.01, (64, 64), "linear", "marginal"),  # instead of the network of so many rows
        (3000, 100.0, None, "linear", "yes"),  # too few rows
    ):
        asked: dict[str, Any] = {} if hidden is None else {"dynamics__hidden": hidden}
        asked |= {"partition__public_fraction": 0, "privacy__target_epsilon": epsilon}
        asked["privacy__sampling_probability"] = 1.0  # accounted in no time
        params = automatic(small, **asked)
        left = replace(params, dynamics=replace(params.dynamics, model=None))
        chosen, found = fit(left, units)
        assert (chosen.dynamics.model, found.answer) == (expected, answer)


def test_several_continuous_actions_over_long_trajectories_are_doubted(small: Params) -> None:
    """Twins: one action, a short trajectory, or somebody public, is answered as before."""
    write_partitions([episode(9, i) for i in range(12)])
    asked = {"partition__public_fraction": 0, "privacy__target_epsilon": 1.0}
    params = automatic(small, **asked, dynamics__model="linear")
    manifest = replace(Manifest.load(MANIFEST), private_units=10**5)
    for actions, length, public, answer in (
        (2, 1000, 0, "marginal"),
        (1, 1000, 0, "yes"),
        (2, 200, 0, "yes"),
        (2, 1000, 9, "yes"),
    ):
        ends: dict[str, Any] = {"action_low": (-1.0,) * actions, "action_high": (1.0,) * actions}
        spaces = replace(manifest.info.spaces, **ends, action_names=())
        info = replace(manifest.info, spaces=spaces, horizon=length)
        other = replace(manifest, info=info, public_units=public)
        store: Any = SimpleNamespace(info=info, units=public, observation_size=3)
        assert rules.fit_model(params, other, store)[1].answer == answer


def test_a_model_that_sees_few_columns_beside_the_noise_is_doubted(small: Params) -> None:
    """Or none of an outcome at the end. Twins: more people; scales that public people tell."""
    write_partitions([episode(9, i) for i in range(12)])
    asked = {"partition__public_fraction": 0, "privacy__target_epsilon": 1.0}
    params = automatic(small, **asked, dynamics__model="linear", dynamics__degree=1)
    cases: list[tuple[int, Any, Any, str]] = [
        (150, (-1.0, 1.0), None, "marginal"),
        (3000, (-1.0, 1.0), None, "yes"),
        (2000, (-1.0, 1.0), (0.0, 0.0), "marginal"),  # at the end of 50 steps
        (30_000, (-1.0, 1.0), (0.0, 0.0), "yes"),
        (150, "public", None, "yes"),
    ]
    for units, reward, before_end, answer in cases:
        bounds = replace(params.chosen.bounds, reward=reward, before_end=before_end)
        own = replace(params.chosen, bounds=bounds, horizon=50)
        chosen = replace(fit(params, units)[0], chosen=own)
        manifest = replace(Manifest.load(MANIFEST), private_units=units)
        mechanism = rules.model_job(chosen, manifest).build_mechanism(manifest)
        doubted = rules.doubt_scales(Fit("yes", "because"), chosen, mechanism)
        assert doubted.answer == answer
        assert ("the noise may hide a reward" in doubted.reason) == (reward != "public")
        assert ("(too much: at most" in doubted.reason) == (answer == "marginal")
        assert ("have the rarer one" in doubted.reason) == (before_end is not None)
        assert "no trial" not in doubted.reason, "a simulator measures the policy"
        if reward != "public":
            log = replace(chosen, chosen=replace(own, environment=None))
            error = math.sqrt(2) * heads.noise_of_queries(mechanism)[heads.EXPLAINED]
            reason = rules.doubt_scales(Fit("yes", "because"), log, mechanism).reason
            assert f"then explains less than about {2 * error:.0%} of the reward" in reason


def rewarded(reward: np.ndarray[Any, Any], terminated: bool = False, private: float = 0.0) -> None:
    shutil.rmtree("data", ignore_errors=True)
    public = [replace(episode(len(reward), 100 + i, terminated), rewards=reward) for i in range(2)]
    write_partitions(
        [replace(episode(5, i), rewards=np.full(5, private)) for i in range(3)], public
    )


def found(small: Params, reward: list[float] | str = "public") -> tuple[list[str], list[str]]:
    bounds = {"bounds": {"observation": "space", "reward": reward}}
    params = with_changes(small, dynamics={"train_anyway": False}, chosen=bounds)
    return find_objections(params, Manifest.load(MANIFEST), UnitStore.open(PUBLIC))


def test_equal_rewards_stop_unless_a_longer_episode_earns_more(small: Params) -> None:
    for reward, terminated, stopped in ((0, False, 1), (0, True, 1), (1, False, 1), (1, True, 0)):
        rewarded(np.full(20, reward), terminated)
        assert len(found(small)[0]) == stopped
        rewarded(np.append(np.full(19, reward), 5.0), terminated)
        assert not found(small)[0]


def test_public_values_outside_declared_bounds_are_warned_of_and_from_a_fifth_on_stop(
    small: Params,
) -> None:
    for beyond, warned, stopped in ((0, 0, 0), (1, 1, 0), (8, 1, 0), (9, 0, 1)):
        reward = np.linspace(-1, 0, 40)
        reward[:beyond] = 3.0
        rewarded(reward, private=99.0)
        stops, warnings = found(small, [-1.0, 0.0])
        assert (len(warnings), len(stops)) == (warned, stopped)
        for line in stops + warnings:
            share = f"{100 * beyond / 40:.3g}%"
            assert f"bounds.reward: {share} of the public values of 'reward' lie outside" in line
            assert " to 3;" in line


SHAPE = Architecture(3, 1, 1, (2,), -10.0, 0.5)
BOX, ONE = torch.full((3,), 9.0), torch.ones(1)
AS_IS = plain_maps(4, 4)
CONSTANT = GaussianEnsemble(
    SHAPE, SHAPE.initial_weights(0), AS_IS, Bounds(-BOX, BOX, -ONE, ONE, -12.0, 0.0)
)


@pytest.fixture
def public(tmp_path: Path) -> PublicLog:
    content = table(
        [episode(n, seed=n) for n in (3, 5, 10)], units=["a", "a", "b"], names=["a0", "a1", "b0"]
    )
    write_partition(tmp_path / "public", content)
    return PublicLog(tmp_path, UnitStore.open(tmp_path / "public"))


@pytest.fixture
def auto() -> Params:
    return from_plain(project_settings())


def test_recordings_go_on_as_long_as_public_ones_and_ends_of_the_model_are_not_counted_twice(
    public: PublicLog,
) -> None:
    """Each person counts once: the one with two trajectories, too."""
    shares = public.step_shares(NONE)
    assert shares.tolist() == pytest.approx([1, 1, 1, *[3 / 4] * 2, *[1 / 2] * 5])
    recorded = public.trajectories
    assert recorded is not None
    public.__dict__["trajectories"] = replace(recorded, terminated=recorded.length == 5)
    assert public.step_shares(None).tolist() == pytest.approx([1, 1, 1, *[3 / 4] * 7])
    assert public.step_shares(NONE)[5] == pytest.approx(1 / 2)


def test_learned_ends_are_used_where_episodes_then_last_as_the_peoples_do(
    auto: Params,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A chance of 5% a step is fitted to lengths of 10%. The twin: lengths that no chance makes."""
    shape = replace(SHAPE, learned_termination=True)
    weights = shape.initial_weights(0)
    weights[-1][..., -1] = math.log(0.05 / 0.95) / TERMINATION_GAIN
    model = GaussianEnsemble(shape, weights, replace(AS_IS, flag=True), CONSTANT.bounds, LEARNED)
    still = SimpleNamespace(policies=1, act=lambda seen: torch.zeros(1, seen.shape[1], 1))
    tenth = 0.9 ** torch.arange(40, dtype=torch.float64)
    at_once = (torch.arange(40) < 12).double()
    place = "primorl.stages.policy."
    monkeypatch.setattr(place + "BehaviourPolicy.load", lambda *_: None)
    monkeypatch.setattr(place + "SampledClone", lambda *_: still)
    monkeypatch.setattr(place + "_noise_of_lengths", lambda: 0.0)
    monkeypatch.setattr(PublicLog, "begin", lambda *_: torch.zeros(4, 3))
    nobody = PublicLog(tmp_path, None)
    for lengths, believed in ((tenth, True), (at_once, False)):

        def released(_: Path, *, by_model: bool, lengths: Tensor = lengths) -> Tensor:
            return torch.ones_like(lengths) if by_model else lengths

        monkeypatch.setattr(place + "survival_of", released)
        ends = find_ends(auto, nobody, model, near_clone=True)
        assert (ends != NONE) is believed
        assert ("not used" in capsys.readouterr().err) is not believed
        if isinstance(ends, float):
            state = torch.zeros(1, 3), torch.zeros(1, 1)
            fitted = model.with_ends(ends).predict(*state)[2]
            assert fitted is not None
            assert float(fitted) == pytest.approx(0.1, abs=0.02)
    assert find_ends(auto, nobody, model, near_clone=False) == NONE, "there is no clone"


def test_people_who_consented_do_not_stand_for_those_who_were_asked(
    public: PublicLog, auto: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "primorl.stages.policy.open_public", lambda _: UnitStore.open(tmp_path / "public")
    )
    for first_states, expected in ((True, None), (False, 2)):
        asked = "primorl.evaluate.private.problem.has_private_starts"
        monkeypatch.setattr(asked, lambda folder, there=first_states: there)
        found = PublicLog.open(auto).public
        assert (None if found is None else found.units) == expected


def test_values_follow_the_public_rows(public: PublicLog, auto: Params) -> None:
    assert public.public is not None
    assert is_undecided(auto.policy)
    found = decide_policy(auto.policy, public, CONSTANT, near_clone=True)
    assert not is_undecided(found)
    spread = float(public.public.flat()[1][:, 3].double().std(correction=0))
    assert found.reward_scale == pytest.approx(10 / (spread * 7))
    assert found.horizon == 7
    assert 7 * (found.rollout_batch or 0) == pytest.approx(5000, abs=6)
    alone = decide_policy(auto.policy, public, CONSTANT, near_clone=False)
    assert alone.reward_scale == pytest.approx(3 * (found.reward_scale or 0))
    many = replace(auto.policy, epochs=24, updates_per_epoch=1600, discount=0.99)
    rates = [
        decide_policy(policy, public, CONSTANT, near_clone=near).target_rate
        for policy, near in ((many, True), (many, False), (replace(many, epochs=4), False))
    ]
    assert rates == [0.005, pytest.approx(4 / (38_400 * 0.01)), 0.02]
    given = replace(auto.policy, horizon=9)
    assert decide_policy(given, public, CONSTANT, near_clone=True).horizon == 9
    large = replace(given, rollout_batch=20_000, epochs=1, updates_per_epoch=6)
    assert decide_policy(large, public, CONSTANT, near_clone=True).buffer_size == 180_000


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}


CPU = Compute(device="cpu")


def test_torchrun_says_which_process_this_is_and_what_it_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 << 20))
    alone = choose_execution(CPU)
    assert (alone.rank, alone.ranks, is_worker()) == (0, 1, False)
    assert rows_in_memory() == 8 << 20
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    shared = choose_execution(CPU)
    assert (shared.rank, shared.ranks, is_worker()) == (3, 4, True)
    assert rows_in_memory() == 2 << 20
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert choose_device("auto") == torch.device("cuda", 1)


def test_openmp_and_mkl_are_told_how_to_work_before_torch_is_loaded() -> None:
    names = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_CBWR")
    code = f"import os, sys, primorl; print(*map(os.environ.get, {names}), 'torch' in sys.modules)"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "10000 1 AUTO False\n"


@pytest.mark.parametrize(("discrete", "epsilon", "hidden"), [(0, 1, 32), (1, 1, 0), (1, 50, 32)])
def test_a_clone_has_the_models_scales_linear_logits_beside_noise_and_counts_rows_where_they_end(
    small: Params, monkeypatch: pytest.MonkeyPatch, discrete: int, epsilon: float, hidden: int
) -> None:
    noise_of_model(monkeypatch, 1.0)
    write_partitions([episode(9, i) for i in range(12)])
    asked = {"partition__public_fraction": 0, "privacy__shares": {"model": 0.7, "clone": 0.3}}
    params = automatic(small, **asked, privacy__target_epsilon=float(epsilon))
    found = replace(Manifest.load(MANIFEST), private_units=1000)
    spaces = replace(found.info.spaces, discrete_actions=bool(discrete))
    for ends, full in ((NONE, None), (LEARNED, 20)):
        info = replace(found.info, termination=ends, horizon=40, spaces=spaces)
        manifest = replace(found, info=info)
        clone = clone_job(params, manifest, UnitStore.open(PUBLIC), "0" * 64)
        assert clone.hidden == ((hidden,) if hidden else ())
        assert (clone.normaliser, clone.scaled_by) == ("model", "0" * 64)
        assert clone.local.full_rows == full
        assert list(clone.mechanism.queries) == ["persistence", "products"]
    few = replace(manifest, private_units=12 if epsilon > 1 else 100)
    clone = clone_job(params, few, UnitStore.open(PUBLIC), "0" * 64)
    assert list(clone.mechanism.queries) == ["persistence"], "noise would hide it"
