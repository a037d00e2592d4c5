import gzip
import importlib.util
import random
import re
import tempfile
from collections.abc import Callable
from datetime import date, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from primorl.config.datasets import DeclaredBounds, TabularDataset, checked
from primorl.project.errors import PipelineError
from primorl.trajectories.ingestion import ingest
from primorl.trajectories.sources import source_of
from primorl.trajectories.sources.tabular import files as tabular_files
from primorl.trajectories.sources.tabular import sorting as tabular_sorting
from primorl.trajectories.storage.parquet import PartReader
from primorl.trajectories.storage.schema import Spaces, arrow_schema
from tests.projects import project_settings
from tests.trajectories.builders import snapshot

REPOSITORY = Path(__file__).resolve().parents[3]
Row = dict[str, Any]
EXAMPLE = project_settings("csv-log")["chosen"]
SECRET = "Jane Doe"  # stands for what no message may quote

MAPPED: dict[str, Any] = {
    "unit": "user",
    "trajectory": "visit",
    "order": "time",
    "observation": ["x", {"column": "ward", "categories": ["A", "B"]}],
    "action": {"columns": ["dose"], "low": [0.0], "high": [1.0]},
    "reward": "gain",
    "terminated": "died",
    "truncated": "left",
    "next_observation": None,
}
DISCRETE = {"action": {"column": "choice", "count": 3}}


def entry(columns: dict[str, Any] | None = None, **changes: Any) -> TabularDataset:
    """A dataset; ``changes`` of its options go there, others to the entry itself."""
    options = {
        "files": "log",
        "csv": {"delimiter": ",", "decimal_point": "."},
        "columns": MAPPED | (columns or {}),
        "trajectory_ids": "per_unit",
        "end": "flags",
        "sorted": True,
    }
    own = EXAMPLE | {
        "unit": "user",
        "horizon": None,
        "termination": "learned",
        "ingestion": {"duplicates": "allow"},
        "bounds": {"observation": "public", "reward": "public"},
    }
    options |= {key: value for key, value in changes.items() if key in options}
    own |= {key: value for key, value in changes.items() if key not in options}
    return checked(TabularDataset, own | {"options": options})


def row(user: Any, visit: Any, time: Any, **values: Any) -> Row:
    plain = {"x": 1.0, "ward": "A", "dose": 0.5, "gain": 0.0, "died": False, "left": False}
    return {"user": user, "visit": visit, "time": time} | plain | values


def rows() -> list[Row]:
    """User 2 with a visit that terminates and one that is cut; user 10 with one that is cut."""
    return [
        row(2, 0, 0, x=1.0, ward="A", dose=0.1, gain=1.0),
        row(2, 0, 1, x=2.0, ward="B", dose=0.2, gain=2.0),
        row(2, 0, 2, x=3.0, ward="A", dose=0.3, gain=3.0, died=True),
        row(2, 1, 5, x=4.0, ward="B", dose=0.4, gain=4.0),
        row(2, 1, 6, x=5.0, ward="B", dose=0.5, gain=5.0),
        row(2, 1, 7, x=6.0, ward="A", dose=None, gain=None, left=True),
        row(10, 0, 0, x=7.0, ward="A", dose=0.6, gain=6.0),
        row(10, 0, 9, x=8.0, ward="B", dose=None, gain=None, left=True),
    ]


def discrete(chosen: Callable[[int], Any] = lambda index: index % 3) -> list[Row]:
    return [each | {"choice": chosen(index)} for index, each in enumerate(rows())]


def write(content: list[Row] | pa.Table, name: str = "log/part-0.parquet") -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    table = pa.Table.from_pylist(content) if isinstance(content, list) else content
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        pacsv.write_csv(table, path)
    return path


def text(content: str | bytes, name: str = "log/log.csv") -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def run(dataset: TabularDataset) -> pa.Table:
    """What ``collect`` and ``ingest`` make of the files in ``log``."""
    raw = Path(tempfile.mkdtemp(dir=".")) / "raw"
    raw.mkdir()
    source_of("log", dataset).collect(raw)
    ingest(raw, Path("trajectories"), "log", dataset)
    return pa.concat_tables(PartReader(Path("trajectories"), made_by="ingest").tables())


def transition(user: int, visit: int, step: int, seen: list[float], after: list[float], **values: Any) -> Row:
    unit = f"{user:012d}"
    return {
        "unit_id": unit,
        "trajectory_id": f"{unit}/{visit:012d}",
        "step": step,
        "observation": seen,
        "action": [np.float32(values["dose"])],
        "reward": values["gain"],
        "next_observation": after,
        "terminated": values.get("terminated", False),
        "truncated": values.get("truncated", False),
    }


