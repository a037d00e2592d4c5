"""The final policy is drawn apart from the curve, whose points are averages over fewer episodes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primorl.evaluation import figures
from primorl.evaluation.figures import draw_online
from primorl.evaluation.statistics import MeanInterval
from primorl.evaluation.summary import OnlineSummary

POINTS = [MeanInterval(each, each - 9, each + 9) for each in (18.0, 77.0, 131.0)]
OFFLINE: dict[str, Any] = {
    "dataset": "a",
    "variant": "private",
    "private": False,
    "env_id": "CartPole-v1",
    "episodes": 100,
}
ONLINE = OnlineSummary(
    met=True,
    env_id="CartPole-v1",
    algorithm="dppg",
    start="scratch",
    users=40,
    cohort=20,
    return_before=21.0,
    return_before_ci95=(20.0, 22.0),
    return_mean=150.0,
    return_ci95=(140.0, 160.0),
    episodes=30,
    policy_sha256="0" * 64,
    void=("a test",),
)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was drawn last."""
    seen: dict[str, Any] = {}
    draw = figures.draw_curve

    def spying(path: Path, curve: Any, final: Any, **others: Any) -> None:
        seen.update(curve=curve, final=final, **others)
        draw(path, curve, final, **others)

    monkeypatch.setattr(figures, "draw_curve", spying)
    return seen


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_final_policy_is_no_point_of_the_curve(tmp_path: Path, drawn: dict[str, Any], epochs: int) -> None:
    """Of a single epoch there is no curve, and the figure is drawn all the same."""
    curve = POINTS[:epochs]
    figures.draw_returns(tmp_path / "return.png", curve[-1], curve, OFFLINE)
    at, points, name = drawn["curve"]
    assert (list(at), points) == (list(range(1, epochs)), curve[:-1])
    assert name == "after each epoch, 95% interval, of fewer episodes"
    assert drawn["final"][:2] == (epochs, curve[-1])
    assert drawn["final"][2].endswith(", 100 episodes")
    assert (tmp_path / "return.png").stat().st_size > 10_000


def test_an_online_run_has_the_figures_of_its_summary(tmp_path: Path, drawn: dict[str, Any]) -> None:
    draw_online(tmp_path / "online.png", [0, 20, 40], POINTS, ONLINE)
    assert drawn["final"] == (40, MeanInterval(150.0, 140.0, 160.0), "final policy: 150 [140, 160], 30 episodes")
    assert drawn["level"] == (21.0, "new policy: 21")
    assert drawn["curve"][:2] == ([0, 20, 40], POINTS)
    assert (tmp_path / "online.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="a figure is missing"):
        replace(ONLINE, return_before=None)
