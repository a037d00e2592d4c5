"""Actions for a table: columns are found by name, rows keep their order, and what cannot be answered has no action."""

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from primorl.base.errors import PipelineError
from primorl.base.records import ElapsedTime
from primorl.data.sources.tabular.elapsed import RowOrder
from primorl.policy.loaded import Policy
from primorl.use import prediction
from primorl.use.prediction import predict
from tests.data.conftest import project
from tests.data.sources.tabular_builders import SECRET, entry, run, text, write
from tests.data.sources.test_tabular_elapsed import BEGAN, SINCE, charted
from tests.policy.test_loaded import NAMES, RANGE, ROWS, loaded

__all__ = ["project"]

OF_THE_LOG: dict[str, Any] = {
    "names": (("x", "ward=A", "ward=B"), ("dose", "rate")),
    "one_hot": ((1, 2),),
}
TIMED: dict[str, Any] = {"names": (("x", "minutes_since", "y"), ("dose", "rate"))}
TIMED["elapsed"] = ElapsedTime(name="minutes_since", unit="minutes", most=60.0)
BY = RowOrder(("user", "visit"), "time")
NAMED = {
    "weight": ROWS[:, 2],
    "note": [SECRET, "", "c"],
    "age": ROWS[:, 0],
    "id": ["007", "8", "9"],
}
NAMED["dose"] = ROWS[:, 1]
OUT = Path("out.parquet")


@pytest.fixture
def policy(project: Path) -> Policy:
    return loaded(Path("policy"), discrete=True, **RANGE, **NAMES)


def table(content: dict[str, Any], name: str = "in.parquet") -> Path:
    return write(pa.table(content), name)


def read(path: Path = OUT) -> list[dict[str, Any]]:
    found: pa.Table = pq.read_table(path) if path.suffix == ".parquet" else pacsv.read_csv(path)
    return found.to_pylist()


def refused(policy: Policy, given: Path, says: str, out: str = "out.csv", **options: Any) -> str:
    with pytest.raises(PipelineError, match=says) as wrong:
        predict(policy, given, Path(out), **options)
    assert "\n" not in str(wrong.value)
    assert SECRET not in str(wrong.value)
    assert not Path("out.csv").exists()
    return str(wrong.value)


@pytest.mark.parametrize("of", ["in.parquet", "in.csv"])
def test_columns_go_by_name_and_rows_keep_their_order(policy: Policy, of: str) -> None:
    numbers = policy.act(ROWS)
    for into in (OUT, Path("out.csv")):
        assert predict(policy, table(NAMED, of), into, keep=["id"]) == (3, 0)
        found = read(into)
        assert [row["action"] for row in found] == numbers.tolist()
        assert [row["action_name"] for row in found] == [
            policy.action_names[number] for number in numbers
        ]
        assert not any(row["abstained"] for row in found)
        assert SECRET not in into.read_bytes().decode("latin-1"), (
            "a column that nobody asked for stays behind"
        )
    header, *lines = csv.reader(Path("out.csv").read_text(encoding="utf-8").splitlines())
    assert header == ["id", "action", "action_name", "abstained", "reason"]
    assert [line[0] for line in lines] == ["007", "8", "9"]


def test_what_is_no_number_or_far_outside_is_not_guessed(policy: Policy) -> None:
    unknown = ["", "n/a", "NaN", "inf", "12/5", "1e999", "0x10", "-31.1", "31.1"]
    lines = "".join(f'"{age}",1,5\n' for age in [*unknown, " 0.5 ", "+5e-1", ".5", "30.9"])
    assert predict(policy, text(f"age,dose,weight\n{lines}", "in.csv"), OUT) == (13, 9)
    found = read()
    assert [row["abstained"] for row in found] == [True] * 9 + [False] * 4
    assert [row["action"] is None and row["action_name"] is None for row in found] == [True] * 9 + [
        False
    ] * 4
    number, far = "age is not a finite number", "age lies far outside the public range"
    assert [row["reason"] for row in found] == [number] * 7 + [far] * 2 + [None] * 4
    assert [row["action"] for row in found[9:]] == policy.act(
        [[0.5, 1, 5]] * 3 + [[30.9, 1, 5]]
    ).tolist()


