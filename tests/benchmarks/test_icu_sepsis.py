"""The figures of docs/datasets/icu-sepsis.md are those of the MDP that patients are simulated from."""

import numpy as np
import pytest

from primorl.simulators.icu_sepsis import SURVIVAL

pytest.importorskip("icu_sepsis")

from benchmarks.quality.icu_sepsis_world import PATIENTS, World, data, greedy, world


@pytest.fixture(scope="module")
def mdp() -> World:
    """The tables."""
    return world()


def test_survival_by_the_tables_is_that_of_simulated_patients(mdp: World) -> None:
    """Five standard errors of 98,000 patients. The twin: a better policy is told apart."""
    simulated, close = float((data(0).after == SURVIVAL).sum() / PATIENTS), 5 * (0.78 * 0.22 / PATIENTS) ** 0.5
    assert abs(mdp.survival(mdp.behaviour) - simulated) < close
    assert mdp.survival(greedy(mdp.action_values(mdp.behaviour))) - simulated > 10 * close


def test_visits_are_those_of_simulated_patients(mdp: World) -> None:
    """Steps of a stay, and where they are. The twin: another policy's are told apart."""
    visits, counted = mdp.visits(mdp.behaviour), np.bincount(data(0).states, minlength=len(mdp.first)) / PATIENTS
    assert visits.sum() == pytest.approx(counted.sum(), rel=0.02)
    assert np.abs(visits - counted).sum() < 0.05 * visits.sum()
    better = mdp.visits(greedy(mdp.action_values(mdp.behaviour)))
    assert np.abs(better - counted).sum() > 0.05 * visits.sum()
