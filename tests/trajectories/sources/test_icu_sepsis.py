"""The fast simulation against the package it stands in for: the same tables, the same distribution."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
import torch

from primorl.config.datasets import IcuSepsisDataset
from primorl.dynamics.termination import RULES
from primorl.project.errors import PipelineError
from primorl.simulators.environments import make
from primorl.simulators.icu_sepsis import DEATH, ENVIRONMENTS, SURVIVAL, tables
from primorl.trajectories.checks import RowCheck
from primorl.trajectories.sources import source_of
from primorl.trajectories.sources.icu_sepsis import Patients, simulate
from primorl.trajectories.storage.schema import vectors
from tests.trajectories.builders import INFO, dataset

pytest.importorskip("icu_sepsis")


def entry(observation: str = "centres", environment: str | None = None, **changes: Any) -> IcuSepsisDataset:
    options = {"patients": 60, "expert_share": 0.5, "observation": observation, "seed": 0} | changes
    named = environment or ENVIRONMENTS[observation]  # type: ignore[index]
    ingestion = {"duplicates": "allow"}
    return dataset(IcuSepsisDataset, "icu-sepsis", options, environment=named, ingestion=ingestion)


@pytest.fixture(scope="module")
def package() -> Any:
    """The package's own environment, with its tables."""
    import icu_sepsis

    return icu_sepsis.ICUSepsisEnv()


@pytest.fixture(scope="module")
def patients() -> Patients:
    return simulate(tables(), 100_000, 0.5, seed=0)


def transitions(patients: Patients) -> tuple[Any, Any, Any]:
    """(state, action, next state) of every step."""
    last = np.cumsum(patients.lengths + 1) - 1
    first = last - patients.lengths
    return np.delete(patients.states, last), patients.actions, np.delete(patients.states, first)


def suits(counts: Any, probabilities: Any) -> float:
    """p-value of Pearson's χ² that these counts were drawn with these probabilities; rare outcomes are put together."""
    assert counts[probabilities == 0].sum() == 0
    expected = counts.sum() * probabilities / probabilities.sum()
    often = expected >= 5
    pooled = [np.append(x[often], x[~often].sum()) for x in (counts, expected)]
    some = pooled[1] > 0
    return float(scipy.stats.chisquare(pooled[0][some], pooled[1][some]).pvalue)


