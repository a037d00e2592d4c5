"""Actions for a table: columns are found by name, rows keep their order, and what cannot be
answered has no action.
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from primorl.base import PipelineError
from primorl.base.files import MANIFEST, MODEL, SUMMARY, TRAJECTORIES, write_json
from primorl.commands.main import main
from primorl.policy.loaded import Policy
from primorl.use import predict
from tests.data.sources.tabular_builders import SECRET, text, write
from tests.policy.test_loaded import NAMES, RANGE, ROWS, loaded

OF_THE_LOG: dict[str, Any] = {
    "observation_names": ("x", "ward=A", "ward=B"),
    "action_names": ("dose", "rate"),
    "one_hot": ((1, 2),),
}
NAMED = {
    "weight": ROWS[:, 2],
    "note": [SECRET, "", "c"],
    "age": ROWS[:, 0],
    "id": ["007", "8", "9"],
    "dose": ROWS[:, 1],
}
OUT = Path("out.parquet")


@pytest.fixture
def policy(project: Path) -> Policy:
    return loaded(Path("policy"), discrete=True, **RANGE, **NAMES)


def table(content: dict[str, Any], name: str = "in.parquet") -> Path:
    return write(pa.table(content), name)


def read(path: Path = OUT) -> list[dict[str, Any]]:
    found: pa.Table = pq.read_table(path) if path.suffix == ".parquet" else pacsv.read_csv(path)
    return found.to_pylist()


def refused(policy: Policy, given: Path, says: str, out: str = "out.csv", **options: Any) -> None:
    with pytest.raises(PipelineError, match=says) as wrong:
        predict(policy, given, Path(out), **options)
    assert "\n" not in str(wrong.value)
    assert SECRET not in str(wrong.value)
    assert not Path("out.csv").exists()


@pytest.mark.parametrize("of", ["in.parquet", "in.csv"])
def test_columns_go_by_name_and_rows_keep_their_order(policy: Policy, of: str) -> None:
    numbers = np.asarray(policy.act(ROWS))
    for into in (OUT, Path("out.csv")):
        assert predict(policy, table(NAMED, of), into, keep=["id"]) == (3, 0)
        found = read(into)
        assert [row["action"] for row in found] == numbers.tolist()
        names = [policy.action_names[number] for number in numbers]
        assert [row["action_name"] for row in found] == names
        assert SECRET not in into.read_bytes().decode("latin-1"), "nobody asked for that column"
    header, *lines = csv.reader(Path("out.csv").read_text(encoding="utf-8").splitlines())
    assert header == ["id", "action", "action_name", "abstained", "reason"]
    assert [line[0] for line in lines] == ["007", "8", "9"]


def test_what_is_no_number_or_far_outside_is_not_guessed(
    policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a comma in a number a line says where it is, and quotes none."""
    unknown = ["", "n/a", "NaN", "inf", "12/5", "1e999", "0x10", "1,234", "-31.1", "31.1"]
    lines = "".join(f'"{age}",1,5\n' for age in [*unknown, " 0.5 ", "+5e-1", ".5", "30.9"])
    assert predict(policy, text(f"age,dose,weight\n{lines}", "in.csv"), OUT) == (14, 10)
    found = read()
    said = capsys.readouterr().err
    assert "column 'age', row 8: found a number with a comma" in said
    assert "1,234" not in said
    assert [row["abstained"] for row in found] == [True] * 10 + [False] * 4
    assert all(row["action"] is row["action_name"] is None for row in found[:10])
    number, far = "age is not a finite number", "age lies outside the range"
    assert [row["reason"] for row in found] == [number] * 8 + [far] * 2 + [None] * 4
    expected = np.asarray(policy.act([[0.5, 1, 5]] * 3 + [[30.9, 1, 5]]))
    assert [row["action"] for row in found[10:]] == expected.tolist()
    views = pa.array(["0.5", "n/a"], pa.string_view())  # as Polars writes text
    given = table({"age": views, "dose": [1.0] * 2, "weight": [5.0] * 2})
    assert predict(policy, given, OUT) == (2, 1)
    assert read()[0]["action"] == expected[0]


def test_of_a_clone_with_discrete_actions_probabilities_are_written(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After people joined, left or withdrew, a warning says so, or that it cannot be known."""
    clone, words = Path("models/behaviour"), ["predict", "--against-advice", "--out", str(OUT)]
    clone.parent.mkdir()
    policy, given = loaded(clone, discrete=True, drawn=True, **NAMES), table(NAMED)
    assert main([*words, "--policy", str(clone), "--observations", str(given)]) == 0
    first, *others = read()
    assert list(first) == ["probability_up", "probability_down", "abstained", "reason"]
    shares = [[row["probability_up"], row["probability_down"]] for row in (first, *others)]
    np.testing.assert_allclose(shares, policy.probabilities(ROWS))
    assert "joined, left or withdrew" not in capsys.readouterr().err
    for file, data in ((MANIFEST, "a"), (MODEL / "privacy.json", "b")):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"dataset_fingerprint": data})
    SUMMARY.parent.mkdir()
    write_json(SUMMARY, {})
    assert main([*words, "--policy", str(clone), "--observations", str(given)]) == 0
    assert "models/behaviour: of the data as they were" in capsys.readouterr().err
    TRAJECTORIES.mkdir()
    (TRAJECTORIES / "rows.parquet").write_bytes(b"not Parquet")
    assert main([*words, "--policy", str(clone), "--observations", str(given)]) == 0
    assert "whether people left since is not known" in capsys.readouterr().err


def test_what_cannot_be_read_or_written_is_one_line(policy: Policy) -> None:
    content = "age,dose,weight\n1,1,5\n"
    for name, given, out, keep, says in (
        ("in.csv", f"{content}{SECRET},1\n", "out.csv", [], "in.csv: not readable"),
        ("in.parquet", content, "out.csv", [], "in.parquet: not readable as Parquet"),
        ("in.csv", content, "out", [], "--out: found 'out'"),
        ("in.csv", content, "./in.csv", [], "--out: found the file of --observations"),
        ("in.csv", "age,dose,weight,action\n1,1,5,1\n", "out.csv", ["action"], "action twice"),
        ("in.csv", "age,weight\n1,5\n", "out.csv", [], "found no column 'dose'"),
        ("in.csv", "age,dose,dose,weight\n1,1,1,5\n", "out.csv", [], "'dose': found 2 times"),
        ("in.csv", 'note,age,dose,weight\n"a,1,1,5\n"b",1,1,5\n', "out.csv", [], "row 1: .* quote"),
        ("in.csv", 'id,age,note\n8,1,"a\n9,1,"b"\n', "out.csv", [], "row 1: found a quote"),
    ):
        refused(policy, text(given, name), says, out, keep=keep)
    joined = pa.table([pa.array([1.0])] * 5, names=["age", "dose", "weight", "note", "note"])
    assert predict(policy, write(joined, "in.parquet"), OUT)[0] == 1, "of columns that are used"
    plain = {"age": [1.0], "dose": [1.0], "weight": [5.0], "tags": [["a"]]}
    refused(policy, table(plain | {"dose": [[1.0]]}), r"column 'dose': found list<")
    Path("folder.parquet").mkdir()
    refused(policy, Path("folder.parquet"), "folder.parquet: found a folder")
    refused(policy, table(plain), "--keep: found columns that", keep=["tags"])
    named = loaded(Path("named"), **OF_THE_LOG)
    refused(named, table({"x": [1.0], "ward": [1.5]}), r"column 'ward': found double")
