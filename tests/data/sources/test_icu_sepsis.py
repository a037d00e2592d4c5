"""The fast simulation against the package it stands in for: the same tables, the same distribution."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from primorl.base.errors import PipelineError
from primorl.config.datasets import IcuSepsisDataset
from primorl.data.checks import RowCheck
from primorl.data.sources import source_of
from primorl.data.sources.icu_sepsis import Patients, simulate
from primorl.data.storage.schema import vectors
from primorl.model.termination import RULES
from primorl.simulators.environments import make
from primorl.simulators.icu_sepsis import DEATH, ENVIRONMENTS, SURVIVAL, tables
from tests.data.builders import INFO, dataset

pytest.importorskip("icu_sepsis")


def entry(
    observation: str = "centres", environment: str | None = None, **changes: Any
) -> IcuSepsisDataset:
    options = {"patients": 60, "expert_share": 0.5, "observation": observation, "seed": 0} | changes
    named = environment or ENVIRONMENTS[observation]  # type: ignore[index]
    ingestion = {"duplicates": "allow"}
    return dataset(IcuSepsisDataset, "icu-sepsis", options, environment=named, ingestion=ingestion)


@pytest.fixture(scope="module")
def package() -> Any:
    """The package's own environment, with its tables."""
    import icu_sepsis

    return icu_sepsis.ICUSepsisEnv()


def transitions(patients: Patients) -> tuple[Any, Any, Any]:
    """(state, action, next state) of every step."""
    last = np.cumsum(patients.lengths + 1) - 1
    first = last - patients.lengths
    return np.delete(patients.states, last), patients.actions, np.delete(patients.states, first)


def test_the_tables_are_the_packages_and_patients_are_drawn_from_them(package: Any) -> None:
    mdp = tables()
    rows = np.searchsorted(np.arange(1, 716 * 25 + 1), mdp.cumulated - 1e-12)
    before = np.where(np.diff(rows, prepend=-1) > 0, rows, np.append(0, mdp.cumulated[:-1]))
    probabilities = np.zeros((716 * 25, 716))
    probabilities[rows, mdp.successors] = mdp.cumulated - before
    assert np.allclose(probabilities, package.dynamics["tx_mat"].reshape(-1, 716), atol=1e-9)
    assert np.allclose(np.diff(mdp.first, prepend=0), package.dynamics["d_0"], atol=1e-9)

    patients = simulate(mdp, 100_000, 0.5, seed=0)
    state, action, after = transitions(patients)
    firsts = patients.states[np.cumsum(patients.lengths + 1) - 1 - patients.lengths]
    commonest = np.bincount(state).argmax()
    here = state == commonest
    policy = 0.5 * package.expert_policy[commonest] + 0.5 / 25
    chosen = int(np.bincount(action[here]).argmax())
    there = here & (action == chosen)
    successors = package.dynamics["tx_mat"][commonest, chosen]
    for drawn, law, other in (
        (firsts, package.dynamics["d_0"], np.roll(package.dynamics["d_0"], 1)),
        (
            action[here],
            policy,
            0.4 * package.expert_policy[commonest] + 0.6 / 25,
        ),  # the twins must fail
        (after[there], successors, np.roll(successors, 1)),
    ):
        counts = np.bincount(drawn, minlength=len(law))
        for expected, passes in ((len(drawn) * law, True), (len(drawn) * other, False)):
            assert (np.abs(counts - expected) <= 5.5 * np.sqrt(expected) + 1).all() == passes


def collected(chosen: IcuSepsisDataset) -> pa.Table:
    made, folder = source_of("icu", chosen), Path(chosen.options.observation)
    folder.mkdir()
    made.collect(folder)
    reader = made.open(folder)
    info = replace(INFO, spaces=reader.spaces, horizon=reader.horizon)
    check = RowCheck(
        replace(info, behaviour_probabilities=reader.behaviour_probabilities), reader.path
    )
    tables = list(reader.tables())
    for table in tables:
        check(table)
    return pa.concat_tables(tables)