EXPECTED = [
    transition(2, 0, 0, [1, 1, 0], [2, 0, 1], dose=0.1, gain=1.0),
    transition(2, 0, 1, [2, 0, 1], [3, 1, 0], dose=0.2, gain=2.0),
    transition(2, 0, 2, [3, 1, 0], [3, 1, 0], dose=0.3, gain=3.0, terminated=True),
    transition(2, 1, 0, [4, 0, 1], [5, 0, 1], dose=0.4, gain=4.0),
    transition(2, 1, 1, [5, 0, 1], [6, 1, 0], dose=0.5, gain=5.0, truncated=True),
    transition(10, 0, 0, [7, 1, 0], [8, 0, 1], dose=0.6, gain=6.0, truncated=True),
]


def test_rows_become_transitions(project: Path) -> None:
    """No transition crosses an end; a terminated last row is kept, one whose outcome nobody recorded is not."""
    write(rows())
    assert run(entry()).to_pylist() == EXPECTED


def test_next_observations_in_the_log_are_used_and_every_row_is_kept(project: Path) -> None:
    content = [each | {"x2": 10 * each["x"], "ward2": "B", "dose": 0.5, "gain": 0.0} for each in rows()]
    write(content)
    written = run(entry({"next_observation": ["x2", "ward2"]})).to_pylist()
    assert [each["next_observation"] for each in written] == [[10 * each["x"], 0, 1] for each in content]
    assert [each["observation"][0] for each in written] == [each["x"] for each in content]
    assert [each["truncated"] for each in written] == [each["left"] for each in content]
    assert [each["terminated"] for each in written] == [each["died"] for each in content]


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 2**16])
def test_where_batches_end_does_not_matter(project: Path, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular_files, "ROWS_PER_BATCH", batch)
    write(rows())
    dataset = entry()
    assert run(dataset).to_pylist() == EXPECTED
    units = [table["unit_id"].unique().to_pylist() for table in source_of("log", dataset).open(Path("log")).tables()]
    assert list(chain.from_iterable(units)) == ["000000000002", "000000000010"], "no unit is in two batches"


def test_several_files_of_both_kinds_are_one_log(project: Path) -> None:
    """Part 2 comes before part 10, a unit may go on in the next file, columns may stand in another order."""
    content = rows()
    write(content[:2], "log/part-2.csv")
    table = pa.Table.from_pylist(content[2:])
    write(table.select(table.column_names[::-1]), "log/part-10.parquet")
    text("not a log", "log/_SUCCESS")
    text("not a log", "log/README.txt")
    assert run(entry()).to_pylist() == EXPECTED


HEADER = "user,visit,time,x,ward,dose,gain,died,left\n"
ODD_CSV = {
    "byte-order mark": lambda plain: b"\xef\xbb\xbf" + plain,
    "Windows line ends": lambda plain: plain.replace(b"\n", b"\r\n"),
    "blank lines": lambda plain: plain.replace(b"\n", b"\n\n"),
    "no newline at the end": lambda plain: plain.rstrip(b"\n"),
    "a column aside, with line breaks": lambda plain: b"".join(
        line.rstrip(b"\n") + (b",note\n" if number == 0 else b',"said ""no"",\nthen yes"\n')
        for number, line in enumerate(plain.splitlines(keepends=True))
    ),
    "flags as 0 and 1": lambda plain: plain.replace(b"true", b"1").replace(b"false", b"0"),
}


@pytest.mark.parametrize("kind", ODD_CSV)
def test_odd_csv(project: Path, kind: str) -> None:
    plain = write(rows(), "plain.csv").read_bytes()
    text(ODD_CSV[kind](plain))
    assert run(entry()).to_pylist() == EXPECTED


def test_csv_as_spreadsheets_of_half_of_europe_write_it(project: Path) -> None:
    plain = write(rows(), "plain.csv").read_text()
    text(re.sub(r"(\d)\.(\d)", r"\1,\2", plain.replace(",", ";")))
    assert run(entry(csv={"delimiter": ";", "decimal_point": ","})).to_pylist() == EXPECTED


def test_compressed_csv(project: Path) -> None:
    text(gzip.compress(write(rows(), "plain.csv").read_bytes()), "log/log.csv.gz")
    assert run(entry()).to_pylist() == EXPECTED


