from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primorl.base.errors import PipelineError
from primorl.config.datasets import PropofolDataset
from primorl.data.checks import RowCheck
from primorl.data.sources import source_of
from primorl.data.sources.propofol import anaesthetise
from primorl.data.storage.schema import vectors
from primorl.simulators.environments import make
from tests.data.builders import INFO, dataset

pytest.importorskip("anesthesim")

ENVIRONMENT = "anesthesim:anesthesim/PropofolControl-v0"


def entry(**changes: Any) -> PropofolDataset:
    options = {
        "patients": 12,
        "base": [0.0, 200.0],
        "gain": [0.0, 8.0],
        "noise": [0.0, 60.0],
        "seed": 0,
    } | changes
    return dataset(PropofolDataset, "propofol", options, environment=ENVIRONMENT, horizon=200)


def test_every_patient_is_read_back_whole(project: Path) -> None:
    made = source_of("propofol", entry())
    made.collect(project)
    reader = made.open(project)
    (table,) = reader.tables()
    RowCheck(replace(INFO, spaces=reader.spaces), reader.path)(table)
    assert len(set(table["unit_id"].to_pylist())) == 12
    assert table.num_rows == 12 * 200
    assert sum(table["truncated"].to_pylist()) == 12
    rates = vectors(table["action"])[:, 0]
    shown = vectors(table["next_observation"])[
        :, 4
    ]  # what the simulator says was infused, as a share of the fastest
    assert np.allclose(shown, rates / 200, atol=1e-6)
    with pytest.raises(
        PipelineError,
        match=r"datasets/x.yaml: environment: found Pendulum-v1; allowed is anesthesim",
    ):
        source_of("x", replace(entry(), environment="Pendulum-v1"))


def test_each_patient_has_a_body_and_a_controller_of_its_own_and_may_end_early() -> None:
    env = make(ENVIRONMENT)
    options = entry(noise=[0.0, 1e-9], base=[40.0, 120.0], gain=[0.5, 2.0]).options
    found, bodies = [], []
    for seeds in np.random.SeedSequence(0).spawn(6):
        episode = anaesthetise(env, options, seeds)
        error, rate = (
            episode.observations[:-1, 3].astype(float),
            episode.actions[:, 0].astype(float),
        )
        inside = (rate > 0) & (rate < 200)
        gain, base = np.polyfit(error[inside], rate[inside], 1)
        assert np.allclose(rate[inside], base + gain * error[inside], atol=1e-2)
        assert 40 <= base <= 120
        assert 0.5 <= gain <= 2
        assert (episode.terminated, episode.truncated) == (False, True)
        found.append((round(base, 3), round(gain, 3)))
        bodies.append(
            episode.observations[1, 0] / rate[0]
        )  # plasma after one step, by what was infused
    assert len(set(found)) == 6
    assert np.std(bodies) / np.mean(bodies) > 0.02
    deep = entry(base=[199.0, 200.0], gain=[0.0, 1e-9], noise=[0.0, 1e-9]).options
    episode = anaesthetise(env, deep, np.random.SeedSequence(0).spawn(1)[0])
    assert (episode.terminated, episode.truncated, len(episode.rewards) < 200) == (
        True,
        False,
        True,
    )
