"""The lines of DPTD's figures: all methods run, and a run's release holds its own cohort alone, clipped."""

from dataclasses import replace

import pytest
import torch

from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from research import dptd

TASK = "CartPole-v1, poor player"


def test_every_method_runs_on_a_small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UPDATES": 5, "EPOCH": 2, "RUNS": 2}.items():
        monkeypatch.setattr(dptd, name, value)
    monkeypatch.setattr(dptd, "TASKS", {TASK: replace(dptd.TASKS[TASK], learning=2)})
    monkeypatch.setattr(dptd, "ESTIMATOR", replace(dptd.ESTIMATOR, members=2, rounds=5))
    monkeypatch.setattr(dptd, "DPTD", replace(dptd.DPTD, rounds=3))
    dptd.log_of.cache_clear()
    for method in dptd.NAMES:
        epsilon = None if method in ("td", "clip", "sgd_plain") else 1.0
        row = dptd.made({"task": TASK, "method": method, "epsilon": epsilon, "units": 20})
        assert torch.tensor(row["value"]).isfinite().all()
        assert len(row["value"]) == 2
        if method != "pipeline":
            assert len(row["objective_mean"]) == 3
            assert (row["noise_multiplier"] > 0) == (epsilon is not None)
    problem, whole, _ = dptd.log_of(TASK, 20)
    network, values = dptd.ESTIMATOR.network(problem), dptd.ESTIMATOR.begin(problem)
    for q, largest in ((1.0, 20 * 1e-3), (1e-9, 0.0)):
        plan = Plan(20, "trajectory", PoissonSampler(q), L2Clip(1e-3), 1.0, 5, 1e-3)
        total = dptd.contributed(plan, network, values, whole, 0.0).view(2, -1)
        assert (total.norm(dim=1) <= largest).all()
        assert bool(total.any()) == (q == 1.0), "padding contributes nothing"
    dptd.log_of.cache_clear()
