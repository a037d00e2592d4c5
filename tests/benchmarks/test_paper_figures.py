"""Figures of the paper's benchmark: no band without an interval, and a legend that says what is drawn."""

import json
from typing import Any

from benchmarks.quality.paper import figures
from tests.benchmarks.test_paper import finished

PENDULUM, CHEETAH = {"dataset": "pendulum-paper"}, {"dataset": "halfcheetah-mixture"}


def test_a_task_with_one_run_has_no_band() -> None:
    """Its interval would be all of the plot. Twin: with two runs each there is a band."""
    sweep = PENDULUM | {"sweep": "table-pendulum"}
    once = [finished(case, 900.0) | sweep for case in ("MOPO", "High", "Ours")]
    drawn = figures.profiles(once)
    assert drawn is not None
    assert len(drawn.axes[0].collections) == 0
    twice = figures.profiles([*once, *(each | {"return_final": 800.0} for each in once)])
    assert twice is not None
    assert len(twice.axes[0].collections) == 3


def test_the_legend_of_the_frontier_names_the_sizes_that_are_drawn() -> None:
    pendulum = at(PENDULUM | {"sweep": "frontier-pendulum"})
    assert legend(figures.frontier([pendulum])) == ["ours, K = 30,000"]
    both = [pendulum, at(CHEETAH | {"sweep": "frontier-halfcheetah"})]
    assert legend(figures.frontier(both)) == ["ours, K = 30,000 (HalfCheetah 2,000)"]


def test_the_title_says_where_ours_begins_as_the_clone() -> None:
    """Twins: without a clone, or with one of another size, a policy begins with weights of its own."""
    size = {"policy.hidden": [256, 256]}
    cloned = size | {"behaviour.hidden": [256, 256], "behaviour.target_epsilon": 3}
    for settings, begins in (
        (cloned, ": ours begins as the private clone"),
        (size, ""),
        (cloned | {"behaviour.hidden": [32]}, ""),
    ):
        row = finished("Ours", 7000.0) | CHEETAH | {"sweep": "table-halfcheetah", "settings": json.dumps(settings)}
        drawn = figures.learning_curves([row | {"curve": [1.0, 2.0]}])
        assert drawn is not None
        assert drawn.axes[0].get_title() == f"HalfCheetah{begins}"


def at(place: dict[str, Any]) -> dict[str, Any]:
    return finished("Ours", 900.0) | place | {"settings": json.dumps({"privacy.target_epsilon": 0.5})}


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts() if "K = " in text.get_text()]