def test_an_undeclared_category_is_not_guessed(project: Path) -> None:
    policy = loaded(Path("policy"), **OF_THE_LOG)
    given = table({"ward": pa.array(["B", "C", None, ""]).dictionary_encode(), "x": [1.0] * 4})
    assert predict(policy, given, OUT) == (4, 3)
    first, *others = read()
    np.testing.assert_allclose(
        [first["dose"], first["rate"]], policy.act([1.0, 0.0, 1.0]), rtol=1e-5
    )
    reason = "ward is not exactly one of its categories"
    assert others == [{"dose": None, "rate": None, "abstained": True, "reason": reason}] * 3
    assert predict(policy, table({"x": [1.0], "ward=B": [1], "ward=A": [0]}), OUT) == (1, 0)
    assert read() == [first]


def test_a_policy_without_names_takes_numbered_columns_or_vectors(project: Path) -> None:
    policy, values = loaded(Path("policy")), [[0.0] * 3, *ROWS.tolist(), [1.0, None, 2.0]]
    for content in (
        {"observation": pa.array(values, pa.list_(pa.float32(), 3)), "reward": [0.0] * 5},
        {f"observation_{index}": [row[index] for row in values] for index in (2, 0, 1)},
    ):
        assert predict(policy, table(content), OUT) == (5, 1)
        found = read()
        assert list(found[0]) == ["action_0", "action_1", "abstained", "reason"]
        actions = [[row["action_0"], row["action_1"]] for row in found]
        np.testing.assert_allclose(actions[1:4], policy.act(ROWS), rtol=1e-5)
        assert actions[4:] == [[None, None]]