def test_rewards_ends_and_probabilities_are_the_packages(package: Any, project: Path) -> None:
    state, action, after = transitions(simulate(tables(), 60, 0.5, seed=0))
    table = collected(entry(behaviour_probabilities=True))
    rewards = package.dynamics["r_mat"][state, action, after]
    assert np.array_equal(table["reward"].to_numpy(), rewards.astype(np.float32))
    assert table["terminated"].to_pylist() == [package._is_terminal_state(one) for one in after]
    assert not any(table["truncated"].to_pylist())
    assert np.array_equal(table["action"].to_numpy(), action)
    centres = package.state_cluster_centers[state].astype(np.float32)
    assert np.array_equal(vectors(table["observation"])[:, :47], centres)
    behaviour = 0.5 * package.expert_policy + 0.5 / 25
    found = table["behaviour_probability"].to_numpy()
    assert np.allclose(found, behaviour[state, action], rtol=1e-6, atol=0)
    shifted = np.roll(state, 1)  # the twin: a probability in the state before or after is noticed
    assert not np.allclose(found, behaviour[shifted, action], rtol=1e-2)


@pytest.mark.parametrize(
    ("observation", "size", "block"), [("centres", 50, (47, 3)), ("one_hot", 716, (0, 716))]
)
def test_what_is_read_passes_the_schema_and_the_rule_tells_the_ends(
    project: Path, observation: str, size: int, block: tuple[int, int]
) -> None:
    table = collected(entry(observation))
    assert len(set(table["unit_id"].to_pylist())) == 60
    seen, following = (vectors(table[name]) for name in ("observation", "next_observation"))
    spaces = source_of("icu", entry(observation)).open(Path(observation)).spaces
    assert (seen.shape[1], spaces.one_hot) == (size, (block,))
    assert (following[:, block[0] : sum(block)].sum(axis=1) == 1).all()
    assert ((following >= spaces.observation_low) & (following <= spaces.observation_high)).all()
    rule = RULES[f"icu_sepsis_{observation}"]
    over = rule(torch.tensor(seen), torch.empty(len(seen), 25), torch.tensor(following)).tolist()
    assert over == table["terminated"].to_pylist()


def test_the_environment_shows_what_the_data_shows() -> None:
    env = make(ENVIRONMENTS["centres"])
    observations = tables().observations["centres"]
    env.action_space.seed(0)
    ends = set()
    for episode in range(30):
        seen, over = env.reset(seed=0 if episode == 0 else None)[0], False
        while not over:
            assert (observations == seen).all(axis=1).any()
            seen, reward, over, _, _ = env.step(env.action_space.sample())
        last = int((observations == seen).all(axis=1).argmax())
        assert reward == (last == SURVIVAL)
        ends.add(last)
    assert ends == {DEATH, SURVIVAL}


def test_damaged_files_another_environment_and_a_missing_extra_are_one_clear_error(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = source_of("icu", entry())
    made.collect(project)
    file = project / "patients.npz"
    good = file.read_bytes()
    np.savez(
        file,
        states=np.zeros(3, np.int16),
        actions=np.zeros(3, np.int8),
        lengths=np.ones(2, np.int32),
    )
    for damaged in (file.read_bytes(), good[:-300], None):
        file.unlink() if damaged is None else file.write_bytes(damaged)
        with pytest.raises(
            PipelineError,
            match=r"patients\.npz: missing, truncated or corrupt; run `dvc repro coll",
        ):
            list(made.open(project).tables())
    with pytest.raises(
        PipelineError, match=r"icu.yaml: environment: found .*one-hot-v0; allowed with .*: centres"
    ):
        source_of("icu", entry("centres", ENVIRONMENTS["one_hot"]))
    tables.cache_clear()
    monkeypatch.setattr("primorl.simulators.icu_sepsis.find_spec", lambda name: None)
    with pytest.raises(PipelineError, match=r"pip install primorl\[medical\]"):
        source_of("icu", entry()).collect(project)