@pytest.mark.parametrize("form", ["log/log.parquet", "log/log.csv"])
@pytest.mark.parametrize(
    "order",
    [
        lambda time: time + 0.5,
        lambda time: datetime(2024, 2, 28, 23, 59) + timedelta(minutes=time),
        lambda time: date(2024, 2, 28) + timedelta(days=time),
        lambda time: time - 5,
    ],
)
def test_what_orders_rows(project: Path, order: Callable[[int], Any], form: str) -> None:
    """Numbers, timestamps and dates, in either kind of file, sorted or not."""
    content = [each | {"time": order(each["time"])} for each in rows()]
    write(content, form)
    assert run(entry()).to_pylist() == EXPECTED
    random.Random(1).shuffle(content)
    write(content, form)
    assert run(entry(sorted=False)).to_pylist() == EXPECTED


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        (pa.int32(), {2: 2, 10: 10}),
        (pa.uint64(), {2: 2, 10: 10}),
        (pa.string(), {2: "2", 10: "0010"}),
        (pa.dictionary(pa.int8(), pa.large_string()), {2: "2", 10: "10"}),
    ],
)
def test_ids_of_digits_are_numbers_whatever_their_type(project: Path, kind: pa.DataType, ids: dict[int, Any]) -> None:
    """The order of text is the order of numbers, and a withdrawn person's id is written in one way."""
    table = pa.Table.from_pylist(rows())
    table = table.set_column(0, "user", pa.array([ids[each["user"]] for each in rows()]).cast(kind))
    write(table)
    assert run(entry()).to_pylist() == EXPECTED


def test_ids_that_are_names_stay_as_they_are(project: Path) -> None:
    write([each | {"user": {2: "anna", 10: "ötzi 7"}[each["user"]]} for each in rows()])
    assert run(entry())["unit_id"].unique().to_pylist() == ["anna", "ötzi 7"]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_trajectories_that_are_units_of_their_own(project: Path, is_sorted: bool) -> None:
    content = [each | {"visit": 100 * each["user"] + each["visit"]} for each in rows()]
    write(content if is_sorted else content[::-1])
    written = run(entry({"unit": None}, unit="trajectory", trajectory_ids="global", sorted=is_sorted))
    assert written["unit_id"].equals(written["trajectory_id"])
    assert written["unit_id"].unique().to_pylist() == ["000000000200", "000000000201", "000000001000"]
    assert written["observation"].to_pylist() == [each["observation"] for each in EXPECTED]


def test_a_log_of_one_trajectory_a_person_names_one_column_twice(project: Path) -> None:
    write([each for each in rows() if each["visit"] == 0])
    written = run(entry({"trajectory": "user"}, trajectory_ids="global"))
    assert written["unit_id"].equals(written["trajectory_id"])
    assert written["unit_id"].unique().to_pylist() == ["000000000002", "000000000010"]


def test_numbers_of_any_type(project: Path) -> None:
    table = pa.Table.from_pylist(rows())
    for name, kind in (("x", pa.decimal128(10, 2)), ("gain", pa.float16()), ("dose", pa.float64())):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(kind))
    for name, kind in (("died", pa.int8()), ("left", pa.float64())):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int8()).cast(kind))
    write(table)
    assert run(entry()).to_pylist() == EXPECTED


@pytest.mark.parametrize(
    ("action", "chosen", "size"),
    [
        ({"column": "choice", "count": 3}, lambda index: index % 3, 3),
        ({"column": "choice", "categories": ["wait", "low", 2]}, lambda index: ["wait", "low", "2"][index % 3], 3),
        ({"column": "choice", "categories": [7, 8, 9, 10]}, lambda index: 7 + index % 3, 4),
    ],
)
@pytest.mark.parametrize("form", ["log/log.parquet", "log/log.csv"])
def test_discrete_actions(project: Path, action: dict[str, Any], chosen: Any, size: int, form: str) -> None:
    """Numbers or names become 0 … count - 1; the row whose outcome nobody recorded may have none."""
    content = discrete(chosen)
    content[5]["choice"] = None
    write(content, form)
    dataset = entry({"action": action})
    assert run(dataset)["action"].to_pylist() == [0, 1, 2, 0, 1, 0]
    spaces = source_of("log", dataset).open(Path("log")).spaces
    names = [str(each) for each in action.get("categories", range(size))]
    assert spaces == Spaces(
        (-np.inf, 0, 0),
        (np.inf, 1, 1),
        (0.0,) * size,
        (1.0,) * size,
        discrete_actions=True,
        one_hot=((1, 2),),
        observation_names=("x", "ward=A", "ward=B"),
        action_names=tuple(names),
    )
    assert PartReader(Path("trajectories"), made_by="ingest").info.spaces == spaces, "names survive ingest"