def from_commonest(package: Any, patients: Patients) -> list[tuple[Any, Any]]:
    """Successors as counted, and as the package's table has them, of the 40 commonest (state, action)."""
    state, action, after = transitions(patients)
    pair = state.astype(int) * 25 + action
    common = np.argsort(np.bincount(pair, minlength=716 * 25))[-40:]
    return [
        (np.bincount(after[pair == one], minlength=716), package.dynamics["tx_mat"][one // 25, one % 25])
        for one in common
    ]


def test_patients_come_and_go_as_in_the_package(package: Any, patients: Patients) -> None:
    firsts = patients.states[np.cumsum(patients.lengths + 1) - 1 - patients.lengths]
    assert suits(np.bincount(firsts, minlength=716), package.dynamics["d_0"]) > 1e-5
    for counted, probabilities in from_commonest(package, patients):
        assert suits(counted, probabilities) > 1e-5
    state, action, _ = transitions(patients)
    commonest = np.bincount(state).argmax()
    chosen = np.bincount(action[state == commonest], minlength=25)
    assert suits(chosen, 0.5 * package.expert_policy[commonest] + 0.5 / 25) > 1e-5


def test_another_distribution_would_be_seen(package: Any, patients: Patients) -> None:
    rejected = 0
    for counted, probabilities in from_commonest(package, patients):
        flatter = np.where(probabilities > 0, probabilities**0.8, 0)
        rejected += suits(counted, flatter / flatter.sum()) < 1e-5
    assert rejected > 20
    state, action, _ = transitions(patients)
    commonest = np.bincount(state).argmax()
    chosen = np.bincount(action[state == commonest], minlength=25)
    assert suits(chosen, 0.4 * package.expert_policy[commonest] + 0.6 / 25) < 1e-5


def test_rewards_and_ends_are_the_packages(package: Any, project: Path) -> None:
    mdp = simulate(tables(), 60, 0.5, seed=0)
    state, action, after = transitions(mdp)
    table = collected(entry())
    rewards = package.dynamics["r_mat"][state, action, after]
    assert np.array_equal(table["reward"].to_numpy(), rewards.astype(np.float32))
    assert table["terminated"].to_pylist() == [package._is_terminal_state(one) for one in after]
    assert not any(table["truncated"].to_pylist())
    assert np.array_equal(table["action"].to_numpy(), action)
    centres = package.state_cluster_centers[state].astype(np.float32)
    assert np.array_equal(vectors(table["observation"])[:, :47], centres)


@pytest.mark.parametrize("expert_share", [0.5, 1.0])
def test_the_probability_of_each_action_is_that_of_the_mixture(
    package: Any, project: Path, expert_share: float
) -> None:
    state, action, _ = transitions(simulate(tables(), 60, expert_share, seed=0))
    table = collected(entry(expert_share=expert_share, behaviour_probabilities=True))
    assert np.array_equal(table["action"].to_numpy(), action)
    behaviour = expert_share * package.expert_policy + (1 - expert_share) / 25
    found = table["behaviour_probability"].to_numpy()
    assert np.allclose(found, behaviour[state, action], rtol=1e-6, atol=0)
    shifted = np.roll(state, 1)  # the twin: a probability in the state before or after is noticed
    assert not np.allclose(found, behaviour[shifted, action], rtol=1e-2)


def collected(chosen: IcuSepsisDataset) -> pa.Table:
    made = source_of("icu", chosen)
    folder = Path(chosen.options.observation)
    folder.mkdir()
    made.collect(folder)
    reader = made.open(folder)
    tables = list(reader.tables())
    info = replace(INFO, spaces=reader.spaces, horizon=reader.horizon)
    check = RowCheck(replace(info, behaviour_probabilities=reader.behaviour_probabilities), reader.path)
    for table in tables:
        check(table)
    return pa.concat_tables(tables)


@pytest.mark.parametrize(("observation", "size", "block"), [("centres", 50, (47, 3)), ("one_hot", 716, (0, 716))])
def test_what_is_read_passes_the_schema_and_the_rule_tells_the_ends(
    project: Path, observation: str, size: int, block: tuple[int, int]
) -> None:
    table = collected(entry(observation))
    assert len(set(table["unit_id"].to_pylist())) == 60
    seen, following = (vectors(table[name]) for name in ("observation", "next_observation"))
    assert seen.shape[1] == size
    spaces = source_of("icu", entry(observation)).open(Path(observation)).spaces
    assert spaces.one_hot == (block,)
    inside = slice(block[0], sum(block))
    assert (following[:, inside].sum(axis=1) == 1).all()
    assert (following >= spaces.observation_low).all()
    assert (following <= spaces.observation_high).all()
    rule = RULES[f"icu_sepsis_{observation}"]
    over = rule(torch.tensor(seen), torch.empty(len(seen), 25), torch.tensor(following)).tolist()
    assert over == table["terminated"].to_pylist()
    assert sum(over) == 60


def test_the_environment_shows_what_the_data_shows() -> None:
    env = make(ENVIRONMENTS["centres"])
    observations = tables().observations["centres"]
    seen, _ = env.reset(seed=0)
    env.action_space.seed(0)
    ends = set()
    for _ in range(30):
        over = False
        while not over:
            assert (observations == seen).all(axis=1).any()
            seen, reward, over, truncated, _ = env.step(env.action_space.sample())
            assert not truncated
        last = int((observations == seen).all(axis=1).argmax())
        assert last in (DEATH, SURVIVAL)
        assert reward == (last == SURVIVAL)
        ends.add(last)
        seen, _ = env.reset()
    assert ends == {DEATH, SURVIVAL}


def test_damaged_files_are_one_clear_error(project: Path) -> None:
    made = source_of("icu", entry())
    made.collect(project)
    file = project / "patients.npz"
    good = file.read_bytes()
    np.savez(file, states=np.zeros(3, np.int16), actions=np.zeros(3, np.int8), lengths=np.ones(2, np.int32))
    for damaged in (file.read_bytes(), good[:-300], None):
        file.unlink() if damaged is None else file.write_bytes(damaged)
        with pytest.raises(PipelineError, match=r"patients\.npz: missing, truncated or corrupt; run `dvc repro coll"):
            list(made.open(project).tables())


def test_an_environment_with_other_observations_is_refused() -> None:
    with pytest.raises(
        PipelineError, match=r"datasets/icu.yaml: environment: found .*one-hot-v0; allowed with .*: centres"
    ):
        source_of("icu", entry("centres", ENVIRONMENTS["one_hot"]))


def test_a_missing_extra_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.cache_clear()
    monkeypatch.setattr("primorl.simulators.icu_sepsis.find_spec", lambda name: None)
    with pytest.raises(PipelineError, match=r"pip install primorl\[medical\]"):
        source_of("icu", entry()).collect(project)
    monkeypatch.undo()
