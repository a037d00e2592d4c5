"""What d3rlpy is given is the log, every transition of it, and its policies are asked as the log's actions say."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.quality.logs import LOGS
from benchmarks.quality.logs.log import Box, Levels
from benchmarks.quality.logs.peers import act_of, rows
from tests.trajectories.builders import episodes
from tests.trajectories.storage.test_store import store

TORQUE = Box(("torque",), (-2.0,), (6.0,))


def test_every_transition_of_the_log_is_given_to_the_peer(tmp_path: Path) -> None:
    """As d3rlpy reads rows: an episode ends at a terminal or a timeout, and a timeout's row is no transition."""
    content = episodes(9)
    given = rows(TORQUE, store(tmp_path, content, units=["000", "000", *(f"{i:03d}" for i in range(2, 9))]))
    count = sum(len(item.rewards) + (not item.terminated) for item in content)
    assert {name: part.shape for name, part in given.items()} == {
        "observations": (count, 3),
        "actions": (count, 1),
        "rewards": (count,),
        "terminals": (count,),
        "timeouts": (count,),
    }
    assert given["terminals"].sum() == sum(item.terminated for item in content)
    assert not (given["terminals"] * given["timeouts"]).any()
    ends = np.flatnonzero(given["terminals"] + given["timeouts"]) + 1
    read = {tuple(part["observations"][0]): part for part in _cut(given, ends)}
    for item in content:
        part, n = read[tuple(item.observations[0])], len(item.rewards)
        assert part["terminals"][-1] == item.terminated
        np.testing.assert_allclose(
            part["observations"], np.stack(item.observations)[: n + (not item.terminated)], atol=1e-6
        )
        np.testing.assert_allclose(part["actions"][:n], (np.stack(item.actions) - 2) / 4, atol=1e-6)
        np.testing.assert_allclose(part["rewards"][:n], item.rewards, rtol=1e-6)


def _cut(given: dict[str, np.ndarray], ends: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [
        {name: part[first:last] for name, part in given.items()}
        for first, last in zip([0, *ends[:-1]], ends, strict=True)
    ]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", ["lessons", "triage"])
def test_a_saved_policy_is_asked_for_the_logs_actions(name: str, tmp_path: Path) -> None:
    """A constant policy has the true return of the constant action, and not that of another."""
    log = LOGS[name]
    said = torch.tensor([2]) if isinstance(log.action, Levels) else torch.tensor([[-0.8, 0.0, 0.5]])
    none = (lambda x: x[:, 0].long() * 0) if isinstance(log.action, Levels) else (lambda x: x[:, :1] * 0)
    policy = torch.jit.trace(lambda x: none(x) + said, torch.zeros(1, 4), check_trace=False)
    policy.save(str(tmp_path / "policy.pt"))
    returns = log.returns(act_of(log, tmp_path / "policy.pt"), 200, seed=5)
    constant = np.array(2) if isinstance(log.action, Levels) else np.array([0.1, 0.5, 0.75])
    true = log.returns(lambda observed: np.tile(constant, (len(observed), *[1] * constant.ndim)), 200, seed=5)
    np.testing.assert_allclose(returns, true, rtol=1e-5)
    assert abs(returns.mean() - log.random_returns(200, seed=5).mean()) > 1e-3