def test_an_environments_spaces_are_used(project: Path) -> None:
    names = ["x", "y", "z"]
    content = [each | {"y": 0.0, "z": 0.0} for each in rows()]
    write(content)
    box = {"columns": ["dose"], "low": None, "high": None}
    dataset = entry({"observation": names, "action": box}, environment="Pendulum-v1")
    reader = source_of("log", dataset).open(Path("log"))
    assert reader.spaces.observation_high == (1.0, 1.0, 8.0)
    assert reader.spaces.action_low == (-2.0,)
    assert reader.horizon == 200
    assert len(run(dataset)) == len(EXPECTED)
    with pytest.raises(PipelineError, match="observation: found 2 dimensions or choices, the environment declares 3"):
        source_of("log", entry({"observation": names[:2], "action": box}, environment="Pendulum-v1")).open(Path("log"))
    with pytest.raises(PipelineError, match="the environment has continuous actions, found discrete ones"):
        source_of("log", entry({"observation": names} | DISCRETE, environment="Pendulum-v1")).open(Path("log"))


def test_declared_bounds_must_fit(project: Path) -> None:
    write(rows())
    bounds = {"observation": {"low": [0.0, 0.0], "high": [9.0, 1.0]}, "reward": "public"}
    with pytest.raises(PipelineError, match=r"bounds.observation: found 2 dimensions, allowed are the 3"):
        source_of("log", entry(bounds=bounds)).open(Path("log"))


NO_FLAGS = {"terminated": None, "truncated": None}


def test_recordings_cut_at_their_last_row(project: Path) -> None:
    write(rows())
    written = run(entry({"truncated": None}, end="last_row")).to_pylist()
    assert written == EXPECTED
    written = run(entry(NO_FLAGS, end="last_row")).to_pylist()
    assert [each["truncated"] for each in written] == [False, True, False, True, True]


def test_recordings_that_end_at_the_horizon(project: Path) -> None:
    """Three steps, each a row; or two, and a row that tells only what they led to. A termination may be earlier."""
    content = [each | {"died": False, "dose": 0.5, "gain": 0.0} for each in rows()[:6]]
    write(content)
    for horizon in (3, 2):
        written = run(entry(NO_FLAGS, end="horizon", horizon=horizon)).to_pylist()
        assert [each["truncated"] for each in written] == [False, True, False, True]
    content[1]["died"] = True
    write(content[:2] + content[3:])
    written = run(entry({"truncated": None}, end="horizon", horizon=3)).to_pylist()
    assert [each["terminated"] for each in written] == [False, True, False, False]


# Bad input


Change = Callable[[list[Row]], Any]


def changed(place: int, **values: Any) -> Change:
    return lambda content: [each | values if index == place else each for index, each in enumerate(content)]


def without(column: str) -> Change:
    return lambda content: [{key: value for key, value in each.items() if key != column} for each in content]


def swapped(one: int, other: int) -> Change:
    def change(content: list[Row]) -> list[Row]:
        content[one], content[other] = content[other], content[one]
        return content

    return change


def everywhere(**values: Any) -> Change:
    return lambda content: [each | values for each in content]


