"""The figure of an online run says what its summary says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primorl.evaluation import online_results
from primorl.evaluation.online_results import OnlineSummary, draw_online
from primorl.evaluation.statistics import MeanInterval

SUMMARY = OnlineSummary(
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
POINTS = [MeanInterval(each, each - 9, each + 9) for each in (18.0, 77.0, 131.0)]  # of fewer episodes


def test_the_final_policy_has_the_figures_of_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The curve's points are of fewer episodes than the legend names."""
    drawn: dict[str, Any] = {}
    draw = online_results.draw_curve

    def spying(path: Path, curve: Any, final: Any, **others: Any) -> None:
        drawn.update(curve=curve, final=final, **others)
        draw(path, curve, final, **others)

    monkeypatch.setattr(online_results, "draw_curve", spying)
    draw_online(tmp_path / "online.png", [0, 20, 40], POINTS, SUMMARY)
    assert drawn["final"] == (40, MeanInterval(150.0, 140.0, 160.0), "final policy: 150 [140, 160], 30 episodes")
    assert drawn["level"] == (21.0, "new policy: 21")
    assert drawn["curve"][:2] == ([0, 20, 40], POINTS)
    assert (tmp_path / "online.png").stat().st_size > 10_000


def test_a_result_without_its_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="a figure is missing"):
        replace(SUMMARY, return_before=None)
