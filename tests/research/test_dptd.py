"""The baselines of DPTD: other steps on the same clipped gradients, and single transitions as units."""

from dataclasses import replace

import pytest
import torch

from research import dptd


def test_every_method_runs_on_a_small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UNITS": 20, "EPOCHS": 5, "RUNS": 2}.items():
        monkeypatch.setattr(dptd, name, value)
    monkeypatch.setattr(dptd, "TASKS", {"CartPole-v1": replace(dptd.TASKS["CartPole-v1"], learning=2)})
    monkeypatch.setattr(dptd, "ESTIMATOR", replace(dptd.ESTIMATOR, members=2, rounds=5))
    dptd.log_of.cache_clear()
    for method in dptd.NAMES:
        epsilon = None if method in ("td", "sgd_plain") else 1.0
        row = dptd.made({"environment": "CartPole-v1", "method": method, "epsilon": epsilon})
        assert torch.tensor(row["objective"]).isfinite().all()
        assert (row["noise_multiplier"] > 0) == (epsilon is not None)
    problem, batch, _ = dptd.log_of("CartPole-v1")
    flat = dptd.flat(batch)
    assert flat.weight.shape[1] == batch.weight.shape[1] * batch.weight.shape[2]
    # Without clip and noise, the mean over transitions weighs as many of them as there are.
    values = dptd.ESTIMATOR.begin(problem)
    each = dptd.ESTIMATOR.network(problem).gradients(values["theta"], values["omega"], flat)
    assert not each[~(flat.weight > 0).flatten()].any(), "an empty place contributes nothing"
    dptd.log_of.cache_clear()