PART = r"raw/part-0\.parquet: "
BAD: dict[str, tuple[Change, str]] = {
    "column missing": (without("gain"), PART + "column 'gain' is missing"),
    "no rows": (lambda content: pa.Table.from_pylist(content).slice(0, 0), "found no rows in 1 files"),
    "text for a number": (everywhere(x=SECRET), PART + "column 'x': found string, allowed: numbers"),
    "a list for a number": (everywhere(x=[1.0, 2.0]), PART + "column 'x': found list<.*allowed: numbers, one column"),
    "fractions for ids": (everywhere(user=1.5), PART + "column 'user': found double, allowed: text or whole numbers"),
    "text for the order": (everywhere(time=SECRET), PART + "column 'time': found string, allowed: numbers, timest"),
    "text for a flag": (everywhere(died="no"), PART + "column 'died': found string, allowed: truth values"),
    "numbers for categories": (everywhere(ward=1.5), PART + "column 'ward': found double, allowed: text"),
    "NaN observed": (changed(4, x=np.nan), PART + r"row 5: found .* observation \(column 'x'\)"),
    "nothing observed": (changed(5, x=None), PART + "row 6: found a missing, NaN or infinite observation"),
    "infinity observed": (changed(0, x=np.inf), PART + "row 1: found a missing, NaN or infinite observation"),
    "beyond float32": (changed(0, x=1e300), PART + "row 1: found a missing, NaN or infinite observation"),
    "no reward": (changed(3, gain=None), PART + "row 4: found a missing, NaN or infinite reward"),
    "infinite reward": (changed(2, gain=-np.inf), PART + "row 3: found a missing, NaN or infinite reward"),
    "no action": (changed(1, dose=None), PART + "row 2: found a missing, NaN or infinite action"),
    "action outside": (changed(1, dose=1.5), r"trajectory number 1, step 1: found an action outside the declared"),
    "undeclared category": (changed(6, ward=SECRET), PART + "row 7: column 'ward': found a category that is not decl"),
    "no category": (changed(6, ward=None), PART + "row 7: column 'ward': found a category that is not declared, or no"),
    "no unit": (changed(6, user=None), PART + "row 7: column 'user': found a missing id"),
    "no trajectory": (changed(1, visit=None), PART + "row 2: column 'visit': found a missing id"),
    "empty unit": (
        lambda content: [each | {"user": "" if each["user"] == 10 else "2"} for each in content],
        PART + "row 7: column 'user': found a missing id",
    ),
    "no order": (changed(1, time=None), PART + "row 2: column 'time': found a missing order"),
    "NaN order": (changed(1, time=np.nan), PART + "row 2: column 'time': found a missing order"),
    "steps unsorted": (swapped(0, 1), PART + "row 2: found a row out of order in its trajectory"),
    "steps duplicated": (changed(1, time=0), PART + "row 2: found an order that its trajectory has already"),
    "trajectories unsorted": (lambda content: content[3:6] + content[:3], PART + "row 4: found a trajectory out of or"),
    "units unsorted": (lambda content: content[6:] + content[:6], PART + "row 3: found a trajectory out of order"),
    "a unit in two places": (lambda content: content[:3] + content[6:] + content[3:6], PART + "row 6: found a traject"),
    "two ends": (changed(3, left=True), PART + r"row 4: found an end \(terminated or truncated\) before"),
    "died, and goes on": (changed(0, died=True), PART + r"row 1: found an end \(terminated or truncated\) before"),
    "no end": (changed(5, left=False), PART + "row 6: found the last row of a trajectory, with no end flag"),
    "no flag": (changed(5, left=None), PART + "row 6: column 'left': found a missing end flag"),
    "a flag of 2": (
        lambda content: [each | {"left": 2 if each["left"] else 0} for each in content],
        PART + "row 6: column 'left': found a flag that is neither 0 nor 1",
    ),
    "a row without an outcome": (lambda content: [*content, row(11, 0, 0, left=True)], PART + "row 9: found a traject"),
}


def refusal(dataset: TabularDataset) -> str:
    """The one line that says no; what was there before is untouched, nothing half-written is left."""
    write(rows(), "good/log.parquet")
    run(entry(files="good"))
    before = snapshot(Path("trajectories"))
    there = {path.name for path in Path().iterdir()}
    with pytest.raises(PipelineError) as refused:
        run(dataset)
    message = str(refused.value)
    assert "\n" not in message
    assert SECRET not in message
    assert snapshot(Path("trajectories")) == before
    fresh = {path.name for path in Path().iterdir()} - there
    assert len(fresh) == 1, "only the folder of raw files"
    assert {path.name for path in Path(fresh.pop()).iterdir()} <= {"raw"}, "no folder of rows that were to be sorted"
    return message


@pytest.mark.parametrize("kind", BAD)
def test_bad_rows(project: Path, kind: str) -> None:
    change, message = BAD[kind]
    write(change(rows()))
    assert re.search(message, refusal(entry()))


@pytest.mark.parametrize("kind", [kind for kind in BAD if "unsorted" not in kind and "two places" not in kind])
def test_bad_rows_of_a_log_that_is_to_be_sorted(project: Path, kind: str) -> None:
    """The row is that of the log, not of what was sorted; what was spilled to disk is gone."""
    change, message = BAD[kind]
    write(change(rows()))
    assert re.search(message, refusal(entry(sorted=False)))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (lambda index: index - 1, "row 1: column 'choice': found an action outside the declared space"),
        (lambda index: 2**32 if index == 2 else 0, "row 3: column 'choice': found an action outside the declared spac"),
        (lambda index: None if index == 3 else 0, "row 4: found no action"),
        (lambda index: 0.5, "column 'choice': found double, allowed: whole numbers"),
        (lambda index: SECRET, "column 'choice': found string, allowed: whole numbers"),
    ],
)
def test_bad_discrete_actions(project: Path, chosen: Any, message: str) -> None:
    write(discrete(chosen))
    assert re.search(PART + message, refusal(entry(DISCRETE)))


