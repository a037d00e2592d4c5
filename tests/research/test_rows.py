"""The papers' tables are made from kept rows, and the rows hold what the pages say of them."""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.machine import RESULTS_PAGE
from research import dptd, gaussian_budgets, online, paper_mode, riverswim
from research.rows import Row, read

TABLES: dict[str, Callable[[], str]] = {
    "online": lambda: online.table(shown()),
    "online nulls": lambda: online.nulls(shown()),
    "riverswim": lambda: riverswim.table(read("riverswim")),
    "gaussian budgets": gaussian_budgets.table,
    "critic": lambda: paper_mode.table(read("paper_mode")),
    "dptd": lambda: dptd.table(read("dptd")),
}


def shown() -> list[Row]:
    rows = read("online")
    return [row for one in online.cases() for row in rows if row.items() >= one.key.items()]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_that_of_the_rows(name: str) -> None:
    text = RESULTS_PAGE.read_text(encoding="utf-8")
    written = text.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- /{name} -->")[0]
    assert written == TABLES[name]()


def returns(how: str, **key: str) -> np.ndarray:
    found = [row for row in shown() if row.items() >= key.items()]
    assert len({row["seed"] for row in found}) == len(found)
    assert all({"commit", "machine", "seconds", "setting"} <= row.keys() for row in found)
    return np.array([row[how] for row in found])


@pytest.mark.parametrize(
    ("task", "row", "budget", "least"),
    [
        ("CartPole", "strict", "ε 1", 490.0),
        ("Acrobot", "strict", "ε 1", -90.0),
        ("CartPole", "paper", "z 1", 490.0),
        ("CartPole", "paper", "z 3", 375.0),
        ("Acrobot", "paper", "z 1", -90.0),
    ],
)
def test_private_learning_reaches_its_figures_and_beats_its_nulls(
    task: str, row: str, budget: str, least: float
) -> None:
    own = returns("drawn", task=task, method="DPPG", row=row, budget=budget)
    assert len(own) >= (10 if row == "strict" else 5)
    assert own.mean() >= least
    for null in ("noise alone", "untrained") if row == "strict" else ():
        others = returns("drawn", task=task, method="DPPG", row=null)
        assert len(others) == 10
        assert others.max() < own.min()


@pytest.mark.parametrize("task", dptd.DRAWN)
def test_dptd_at_epsilon_1_errs_by_less_than_15_percent_and_than_the_mean_reward(task: str) -> None:
    errors = {}
    for method in dptd.LEVELLED:
        key = {"task": task, "method": method, "epsilon": 1.0, "units": dptd.UNITS, "runs": 10}
        (row,) = [row for row in read("dptd") if row.items() >= key.items()]
        errors[method] = np.abs(np.array(row["value"]) / row["true_value"] - 1).mean()
    assert errors["level"] < 0.15
    assert errors["level"] < errors["level noise"]
