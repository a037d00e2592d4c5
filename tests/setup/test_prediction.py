"""Actions for a table: columns are found by name, rows keep their order, and what cannot be answered has no action."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from primorl.policy.loaded import Policy
from primorl.project.errors import PipelineError
from primorl.setup import prediction
from primorl.setup.prediction import predict
from primorl.trajectories.sources import source_of
from tests.policy.test_loaded import NAMES, RANGE, ROWS, loaded
from tests.trajectories.conftest import project
from tests.trajectories.sources.tabular_builders import SECRET, entry, rows, run, text, write

__all__ = ["project"]

VECTORS = pa.list_(pa.float32(), 3)
OF_THE_LOG: dict[str, Any] = {"names": (("x", "ward=A", "ward=B"), ("dose", "rate"))}
NAMED = {
    "weight": ROWS[:, 2],
    "note": [SECRET, "", "c"],
    "age": ROWS[:, 0],
    "id": ["007", "8", "9"],
    "dose": ROWS[:, 1],
}


@pytest.fixture
def policy(project: Path) -> Policy:
    Path("policy").mkdir()
    return loaded(Path("policy"), discrete=True, **RANGE, **NAMES)


def table(content: dict[str, Any], name: str) -> Path:
    return write(pa.table(content), name)


def read(path: Path) -> list[dict[str, Any]]:
    found: pa.Table = pq.read_table(path) if path.suffix == ".parquet" else pacsv.read_csv(path)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_the_log_goes_in_as_it_came(project: Path, ending: str) -> None:
    dataset, log = entry(), write(rows(), f"log/part-0.{ending}")
    source = source_of("log", dataset)
    assert source.open(Path("log")).spaces.observation_names == OF_THE_LOG["names"][0]
    Path("policy").mkdir()
    policy = loaded(Path("policy"), **OF_THE_LOG)
    assert predict(policy, log, Path("out.parquet"), keep=["x"]) == (8, 0)
    ingested = run(dataset)
    expected: Any = policy.act(np.stack(ingested["observation"].to_pylist()))
    found = {float(row["x"]): [row["dose"], row["rate"]] for row in read(Path("out.parquet"))}
    given = [found[vector[0]] for vector in ingested["observation"].to_pylist()]
    np.testing.assert_allclose(given, expected, rtol=1e-5)


@pytest.mark.parametrize("into", ["out.parquet", "out.csv"])
@pytest.mark.parametrize("of", ["in.parquet", "in.csv"])
def test_columns_go_by_name_and_rows_keep_their_order(policy: Policy, of: str, into: str) -> None:
    assert predict(policy, table(NAMED, of), Path(into), keep=["id"]) == (3, 0)
    numbers: Any = policy.act(ROWS)
    if into == "out.csv":
        header, *lines = csv.reader(Path(into).read_text(encoding="utf-8").splitlines())
        assert header == ["id", "action", "action_name", "abstained"]
        assert [line[0] for line in lines] == ["007", "8", "9"]
    found = read(Path(into))
    assert [row["action"] for row in found] == numbers.tolist()
    assert [row["action_name"] for row in found] == [policy.action_names[number] for number in numbers]
    assert not any(row["abstained"] for row in found)
    assert SECRET not in Path(into).read_bytes().decode("latin-1"), "a column that nobody asked for stays behind"


UNKNOWN = ["", "n/a", "NaN", "inf", "12/5", "1e999", "0x10", "-31.1", "31.1"]


def test_what_is_no_number_or_far_outside_is_not_guessed(policy: Policy) -> None:
    known = [" 0.5 ", "+5e-1", ".5", "30.9"]
    lines = "".join(f'"{age}",1,5\n' for age in [*UNKNOWN, *known])
    assert predict(policy, text(f"age,dose,weight\n{lines}", "in.csv"), Path("out.parquet")) == (13, 9)
    found = read(Path("out.parquet"))
    assert [row["abstained"] for row in found] == [True] * 9 + [False] * 4
    assert [row["action"] is None and row["action_name"] is None for row in found] == [True] * 9 + [False] * 4
    assert [row["action"] for row in found[9:]] == policy.act([[0.5, 1, 5]] * 3 + [[30.9, 1, 5]]).tolist()  # type: ignore[union-attr]


def test_an_undeclared_category_is_not_guessed(project: Path) -> None:
    Path("policy").mkdir()
    policy = loaded(Path("policy"), **OF_THE_LOG)
    given = table({"ward": pa.array(["B", "C", None, ""]).dictionary_encode(), "x": [1.0] * 4}, "in.parquet")
    assert predict(policy, given, Path("out.parquet")) == (4, 3)
    first, *others = read(Path("out.parquet"))
    np.testing.assert_allclose([first["dose"], first["rate"]], policy.act([1.0, 0.0, 1.0]), rtol=1e-5)  # type: ignore[arg-type]
    assert others == [{"dose": None, "rate": None, "abstained": True}] * 3
    one_hot = table({"x": [1.0], "ward=B": [1], "ward=A": [0]}, "one-hot.parquet")
    assert predict(policy, one_hot, Path("out.parquet")) == (1, 0)
    assert read(Path("out.parquet")) == [first]


@pytest.mark.parametrize("form", ["vectors", "columns"])
def test_a_policy_without_names_takes_numbered_columns_or_vectors(project: Path, form: str) -> None:
    Path("policy").mkdir()
    policy = loaded(Path("policy"))
    values = [[0.0] * 3, *ROWS.tolist(), [1.0, None, 2.0]]
    if form == "vectors":
        given = table({"observation": pa.array(values, VECTORS), "reward": [0.0] * 5}, "in.parquet")
    else:
        columns = {f"observation_{index}": [row[index] for row in values] for index in (2, 0, 1)}
        given = table(columns, "in.parquet")
    assert predict(policy, given, Path("out.parquet")) == (5, 1)
    found = read(Path("out.parquet"))
    assert list(found[0]) == ["action_0", "action_1", "abstained"]
    actions = [[row["action_0"], row["action_1"]] for row in found]
    np.testing.assert_allclose(actions[1:4], policy.act(ROWS), rtol=1e-5)  # type: ignore[arg-type]
    assert actions[4:] == [[None, None]]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_batches_do_not_change_the_answers(policy: Policy, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).uniform(-9, 9, (3000, 3))
    values[:, 2] = 5
    given = table(dict(zip(NAMES["names"][0], values.T, strict=True)), f"in.{ending}")
    predict(policy, given, Path("whole.csv"), keep=["age"])
    monkeypatch.setattr(prediction, "_ROWS_PER_BATCH", 7)
    monkeypatch.setattr(prediction, "_CSV_BLOCK_BYTES", 300)
    predict(policy, given, Path("parts.csv"), keep=["age"])
    assert Path("parts.csv").read_bytes() == Path("whole.csv").read_bytes()


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_decimal_comma_is_one_where_it_is_said_to_be(policy: Policy, delimiter: str) -> None:
    plain = "age,dose,weight\n1.5,0.25,5\n2,1e-1,5\n".replace(",", delimiter)
    point, comma = text(plain, "point.csv"), text(plain.replace(".", ","), "comma.csv")
    assert predict(policy, point, Path("out-point.csv")) == (2, 0)
    assert predict(policy, comma, Path("out-comma.csv"), decimal_point=",") == (2, 0)
    assert Path("out-point.csv").read_text() == Path("out-comma.csv").read_text()


MARKED: list[tuple[str, Any]] = [
    *((cell, ".") for cell in ("1,234", "1,5", ",5", "-1,234,567", "1,234.5", "1.234,5", "1 234", "1'234", " 1,2e3 ")),
    *((cell, ",") for cell in ("1.234", "1.5", "1.234,5", "1,234.5", "1.234.567", "1\u202f234", "1\xa0234,5")),
]


@pytest.mark.parametrize(("cell", "mark"), MARKED)
def test_a_number_that_could_be_two_stops_the_command(
    policy: Policy, cell: str, mark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "_ROWS_PER_BATCH", 2)
    for delimiter in ";,":
        lines = [["weight", "dose", "age"], *[["5", "1", age] for age in ("1", "1", "1", f'"{cell}"', "1")]]
        given = text("".join(f"{delimiter.join(line)}\n" for line in lines), "in.csv")
        with pytest.raises(PipelineError, match=r"^in\.csv: row 4, column 'age': found a number with a") as wrong:
            predict(policy, given, Path("out.csv"), decimal_point=mark)
        assert ("pass --decimal-point ," in str(wrong.value)) is (mark == ".")
        assert cell.strip() not in str(wrong.value)
        assert "\n" not in str(wrong.value)
        assert not Path("out.csv").exists()


CSV = "age,dose,weight\n1,1,5\n"
WRONG: dict[str, tuple[str, Any, str, list[str], str]] = {
    "another number of fields": ("in.csv", f"{CSV}{SECRET},1\n", "out.csv", [], "in.csv: row 2: found another number"),
    "empty": ("in.csv", "", "out.csv", [], "in.csv: not readable as CSV"),
    "not UTF-8": ("in.csv", CSV.encode() + b"\xff\xfe,1,1\n", "out.csv", [], "in.csv: not readable as CSV in UTF-8"),
    "not Parquet": ("in.parquet", CSV, "out.csv", [], "in.parquet: not readable as Parquet"),
    "another ending": ("in.tsv", CSV, "out.csv", [], "--observations: found 'in.tsv'; allowed is a name that ends"),
    "another ending to write": ("in.csv", CSV, "out", [], "--out: found 'out'; allowed"),
    "onto itself": ("in.csv", CSV, "./in.csv", [], "--out: found the file of --observations"),
    "a column twice": ("in.csv", "age,dose,weight,age\n1,1,5,1\n", "out.csv", [], "column 'age' is there twice"),
    "two of one name": ("in.csv", "age,dose,weight,action\n1,1,5,1\n", "out.csv", ["action"], "'action' twice"),
}


@pytest.mark.parametrize(("name", "content", "out", "keep", "says"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_or_written_is_one_line(
    policy: Policy, name: str, content: str | bytes, out: str, keep: list[str], says: str
) -> None:
    given = text(content, name)
    with pytest.raises(PipelineError) as wrong:
        predict(policy, given, Path(out), keep=keep)
    assert says in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert SECRET not in str(wrong.value)
    assert sorted(path.name for path in Path().iterdir()) == sorted([name, "policy"])


def test_wrong_types_are_refused(policy: Policy, project: Path) -> None:
    plain = {"age": [1.0], "dose": [1.0], "weight": [5.0]}
    with pytest.raises(PipelineError, match=r"column 'dose': found list<.*; allowed: numbers$"):
        predict(policy, table(plain | {"dose": [[1.0]]}, "in.parquet"), Path("out.csv"))
    with pytest.raises(PipelineError, match=r"--keep: found 'tags', which no field of a CSV can hold"):
        predict(policy, table(plain | {"tags": [["a"]]}, "in.parquet"), Path("out.csv"), keep=["tags"])
    predict(policy, table(plain | {"tags": [["a"]]}, "in.parquet"), Path("out.parquet"), keep=["tags"])
    assert read(Path("out.parquet"))[0]["tags"] == ["a"]
    Path("unnamed").mkdir()
    narrow = table({"observation": pa.array([[0.0] * 2], pa.list_(pa.float32(), 2))}, "in.parquet")
    with pytest.raises(PipelineError, match=r"column 'observation': found .*; allowed: fixed_size_list of 3 numbers"):
        predict(loaded(Path("unnamed")), narrow, Path("out.csv"))
    named = loaded(Path("unnamed"), **OF_THE_LOG)
    with pytest.raises(PipelineError, match=r"column 'ward': found double; allowed: text, whole numbers"):
        predict(named, table({"x": [1.0], "ward": [1.5]}, "in.parquet"), Path("out.csv"))
    with pytest.raises(
        PipelineError, match=r"column 'ward=A' and column 'ward': the policy's 'ward=A' could be either"
    ):
        predict(named, table({"x": [1.0], "ward": ["A"], "ward=A": [1.0]}, "in.parquet"), Path("out.csv"))


def test_torch_is_not_needed(policy: Policy) -> None:
    import subprocess
    import sys

    table(NAMED, "in.csv")
    code = (
        "import sys; from pathlib import Path; from primorl.policy.loaded import load_policy; "
        "from primorl.setup.prediction import predict; "
        "predict(load_policy('policy'), Path('in.csv'), Path('out.csv')); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