def test_an_action_that_was_not_declared_by_name(project: Path) -> None:
    write(discrete(lambda index: SECRET if index == 4 else "wait"))
    message = refusal(entry({"action": {"column": "choice", "categories": ["wait", "low"]}}))
    assert "row 5: column 'choice': found a category that is not declared" in message


@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_trajectory_id_reused_across_units(project: Path, is_sorted: bool) -> None:
    """Visits that are numbered anew for each person must be said to be so; else two people would share one."""
    write([each for each in rows() if each["visit"] == 0])
    message = refusal(entry(trajectory_ids="global", sorted=is_sorted))
    assert "found one trajectory in two units" in message


def test_longer_than_the_horizon(project: Path) -> None:
    write(rows())
    message = refusal(entry(horizon=2))
    assert re.search(PART + "row 1: found a trajectory longer than the horizon", message)
    message = refusal(entry({"truncated": None}, end="horizon", horizon=3))
    assert re.search(PART + "row 8: found the last row of a trajectory that neither terminated nor reached", message)


def test_a_truncated_parquet_file(project: Path) -> None:
    path = write(rows())
    path.write_bytes(path.read_bytes()[:-20])
    assert re.search(PART + "not readable as Parquet: truncated, corrupt or empty", refusal(entry()))
    path.write_bytes(b"")
    assert re.search(PART + "not readable as Parquet: truncated, corrupt or empty", refusal(entry()))


def test_a_corrupt_page(project: Path) -> None:
    path = Path("log/part-0.parquet")
    path.parent.mkdir()
    pq.write_table(
        pa.Table.from_pylist(rows()), path, write_page_checksum=True, compression="none", use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    place = bytes(content).index(np.array([7.0, 8.0]).tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert re.search(PART + "truncated or corrupt after row 0", refusal(entry()))


def test_files_with_other_columns(project: Path) -> None:
    write(rows()[:3])
    write(without("gain")(rows()[3:]), "log/part-1.parquet")
    assert "part-1.parquet: column 'gain' is missing" in refusal(entry())
    write(everywhere(time=datetime(2024, 1, 1))(rows()[3:]), "log/part-1.parquet")
    assert "column 'time': found times in some files and numbers in others" in refusal(entry())


BAD_CSV: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not readable as CSV in UTF-8 with a header: truncated, corrupt or empty"),
    "a header alone": (HEADER.encode(), "found no rows in 1 files"),
    "no header": (f"2,0,0,1,{SECRET},0.5,1,0,1\n".encode(), "column 'died' is missing"),
    "another delimiter": (HEADER.replace(",", ";").encode(), "column 'died' is missing"),
    "a column twice": (HEADER.replace("left", "left,x").encode(), "column 'x' is there twice"),
    "UTF-16": ("user,visit\n1,2\n".encode("utf-16"), "not readable as CSV in UTF-8"),
    "a row too short": (HEADER.encode() + b"2,0,0,1,A,0.5,1,0,0\n2,0,1\n", "row 2: found another number of fields"),
    "a word for a number": (
        HEADER.encode() + f"2,0,0,1,A,0.5,1,0,0\n2,0,1,1,A,{SECRET},1,0,1\n".encode(),
        "row 2, column 'dose': found what is no double",
    ),
    "a word for a flag": (HEADER.encode() + b"2,0,0,1,A,0.5,1,0,perhaps\n", "row 1, column 'left': found what is no b"),
    "a word for the order": (HEADER.encode() + b"2,0,Monday,1,A,0.5,1,0,1\n", "column 'time': found string"),
    "not UTF-8": (HEADER.encode() + b"2,0,0,1,\xff,0.5,1,0,1\n", "not readable as CSV in UTF-8"),
    "no unit": (HEADER.encode() + b",0,0,1,A,0.5,1,0,1\n", "row 1: column 'user': found a missing id"),
    "no order": (HEADER.encode() + b"2,0,,1,A,0.5,1,0,1\n", "row 1: column 'time': found a missing order"),
    "no flag": (HEADER.encode() + b"2,0,0,1,A,0.5,1,0,\n", "row 1: column 'left': found a missing end flag"),
    "NaN": (HEADER.encode() + b"2,0,0,nan,A,0.5,1,0,1\n", "row 1: found a missing, NaN or infinite observation"),
    "infinity": (HEADER.encode() + b"2,0,0,inf,A,0.5,1,1,0\n", "row 1: found a missing, NaN or infinite observation"),
}


@pytest.mark.parametrize("kind", BAD_CSV)
def test_bad_csv(project: Path, kind: str) -> None:
    content, message = BAD_CSV[kind]
    text(content)
    assert re.search(message, refusal(entry()))


def test_a_bad_row_late_in_a_long_csv_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular_files, "_CSV_BLOCK_BYTES", 1000)
    lines = [f"2,0,{time},1,A,0.5,1,0,{int(time == 499)}\n" for time in range(500)]
    text(HEADER + "".join(lines))
    assert len(run(entry())) == 499
    lines[321] = lines[321].replace("0.5", "half")
    text(HEADER + "".join(lines))
    assert "row 322, column 'dose'" in refusal(entry())


