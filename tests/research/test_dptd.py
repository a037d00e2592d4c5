"""The lines of DPTD's figures: all methods run, a run's release holds its own cohort alone,
clipped, and in a project it pays once.
"""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from primorl.base import PipelineError
from primorl.config.params import Params
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.privacy.statement import Statement
from primorl.work.data import open_to_charge
from research import dptd, dptd_project
from research.dptd_network import TdBatch, ValueNetwork
from tests.pipeline.conftest import data, small, without_groups
from tests.pipeline.training_project import killed, watch_private

TASK = "CartPole-v1, poor player"


def test_every_method_runs_on_a_small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UPDATES": 5, "EPOCH": 2, "RUNS": 2}.items():
        monkeypatch.setattr(dptd, name, value)
    monkeypatch.setattr(dptd, "TASKS", {TASK: replace(dptd.TASKS[TASK], learning=2)})
    monkeypatch.setattr(dptd, "ALGORITHM", replace(dptd.ALGORITHM, members=2))
    dptd.log_of.cache_clear()
    for method in ("td", "offset", "noise", "dpgld", "dpsrm"):
        epsilon = None if method == "td" else 1.0
        row = dptd.make_row({"task": TASK, "method": method, "epsilon": epsilon, "units": 20})
        assert torch.tensor(row["value"]).isfinite().all()
        assert len(row["value"]) == 2
        assert len(row["objective_mean"]) == 3
        assert (row["noise_multiplier"] > 0) == (epsilon is not None)
    log, _ = dptd.log_of(TASK, 20)
    network = ValueNetwork(log.inputs.shape[-1], dptd.ALGORITHM.hidden)
    values = dptd.ALGORITHM.begin(network)
    for q, largest in ((1.0, 20 * 1e-3), (1e-9, 0.0)):
        mechanism = Mechanism(20, "trajectory", q, L2Clip(1e-3), 1.0, 5, 1e-3)
        total = dptd.sum_gradients(mechanism, network, values, log).view(2, -1)
        assert (total.norm(dim=1) <= largest).all()
        assert bool(total.any()) == (q == 1.0), "padding contributes nothing"
    dptd.log_of.cache_clear()


def slow_loss(network: ValueNetwork, theta: Tensor, omega: Tensor, *parts: Tensor) -> Tensor:
    """ℓ of one transition, by autograd and literally as the paper writes it."""
    inputs, next_inputs, reward, next_factor = parts

    def value(at: Tensor) -> Tensor:
        """The network step by step."""
        first, hidden = 0, at
        for below, above in pairwise(network.sizes):
            layer = theta[first : first + above * (below + 1)].view(above, below + 1)
            first += above * (below + 1)
            hidden = layer[:, :-1] @ hidden + layer[:, -1]
            hidden = elu(hidden) if first < len(theta) else hidden
        return hidden[0]

    (gradient,) = torch.autograd.grad(value(inputs), theta, create_graph=True)
    error = reward + next_factor * value(next_inputs) - value(inputs)
    return error * gradient @ omega - 0.5 * (gradient @ omega).square()


@pytest.mark.parametrize(("hidden", "shared"), [((6, 5), True), ((4,), False)])
def test_gradients_and_losses_are_those_of_autograd(hidden: tuple[int, ...], shared: bool) -> None:
    generator, network, networks = torch.Generator().manual_seed(0), ValueNetwork(4, hidden), 2
    shapes = [(1 if shared else networks, 2, 3, *last) for last in ((4,), (4,), (), (), ())]
    drawn = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    batch = TdBatch(*drawn)
    theta, omega = network.initial(networks, generator), network.initial(networks, generator)
    gradients, losses = network.gradients(theta, omega, batch), network.losses(theta, omega, batch)
    for n in range(networks):
        for u in range(2):
            own = theta[n].clone().requires_grad_(), omega[n].clone().requires_grad_()
            *parts, weight = (part[0 if shared else n, u] for part in batch)
            rows = [[part[m] for part in parts] for m in range(3)]
            each = torch.stack([slow_loss(network, *own, *row) for row in rows])
            expected = torch.stack(torch.autograd.grad((weight * each).sum(), own))
            torch.testing.assert_close(gradients[u, n], expected, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(losses[n, u], each.detach(), rtol=1e-10, atol=1e-12)


__all__ = ["data", "small", "without_groups"]


def test_a_projects_value_is_paid_once(
    data: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"UPDATES": 6, "EPOCH": 2}.items():
        monkeypatch.setattr(dptd, name, value)
    monkeypatch.setattr(dptd_project, "load", lambda: data)
    states: list[str] = []

    def charges() -> list[Any]:
        ledger = open_to_charge(data)
        return list(ledger.charges())

    watch_private(monkeypatch, lambda: states.append(charges()[-1].id))
    with killed(3):
        dptd_project.evaluate(2.0)
    dptd_project.evaluate(2.0)
    assert len(states) == 2, "the charge was there before each opening of private rows"
    found = (dptd_project.FOLDER / "value.json").read_text(encoding="utf-8")
    dptd_project.evaluate(2.0)
    assert len(states) == 2, "what is finished is restored"
    assert (dptd_project.FOLDER / "value.json").read_text(encoding="utf-8") == found
    (charge,) = charges()
    statement = Statement.read(dptd_project.FOLDER)
    assert statement.charge == charge.id
    assert statement.epsilon == pytest.approx(2.0, rel=1e-3)
    assert [each.what for each in statement.queries] == ["mean_error"]
    assert abs(json.loads(found)["value"]) < 1e3
    assert "before its mean error was asked" in capsys.readouterr().out
    with killed(1, "answer"):
        dptd_project.evaluate(1.0)
    with pytest.raises(PipelineError, match="died between a query's noise and its answer"):
        dptd_project.evaluate(1.0)
