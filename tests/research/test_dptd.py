"""The baselines of DPTD: other steps on the same clipped gradients, and single transitions as units."""

import math
from dataclasses import replace

import pytest
import torch

from research import dptd


def test_baselines_step_against_and_along_the_gradients() -> None:
    values = {name: torch.full((2, 3), 0.9, dtype=torch.float64) for name in ("theta", "omega")}
    p, d = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    after = dptd.descent_ascent(values, p, d, 0.5)
    torch.testing.assert_close(after["theta"], (values["theta"] - 0.5 * p).clamp(-1, 1))
    torch.testing.assert_close(after["omega"], (values["omega"] + 0.5 * d).clamp(-1, 1))
    assert torch.equal(after["earlier_theta"], values["theta"])
    step = dptd.langevin_step(8.0, 5.0, 1.0)
    assert step * 5.0 == pytest.approx(math.sqrt(2 * step / 8.0))
    assert dptd.langevin_step(8.0, 0.0, 0.1) == dptd.langevin_step(8.0, 1e-9, 0.1) == 0.1


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
