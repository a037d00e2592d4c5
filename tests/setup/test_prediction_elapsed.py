"""The time since the row before in `predict`: as `ingest` counts it, from a column or from the order of a log."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primorl.policy.loaded import Policy
from primorl.project.elapsed import ElapsedTime
from primorl.project.errors import PipelineError
from primorl.setup import prediction
from primorl.setup.prediction import predict
from primorl.trajectories.sources.tabular.elapsed import RowOrder
from tests.commands.charging import primorl
from tests.policy.test_loaded import loaded
from tests.setup.test_prediction import read, table
from tests.trajectories.conftest import project
from tests.trajectories.sources.tabular_builders import SECRET, entry, run, write
from tests.trajectories.sources.test_tabular_elapsed import BEGAN, SINCE, charted

__all__ = ["project"]

NAMES = (("x", "minutes_since", "y"), ("dose", "rate"))
MOST = ElapsedTime(name="minutes_since", unit="minutes", most=60.0)
BY = RowOrder(("user", "visit"), "time")


@pytest.fixture
def policy(project: Path) -> Policy:
    Path("models/policy").mkdir(parents=True)
    return loaded(Path("models/policy"), names=NAMES, elapsed=MOST)


def logged(order: Any = lambda moment: moment) -> list[dict[str, Any]]:
    return [row | {"y": 0.5} for row in charted(order)]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("name", ["log/part-0.parquet", "log/part-0.csv"])
def test_the_log_goes_in_as_it_came(
    policy: Policy, name: str, numbers: bool, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = logged((lambda moment: (moment - BEGAN).total_seconds() / 60) if numbers else (lambda moment: moment))
    order = np.random.default_rng(1).permutation(len(rows)) if shuffled else np.arange(len(rows))
    log = write([rows[place] for place in order], name)
    monkeypatch.setattr(prediction, "_ROWS_PER_BATCH", 3)
    assert predict(policy, log, Path("out.parquet"), keep=["x"], by=BY) == (8, 0)
    found = {float(row["x"]): [row["dose"], row["rate"]] for row in read(Path("out.parquet"))}
    assert list(found) == [rows[place]["x"] for place in order]
    ingested = run(entry({"observation": ["x", SINCE, "y"]}, sorted=False))["observation"].to_pylist()
    assert {vector[1] for vector in ingested} == {0.0, 0.5, 45.0, 60.0}
    expected: Any = policy.act(ingested)
    np.testing.assert_allclose([found[vector[0]] for vector in ingested], expected, rtol=1e-5)


def test_where_no_column_has_it_the_error_says_how_to_give_it(policy: Policy) -> None:
    log = write(logged(), "in.parquet")
    with pytest.raises(PipelineError) as wrong:
        predict(policy, log, Path("out.csv"))
    assert str(wrong.value).startswith("in.parquet: found no column 'minutes_since'; allowed is")
    assert str(wrong.value).endswith(
        "; 'minutes_since' is the time since the row before, in minutes: add it, or, if every trajectory is there from "
        "its first row, name the columns that tell it: --trajectory COLUMN --step COLUMN"
    )
    with pytest.raises(PipelineError, match="found no column 'x'; allowed") as wrong:
        predict(policy, table({"minutes_since": [1.0], "y": [1.0]}, "in.parquet"), Path("out.csv"))
    assert "--step" not in str(wrong.value)


def test_what_cannot_be_told_is_refused_in_one_line(policy: Policy) -> None:
    for changes, by, says in (
        ({}, RowOrder(("stay",), "hour"), "in.parquet: found no column 'stay', 'hour'; allowed"),
        ({"minutes_since": 1.0}, BY, "in.parquet: found a column 'minutes_since', which --trajectory and --step tell"),
        ({}, RowOrder(("user",), "time"), "in.parquet: row 4: column 'time': found an order that its trajectory has"),
        ({"time": None}, BY, "in.parquet: row 3: column 'time': found a missing order"),
        ({"time": SECRET}, BY, "in.parquet: column 'time': found string, allowed: numbers, timestamps or dates"),
    ):
        rows = [row | changes for row in logged()]
        if changes == {"time": None}:
            rows = [*logged()[:2], *rows[2:]]
        with pytest.raises(PipelineError) as wrong:
            predict(policy, write(rows, "in.parquet"), Path("out.csv"), by=by)
        assert str(wrong.value).startswith(says)
        assert "\n" not in str(wrong.value)
        assert SECRET not in str(wrong.value)
    with pytest.raises(PipelineError, match="found a policy that does not observe the time since the row before"):
        predict(loaded(Path("models/policy"), names=NAMES), write(logged(), "in.parquet"), Path("out.csv"), by=BY)


def test_the_commands_flags(policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    log = write(logged(), "in.csv")
    words = ("predict", "--observations", str(log), "--out", "out.csv", "--trajectory", "user", "--trajectory", "visit")
    status, _, err = primorl(capsys, *words)
    assert (status, err) == (
        1,
        "error: --trajectory, --step: found one without the other; allowed are both, or neither; add it\n",
    )
    status, out, err = primorl(capsys, *words, "--step", "time")
    assert (status, out) == (0, "out.csv: 8 rows\n")
    assert err.endswith("abstained: 0 of 8 rows, which have no action\n")
