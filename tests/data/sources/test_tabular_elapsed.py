"""Irregular steps: the time since the row before is observed, within a declared bound, and never
across an end.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from primorl.base.errors import PipelineError
from primorl.base.records import ElapsedTime
from primorl.config.datasets import TabularDataset
from primorl.data.sources import source_of
from primorl.data.storage.parquet import PartReader
from tests.data.sources.tabular_builders import Row, entry, rows, run, write

SINCE = {"elapsed": "minutes_since", "unit": "minutes", "most": 60.0}
BEGAN = datetime(2150, 1, 31, 23, 0)
GAPS = [0.0, 0.5, 45.0, 0.0, 90.0, 60.0, 0.0, 1440.0]  # minutes since the row before, of `rows`
BEFORE = (0, 1, 2, 3, 4, 6)  # rows that a transition begins with, of `rows`
AFTER = (1, 2, 2, 4, 5, 7)  # and ends with; a terminated row's next one is its own
BOUNDED = [0.0, 0.5, 45.0, 0.0, 60.0, 60.0, 0.0, 60.0]


def timed(**changes: Any) -> TabularDataset:
    return entry({"observation": ["x", SINCE | changes]})


def charted(order: Any = lambda moment: moment) -> list[Row]:
    """`rows` at irregular times; the visits of one user overlap in time, as two records of one
    person may.
    """
    content, moment = rows(), BEGAN
    for place, gap in enumerate(GAPS):
        moment = BEGAN if place in (0, 3, 6) else moment + timedelta(minutes=gap)
        content[place]["time"] = order(moment)
    return content


def test_a_model_is_given_the_time_since_the_row_before_and_predicts_that_of_the_next(
    project: Path,
) -> None:
    before, after = ([BOUNDED[at] for at in places] for places in (BEFORE, AFTER))
    numbers = charted(lambda moment: (moment - BEGAN) / timedelta(minutes=1))  # in declared units
    shuffled = entry({"observation": ["x", SINCE]}, sorted=False)
    for content, name, dataset in (
        (charted(), "log/log.parquet", timed()),
        (charted(), "log/log.csv", timed()),
        (numbers, "log/log.csv", timed()),
        (charted()[::-1], "log/log.csv", shuffled),
    ):
        write(content, name)
        made = run(dataset).to_pylist()
        assert [each["observation"][1] for each in made] == before
        assert [each["next_observation"][1] for each in made] == after
        Path(name).unlink()
    write(charted())
    hours = [each["next_observation"][1] for each in run(timed(unit="hours", most=1e9)).to_pylist()]
    assert hours == pytest.approx([GAPS[at] / 60 for at in AFTER], rel=1e-6)
    spaces = source_of("log", timed()).open(Path("log")).spaces
    assert spaces.observation_names == ("x", "minutes_since")
    assert spaces.elapsed == ElapsedTime(name="minutes_since", unit="minutes", most=60.0)
    assert PartReader(Path("trajectories"), made_by="ingest").info.spaces.elapsed == replace(
        spaces.elapsed, unit="hours", most=1e9
    )
    assert source_of("log", entry()).open(Path("log")).spaces.elapsed is None
    assert (spaces.observation_low, spaces.observation_high) == ((-np.inf, 0.0), (np.inf, 60.0))


def test_what_cannot_be_meant_is_refused(project: Path) -> None:
    write(charted())
    bounds = {"observation": {"low": [0.0, 0.0], "high": [9.0, 30.0]}, "reward": "public"}
    with pytest.raises(PipelineError, match=r"bounds.observation: found \[0, 30\] for 'minutes"):
        run(entry({"observation": ["x", SINCE]}, bounds=bounds))
    for columns, expected in (
        ({"observation": ["x", SINCE | {"most": 0}]}, "most"),
        ({"observation": ["x", SINCE, SINCE | {"elapsed": "other"}]}, "one entry with elapsed"),
        ({"observation": ["x", SINCE], "next_observation": ["x", "x"]}, "next_observation"),
    ):
        with pytest.raises(ValidationError, match=expected):
            entry(columns)


def test_a_missing_cell_is_carried_forward_within_its_trajectory_with_its_age(
    project: Path,
) -> None:
    """The age is capped; before the first measurement of a trajectory there is only the declared
    value.
    """
    carried = {"carried": "x", "unit": "minutes", "most": 60.0}
    declared = entry({"observation": ["dose", carried | {"first": 5.5}]}, sorted=False)
    content = [each | {"dose": 0.5} for each in charted()]
    for place in (1, 2, 3, 7):
        content[place]["x"] = None
    expected = [[1, 0], [1, 0.5], [1, 45.5], [5.5, 60], [5, 0], [6, 0], [7, 0], [7, 60]]
    for name in ("log/log.parquet", "log/log.csv"):
        write(content[::-1], name)
        made = run(declared).to_pylist()
        assert [each["observation"][1:] for each in made] == [expected[at] for at in BEFORE]
        assert [each["next_observation"][1:] for each in made] == [expected[at] for at in AFTER]
        Path(name).unlink()
    write([*content[:7], content[7] | {"dose": None}])
    spaces = source_of("log", declared).open(Path("log")).spaces
    assert spaces.observation_names == ("dose", "x", "x_age")
    with pytest.raises(PipelineError, match=r"row 4: .*\(in 'x'\)"):
        run(entry({"observation": ["dose", carried]}))
    for first, highest, found in ((None, 30.0, r"\[0, 30\] for 'x_age'"), (-2.0, 60.0, "'x'")):
        own = carried if first is None else carried | {"first": first}
        bounds = {"observation": {"low": [0.0] * 3, "high": [9.0, 9.0, highest]}}
        with pytest.raises(PipelineError, match=found):
            run(entry({"observation": ["dose", own]}, bounds=bounds | {"reward": "public"}))
    for other in ("x", "x_age"):
        with pytest.raises(ValidationError, match="one name twice"):
            entry({"observation": [carried, other]})