def test_a_number_that_could_be_two_stops_the_command(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: a decimal comma is one where it is said to be."""
    for delimiter in (";", "\t", "|"):
        plain = "age,dose,weight\n1.5,0.25,5\n2,1e-1,5\n".replace(",", delimiter)
        assert predict(policy, text(plain, "in.csv"), Path("point.csv")) == (2, 0)
        assert predict(
            policy, text(plain.replace(".", ","), "in.csv"), Path("comma.csv"), decimal_point=","
        ) == (2, 0)
        assert Path("point.csv").read_text() == Path("comma.csv").read_text()
    monkeypatch.setattr(prediction, "_ROWS_PER_BATCH", 2)
    with_comma = (
        "1,234",
        "1,5",
        ",5",
        "-1,234,567",
        "1,234.5",
        "1.234,5",
        "1 234",
        "1'234",
        " 1,2e3 ",
    )
    with_point = ("1.234", "1.5", "1.234,5", "1,234.5", "1.234.567", "1\u202f234", "1\xa0234,5")
    for cell, mark in (
        *((cell, ".") for cell in with_comma),
        *((cell, ",") for cell in with_point),
    ):
        for delimiter in ";,":
            lines = [
                ["weight", "dose", "age"],
                *[["5", "1", age] for age in ("1", "1", "1", f'"{cell}"', "1")],
            ]
            given = text("".join(f"{delimiter.join(line)}\n" for line in lines), "in.csv")
            where = r"^in\.csv: row 4, column 'age': found a number with a"
            said = refused(policy, given, where, decimal_point=mark)
            assert ("pass --decimal-point ," in said) is (mark == ".")
            assert cell.strip() not in said


def test_what_cannot_be_read_or_written_is_one_line(policy: Policy) -> None:
    content = "age,dose,weight\n1,1,5\n"
    for name, given, out, keep, says in (
        ("in.csv", f"{content}{SECRET},1\n", "out.csv", [], "in.csv: row 2: found another number"),
        ("in.csv", "", "out.csv", [], "in.csv: not readable as CSV"),
        (
            "in.csv",
            content.encode() + b"\xff\xfe,1,1\n",
            "out.csv",
            [],
            "in.csv: not readable as CSV in UTF-8",
        ),
        ("in.parquet", content, "out.csv", [], "in.parquet: not readable as Parquet"),
        (
            "in.tsv",
            content,
            "out.csv",
            [],
            "--observations: found 'in.tsv'; allowed is a name that ends",
        ),
        ("in.csv", content, "out", [], "--out: found 'out'; allowed"),
        ("in.csv", content, "./in.csv", [], "--out: found the file of --observations"),
        ("in.csv", "age,dose,weight,age\n1,1,5,1\n", "out.csv", [], "column 'age' is there twice"),
        ("in.csv", "age,dose,weight,action\n1,1,5,1\n", "out.csv", ["action"], "'action' twice"),
    ):
        refused(policy, text(given, name), says, out, keep=keep)
    assert sorted(path.name for path in Path().iterdir()) == [
        "in.csv",
        "in.parquet",
        "in.tsv",
        "policy",
    ]


def test_wrong_types_are_refused(policy: Policy) -> None:
    plain, tagged = {"age": [1.0], "dose": [1.0], "weight": [5.0]}, {"tags": [["a"]]}
    refused(
        policy, table(plain | {"dose": [[1.0]]}), r"column 'dose': found list<.*; allowed: numbers$"
    )
    refused(
        policy,
        table(plain | tagged),
        r"--keep: found 'tags', which no field of a CSV can hold",
        keep=["tags"],
    )
    predict(policy, table(plain | tagged), OUT, keep=["tags"])
    assert read()[0]["tags"] == ["a"]
    unnamed, named = loaded(Path("unnamed")), loaded(Path("named"), **OF_THE_LOG)
    narrow = {"observation": pa.array([[0.0] * 2], pa.list_(pa.float32(), 2))}
    refused(
        unnamed,
        table(narrow),
        r"column 'observation': found .*; allowed: fixed_size_list of 3 numbers",
    )
    odd = {"x": [1.0], "ward": [1.5]}
    refused(named, table(odd), r"column 'ward': found double; allowed: text, whole numbers")
    twice = {"x": [1.0], "ward": ["A"], "ward=A": [1.0]}
    refused(
        named,
        table(twice),
        r"column 'ward=A' and column 'ward': the policy's 'ward=A' could be either",
    )


def test_torch_is_not_needed(policy: Policy) -> None:
    table(NAMED, "in.csv")
    code = (
        "import sys; from pathlib import Path; from primorl.policy.loaded import load_policy; "
        "from primorl.use.prediction import predict; "
        "predict(load_policy('policy'), Path('in.csv'), Path('out.csv')); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def logged(order: Any = lambda moment: moment) -> list[dict[str, Any]]:
    return [row | {"y": 0.5} for row in charted(order)]


@pytest.mark.parametrize(
    ("name", "shuffled"), [("log/part-0.parquet", False), ("log/part-0.csv", True)]
)
def test_the_time_since_the_row_before_is_counted_as_ingest_counts_it(
    project: Path, name: str, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = loaded(Path("policy"), **TIMED)
    rows = logged(
        (lambda moment: (moment - BEGAN).total_seconds() / 60)
        if shuffled
        else (lambda moment: moment)
    )
    order = np.random.default_rng(1).permutation(len(rows)) if shuffled else np.arange(len(rows))
    log = write([rows[place] for place in order], name)
    monkeypatch.setattr(prediction, "_ROWS_PER_BATCH", 3)
    assert predict(policy, log, OUT, keep=["x"], by=BY) == (8, 0)
    found = {float(row["x"]): [row["dose"], row["rate"]] for row in read()}
    assert list(found) == [rows[place]["x"] for place in order]
    ingested = run(entry({"observation": ["x", SINCE, "y"]}, sorted=False))[
        "observation"
    ].to_pylist()
    assert {seen[1] for seen in ingested} == {0.0, 0.5, 45.0, 60.0}
    np.testing.assert_allclose(
        [found[seen[0]] for seen in ingested], policy.act(ingested), rtol=1e-5
    )


def test_a_time_that_cannot_be_told_is_refused_in_one_line(project: Path) -> None:
    policy = loaded(Path("policy"), **TIMED)
    how = "'minutes_since' is the time since the row before, in minutes: add it, or, .* --trajectory COLUMN --step"
    for log, by, says in (
        (logged(), None, f"^in.parquet: found no column 'minutes_since'; allowed is.*; {how}"),
        (
            logged(),
            RowOrder(("stay",), "hour"),
            "in.parquet: found no column 'stay', 'hour'; allowed",
        ),
        (
            [row | {"minutes_since": 1.0} for row in logged()],
            BY,
            "a column 'minutes_since', which --trajectory and",
        ),
        (
            logged(),
            RowOrder(("user",), "time"),
            "row 4: column 'time': found an order that its trajectory has",
        ),
        (
            [*logged()[:2], logged()[2] | {"time": None}],
            BY,
            "row 3: column 'time': found a missing order",
        ),
        (
            [row | {"time": SECRET} for row in logged()],
            BY,
            "found string, allowed: numbers, timestamps or dates",
        ),
    ):
        refused(policy, write(log, "in.parquet"), says, by=by)
    no_x = table({"minutes_since": [1.0], "y": [1.0]})
    assert "--step" not in refused(policy, no_x, "found no column 'x'; allowed")
    timeless = loaded(Path("policy"), names=TIMED["names"])
    whole = write(logged(), "in.parquet")
    refused(
        timeless, whole, "found a policy that does not observe the time since the row before", by=BY
    )
