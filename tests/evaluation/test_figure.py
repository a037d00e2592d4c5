"""The final policy is drawn apart from the curve, whose points are averages over fewer episodes."""

from pathlib import Path
from typing import Any

import pytest

from primorl.evaluation import figure
from primorl.evaluation.figure import draw_returns
from primorl.evaluation.statistics import MeanInterval

POINTS = [MeanInterval(each, each - 9, each + 9) for each in (18.0, 77.0, 131.0)]
SUMMARY: dict[str, Any] = {
    "dataset": "a",
    "variant": "private",
    "private": False,
    "env_id": "CartPole-v1",
    "episodes": 100,
}


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_final_policy_is_no_point_of_the_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    """Of a single epoch there is no curve, and the figure is drawn all the same."""
    drawn: dict[str, Any] = {}
    draw = figure.draw_curve

    def spying(path: Path, curve: Any, final: Any, **others: Any) -> None:
        drawn.update(curve=curve, final=final)
        draw(path, curve, final, **others)

    monkeypatch.setattr(figure, "draw_curve", spying)
    curve = POINTS[:epochs]
    draw_returns(tmp_path / "return.png", curve[-1], curve, SUMMARY)
    at, points, name = drawn["curve"]
    assert (list(at), points) == (list(range(1, epochs)), curve[:-1])
    assert name == "after each epoch, 95% interval, of fewer episodes"
    assert drawn["final"][:2] == (epochs, curve[-1])
    assert drawn["final"][2].endswith(", 100 episodes")
    assert (tmp_path / "return.png").stat().st_size > 10_000