def test_a_truncated_compressed_csv(project: Path) -> None:
    text(gzip.compress((HEADER + "2,0,0,1,A,0.5,1,0,1\n" * 1000).encode())[:-20], "log/log.csv.gz")
    assert re.search(r"log.csv.gz: (not readable as CSV: )?truncated or corrupt", refusal(entry()))


def test_rows_that_were_spilled_are_gone_when_a_check_says_no(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error may come from far from the sorting, while much of the log still lies sorted on the disk."""
    monkeypatch.setattr(tabular_sorting, "_BYTES_PER_BUCKET", 1)
    content = [row(user, 0, time, left=time == 3) for user in range(50) for time in range(4)]
    content[0]["dose"] = 7.0
    write(content)
    assert "an action outside the declared space" in refusal(entry(sorted=False))


# Where files are


@pytest.mark.parametrize("files", ["log", "log/part-0.parquet", "log/*.parquet", "**/part-*.parquet", "absolute"])
def test_files_are_found_and_copied(project: Path, files: str) -> None:
    """A file, a folder or a pattern; what is copied keeps its name, and a later change of the log does not reach it."""
    path = write(rows())
    target = project / "raw"
    target.mkdir()
    source_of("log", entry(files=str(project / "log") if files == "absolute" else files)).collect(target)
    copies = [copy for copy in target.rglob("*") if copy.is_file()]
    assert [copy.name for copy in copies] == ["part-0.parquet"]
    content = path.read_bytes()
    path.write_bytes(b"other")
    assert copies[0].read_bytes() == content


def test_a_folder_is_searched_through_and_hidden_files_are_left(project: Path) -> None:
    write(rows()[:3])
    write(rows()[3:], "log/part-1.csv")
    Path("log/year").mkdir()
    Path("log/part-1.csv").rename("log/year/part-1.csv")
    text("", "log/.part-2.csv")
    assert run(entry()).to_pylist() == EXPECTED


@pytest.mark.parametrize("files", ["nowhere", "nowhere/*.csv", "empty"])
def test_no_files(project: Path, files: str) -> None:
    Path("empty").mkdir()
    message = refusal(entry(files=files))
    assert message.startswith(f"datasets/log.yaml: options.files: found no file at {files!r}; allowed")


def test_a_pattern_that_finds_what_is_no_log(project: Path) -> None:
    write(rows())
    text("{}", "log/part.json")
    assert "found 1 of 2 files at 'log/*' with a name that is none of a log" in refusal(entry(files="log/*"))


# Sorting


def slow(content: list[Row]) -> list[Row]:
    """What the log says, trajectory by trajectory: the obvious reference."""
    found = []
    for user, visit in sorted({(each["user"], each["visit"]) for each in content}):
        of_one = [each for each in content if (each["user"], each["visit"]) == (user, visit)]
        of_one.sort(key=lambda each: each["time"])
        steps = []
        for now, later in zip(of_one, [*of_one[1:], None], strict=True):
            if later is not None or now["died"]:
                seen, after = ([each["x"], each["ward"] == "A", each["ward"] == "B"] for each in (now, later or now))
                values = {"dose": now["dose"], "gain": now["gain"], "terminated": now["died"]}
                steps.append(transition(user, visit, len(steps), seen, after, **values))
        steps[-1]["truncated"] = not steps[-1]["terminated"]
        found += steps
    return found


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Rows of some users' visits, in any order."""
    visits = draw(st.sets(st.tuples(st.integers(0, 10**4), st.integers(0, 3)), min_size=1, max_size=12))
    content = []
    number = st.floats(-1e6, 1e6, width=32)
    for user, visit in visits:
        died = draw(st.booleans())
        times = draw(st.sets(st.integers(-50, 50), min_size=1 if died else 2, max_size=6))
        for time in times:
            last = time == max(times)
            values = {"x": draw(number), "gain": draw(number), "ward": draw(st.sampled_from("AB"))}
            values |= {"dose": draw(st.floats(0, 1, width=32)), "died": died and last, "left": last and not died}
            content.append(row(user, visit, time, **values))
    return draw(st.permutations(content))


@settings(max_examples=25, deadline=None)
@given(logs(), st.integers(1, 40), st.integers(1, 3000), st.integers(0, 40))
def test_any_order_of_rows_is_the_same_dataset(content: list[Row], batch: int, bucket: int, cut: int) -> None:
    """However rows are shuffled, spread over files, read and spilled, the dataset is that of the sorted log."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tabular_files, "ROWS_PER_BATCH", batch)
        patch.setattr(tabular_sorting, "ROWS_PER_BATCH", batch)
        patch.setattr(tabular_sorting, "_BYTES_PER_BUCKET", bucket)
        in_order = sorted(content, key=lambda each: (each["user"], each["visit"], each["time"]))
        found = []
        for given_rows, is_sorted in ((content, False), (in_order, True)):
            raw = Path(folder) / f"raw-{is_sorted}"
            raw.mkdir()
            for part, some in enumerate((given_rows[:cut], given_rows[cut:])):
                if some:
                    pq.write_table(pa.Table.from_pylist(some), raw / f"{part}.parquet")
            tables = list(source_of("log", entry(sorted=is_sorted)).open(raw).tables())
            assert all(
                table.schema.equals(arrow_schema(source_of("log", entry()).open(raw).spaces)) for table in tables
            )
            found.append(pa.concat_tables(tables).to_pylist())
            assert {path.name for path in Path(folder).iterdir()} <= {"raw-True", "raw-False"}
        assert found[0] == slow(content)
        assert found[1] == found[0]


# What a dataset's file may say


@pytest.mark.parametrize(
    ("columns", "changes", "message"),
    [
        ({}, {"unit": "visit"}, "unit must be the column that options.columns.unit names"),
        ({}, {"unit": "trajectory"}, "unit must be the column that options.columns.unit names"),
        ({"unit": None}, {"trajectory_ids": "global"}, "or trajectory where that is null"),
        ({"unit": None}, {"unit": "trajectory"}, "trajectory_ids: per_unit needs columns.unit"),
        (NO_FLAGS, {}, "found no end flags"),
        ({}, {"end": "horizon"}, "options.end: horizon needs a horizon"),
        ({"next_observation": ["x"]}, {}, "name one column for each entry of observation"),
        ({"observation": []}, {}, "at least 1 item"),
        ({"observation": [{"column": "ward", "categories": ["A", "A"]}]}, {}, "every category stands once"),
        ({"observation": [{"column": "ward", "categories": [True, False]}]}, {}, "valid string"),
        ({"action": {"columns": ["dose"], "low": [0.0], "high": None}}, {}, "must both be null or both be lists"),
        ({"action": {"columns": ["dose"], "low": [0.0, 1.0], "high": [1.0, 2.0]}}, {}, "one number for each of"),
        ({"action": {"columns": ["dose"], "low": [1.0], "high": [1.0]}}, {}, "low must be below high"),
        ({"action": {"columns": ["dose"], "low": None, "high": None}}, {}, "must be declared where environment is"),
        ({}, {"environment": "Pendulum-v1"}, "be null where an environment declares them"),
        ({"action": {"column": "choice", "count": 1}}, {}, "greater than or equal to 2"),
        ({}, {"csv": {"delimiter": ", ", "decimal_point": "."}}, "should match pattern"),
    ],
)
def test_choices_that_do_not_fit(columns: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        entry(columns, **changes)


def test_the_documented_example_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset's file and the script that writes its log fit each other."""
    spec = importlib.util.spec_from_file_location("insulin_log", REPOSITORY / "examples" / "insulin_log.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "FOLDER", project / "examples/insulin-log")
    monkeypatch.setattr("sys.argv", ["insulin_log.py", "--patients", "30"])
    (project / "examples").mkdir()
    script.main()
    dataset = checked(TabularDataset, EXAMPLE)
    written = run(dataset)
    assert len(written["unit_id"].unique()) == 30
    assert len(written) == 12 * len(written["trajectory_id"].unique())
    assert isinstance(dataset.bounds.observation, DeclaredBounds)
    seen = np.array(written["observation"].to_pylist())
    assert (seen >= dataset.bounds.observation.low).all()
    assert (seen <= dataset.bounds.observation.high).all()
