"""Values of a log and the files that hold them: what is read, and what is refused with file and row
and quotes no value.
"""

import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from primorl.base import PipelineError
from primorl.data.sources import logs as tabular_files
from primorl.data.sources.logs import Field, LogFiles
from tests.data.sources.tabular_builders import (
    BOUNDED,
    DISCRETE,
    EXPECTED,
    HEADER,
    NO_FLAGS,
    REPOSITORY,
    SECRET,
    Row,
    arrives,
    discrete,
    entry,
    refusal,
    row,
    rows,
    run,
    text,
    write,
)


def test_a_european_csv_that_is_compressed_is_read(project: Path) -> None:
    plain = write(rows(), "plain.csv").read_bytes()
    european = re.sub(rb"(\d)\.(\d)", rb"\1,\2", plain.replace(b",", b";"))
    text(gzip.compress(european), "log/log.csv.gz")
    arrives(entry(csv={"delimiter": ";", "decimal_point": ","}))


def test_values_beyond_declared_bounds_are_refused_or_cut_as_declared(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the row itself, also where only the row before uses it, and quotes no value
    of a row.
    """
    within = [each | {"x": min(each["x"], 4.5)} for each in rows()]
    later = [each | {"x2": 1 + 5.0 * each["visit"], "dose": 0.5, "gain": 0.5} for each in within]
    following = {"next_observation": ["x2", "ward"]}
    for content, columns, place in (
        (rows(), {}, r"row 5: .*bounds.observation of: x;"),
        (within, {}, r"row 5: .*bounds.reward of: reward;"),
        (later, following, r"row 4: .*bounds.observation of: x;"),
    ):
        write(content)
        with pytest.raises(PipelineError, match=place):
            run(entry(columns, **BOUNDED))
    write(rows())
    cut = run(entry(beyond_bounds="clip", **BOUNDED)).to_pylist()
    told = [each for each in capsys.readouterr().err.splitlines() if "beyond bounds" in each]
    assert [each.split(" were ")[0] for each in told] == [
        "ingest: some values of observation",
        "ingest: some values of reward",
    ]
    for each, whole in zip(cut, EXPECTED, strict=True):
        for name in ("observation", "next_observation"):
            assert each[name] == [min(whole[name][0], 4.5), *whole[name][1:]]
        assert each["reward"] == min(whole["reward"], 4.0)


Change = Callable[[list[Row]], Any]


def changed(place: int, **values: Any) -> Change:
    return lambda content: [
        each | values if index == place else each for index, each in enumerate(content)
    ]


def everywhere(**values: Any) -> Change:
    return lambda content: [each | values for each in content]


def choosing(chosen: list[Any]) -> Change:
    return lambda _: discrete(lambda index: chosen[index % 2])


PART = r"raw/part-0\.parquet: "
BAD: dict[str, tuple[Any, ...]] = {
    "no rows": (lambda rows: pa.Table.from_pylist(rows).slice(0, 0), "no transitions"),
    "text for a number": (everywhere(x=SECRET), PART + "column 'x'"),
    "a list for a number": (everywhere(x=[1.0, 2.0]), "convert it to columns, or"),
    "NaN observed": (changed(4, x=np.nan), PART + r"row 5: .*in 'x'"),
    "undeclared category": (changed(6, ward=SECRET), PART + "row 7: column 'ward'"),
    "no unit": (changed(6, user=None), PART + "row 7: column 'user'"),
    "no reward at first": (
        changed(0, gain=None),
        "if rows have the reward of the row before, move",
    ),
    "NaN order": (changed(1, time=np.nan), PART + "row 2: column 'time'"),
    "steps unsorted": (lambda rows: [rows[1], rows[0], *rows[2:]], PART + "row 2: "),
    "unsorted users": (
        lambda rows: sorted(rows, key=lambda each: str(each["time"])),
        "options.sorted: false",
    ),
    "two ends": (changed(3, left=True), PART + r"row 4: found an end"),
    "no end": (changed(5, left=False), PART + "row 6: .*no end flag"),
    "a flag of 2": (
        lambda rows: changed(5, left=2)([each | {"left": int(each["left"])} for each in rows]),
        PART + "row 6: column 'left'",
    ),
    "no outcome": (lambda rows: [*rows, row(11, 0, 0, left=True)], PART + "row 9: "),
    "a dose too high": (changed(1, dose=7.0), r"'dose'.*\[0, 1\]"),
    "choice below": (choosing([-1, 0]), PART + "row 1: column 'choice'", DISCRETE),
    "no choice": (choosing([0, None]), PART + "row 2: found no action", DISCRETE),
    "half a choice": (choosing([0.5, 0.5]), PART + "column 'choice'", DISCRETE),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_rows(project: Path, kind: str) -> None:
    change, message, columns, changes = (*BAD[kind], {}, {})[:4]
    write(change(rows()))
    assert re.search(message, refusal(entry(columns, **changes)))
    if "unsorted" not in kind:
        # The row is that of the log, not of what was sorted, and what was spilled to disk is gone.
        assert re.search(message, refusal(entry(columns, sorted=False, **changes)))


def test_damaged_files(project: Path) -> None:
    path = write(rows())
    plain = {"compression": "none", "use_dictionary": False}
    pq.write_table(pa.Table.from_pylist(rows()), path, write_page_checksum=True, **plain)
    content = bytearray(path.read_bytes())
    content[bytes(content).index(np.array([7.0, 8.0]).tobytes())] ^= 1
    for damaged in (content, content[:-20], b""):
        path.write_bytes(damaged)
        assert re.search(PART + ".*truncated", refusal(entry()))
    path.unlink()
    text(gzip.compress((HEADER + "2,0,0,1,A,0.5,1,0,1\n" * 1000).encode())[:-20], "log/log.csv.gz")
    assert re.search(r"log\.csv\.gz: .*truncated", refusal(entry()))


START = HEADER.encode() + b"2,0,0,1,A,0.5,1,0,0\n"
NOTE = HEADER.encode().replace(b"\n", b',note\n2,0,0,1,A,0.5,1,0,0,"%b"\n')
BAD_CSV: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not readable as CSV"),
    "a header alone": (HEADER.encode(), "no transitions|not readable"),
    "no header": (f"2,0,0,1,{SECRET},0.5,1,0,1\n".encode(), r"column '.*' is missing"),
    "a column less": (HEADER.replace("gain", "income").encode(), "column 'gain' is missing"),
    "a column twice": (HEADER.replace("left", "left,x").encode(), "column 'x' is there twice"),
    "a word": (START + f"2,0,1,1,A,{SECRET},1,0,1\n".encode(), "row 2: column 'dose'"),
    "Excel's first line": (b"sep=,\r\n" + START, r"row 1: .*\(as a line before it"),
    "a line after the rows": (START + b"\n# 1 row\n", r"row 2: .*one after the rows, or"),
    "backslashes, as Spark writes": (NOTE % rb"he said \"no\", and left", r'row 1: .*not \\"'),
    "semicolons": (START.replace(b",", b";"), "is missing, as a line is one column: set "),
    "blanks after commas": (START.replace(b",", b", "), "'visit' is missing .case and blanks"),
    "capitals, as Oracle writes": (START.upper(), "'visit' is missing .case and blanks"),
    "UTF-16 of Windows": (START.decode().encode("utf-16-le"), "line 1: found what is not UTF-8"),
    "UTF-16": (START.decode().encode("utf-16"), "line 1: found what is not UTF-8"),
    "an e-mail's Latin-1": (START.replace(b"A", b"\xc4"), "line 2: found what is not UTF-8"),
    "NULs before an id": (START + b"\0\0\0" + START.splitlines()[1], "line 3: found NUL bytes"),
    "space that was reserved": (START + b"\0" * 99, "line 3: found NUL bytes"),
    "a total": (START + b"Total,,,,,,9,,\n", "row 2: column 'visit': found a missing id"),
    "yes": (START.replace(b"0,0\n", b"No,No\n"), "column 'died': .*allowed: truth values, or 0"),
    "percent": (START.replace(b"0.5", b"50%"), r"column 'dose': .*allowed: numbers; "),
}


@pytest.mark.parametrize("kind", BAD_CSV)
def test_bad_csv(project: Path, kind: str) -> None:
    content, message = BAD_CSV[kind]
    text(content)
    assert re.search(message, refusal(entry()))


@pytest.mark.parametrize("word", ["", "NA", "nan", "None", "<NA>", "."])
@pytest.mark.parametrize("kind", ["levels", "levels with a point", "quantity"])
def test_a_last_action_may_be_missing_in_the_word_of_any_program(
    project: Path, word: str, kind: str
) -> None:
    """Twin: another row's is refused."""
    doses = {"levels": "012", "levels with a point": ("0.0", "1.0", "2.0")}.get(kind, "010")
    mapped = NO_FLAGS | ({} if kind == "quantity" else {"action": {"column": "dose", "count": 3}})
    for given in ((*doses, word), (*doses[:2], word, doses[2])):
        text(HEADER + "".join(f"2,0,{n},1,A,{each},0,,\n" for n, each in enumerate(given)))
        dataset = entry(mapped, end="last_row")
        if given[3] == word:
            assert len(run(dataset)) == 3
        else:
            assert re.search(
                "row 3: found (no|a missing, NaN or infinite) action.* row of the last decision",
                refusal(dataset),
            )


def earning(*gains: list[int]) -> list[Row]:
    """A trajectory for each list; those of three rows may end in a death."""
    return [
        row(user, 0, time, gain=float(gain), died=time == 2)
        for user, own in enumerate(gains)
        for time, gain in enumerate(own)
    ]


def followed(by: Callable[[int], float], x: int = 0) -> list[Row]:
    return [row(2, 0, n, x=float(x + n), left=n == 8) | {"x2": by(n)} for n in range(9)]


def at(*orders: list[int]) -> list[Row]:
    return [row(user, 0, time) for user, own in enumerate(orders) for time in own]


LAST: Row = NO_FLAGS | {"end": "last_row"}
SCORED: Row = NO_FLAGS | {"end": "outcome"}
SHUFFLED: Row = LAST | {"sorted": False}
AFTER: Row = {"next_observation": ["x2", "ward"]}
NOT_AFTER = "most next observations are not the observation of the row after"
UNUSED, NO_OTHER = "ingest: the last row", "no other row has a reward: the last row"
TWICE, DIED = earning([0, 0, 5], [0, 0, 5]), {"terminated": "died"}
TOLD: dict[str, tuple[list[Row], Row, str]] = {  # rows, keys of the entry, and what is told
    "a time of day": (at([21, 22, 23, 0, 1], [0, 1, 2]), SHUFFLED, "some trajectories do not lie"),
    "no order": (at([1, 2, 30_000, 4], [3, 1, 2]), SHUFFLED, "all trajectories do not lie"),
    "in order": (at([0, 1, 2], [5, 6, 9]), SHUFFLED, ""),
    "outcomes": (TWICE, LAST, NO_OTHER),
    "costs": (earning([-1, -2, -1], [-1, -2, -1]), LAST, UNUSED),
    "outcomes that count": (TWICE, SCORED, ""),
    "of rows that tell what came next": (TWICE, LAST | {"next_observation": ["x", "ward"]}, ""),
    "at a true end": (TWICE, LAST | DIED, ""),
    "an outcome in every row": (earning([1, 1, 1], [-1, -1]), SCORED, "rows all earn the same"),
    "in the last rows": (earning([0, 0, 1], [0, -1]), SCORED, ""),
    "everybody the same": (earning([-1, -1, -1], [-1, -1]), SCORED, ""),
    "one has several": (earning([1, 1, 1], [-1, 0]), SCORED, ""),
    "one row each": (earning([1], [-1]), SCORED, ""),
    "the next row's": (followed(lambda n: n + 1.0), AFTER, ""),
    "the row's own": (followed(float), AFTER, NOT_AFTER),
    "two rows later": (followed(lambda n: n + 2.0), AFTER, NOT_AFTER),
    "another now and then": (followed(lambda n: n + 1.0 + (n % 3 == 0)), AFTER, ""),
    "large numbers": (followed(float, 1_700_000_000), {}, "lose digits (float32), in x;"),
    "as large as fit": (followed(float, 2**24 - 9), {}, ""),
}


@pytest.mark.parametrize("what", TOLD)
def test_what_may_be_wrong_of_rows_that_are_read_is_told(
    project: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content, keys, says = TOLD[what]
    write(content)
    columns = {key: value for key, value in keys.items() if key not in ("end", "sorted")}
    run(entry(columns, **{key: value for key, value in keys.items() if key not in columns}))
    said = capsys.readouterr().err
    known = {each for _, _, each in TOLD.values() if each}
    assert {each for each in known if each in said} == ({says} if says else set())


WRITTEN: dict[str, Callable[[str], str]] = {
    "pandas with a column that was missing somewhere": lambda text: re.sub(
        r"(true|false)", lambda flag: {"true": "1.0", "false": "0.0"}[flag[0]], text
    ),
    "PostgreSQL": lambda text: re.sub(r"(true|false)", lambda flag: flag[0][0], text),
    "R's short form": lambda text: re.sub(r"(true|false)", lambda flag: flag[0][0].upper(), text),
    "pandas with its index": lambda text: re.sub("^", lambda _: ",", text, flags=re.MULTILINE),
    "MySQL": lambda text: text.replace(",,", ",\\N,").replace(",,", ",\\N,"),
    "old Mac": lambda text: text.replace("\n", "\r"),
    "Excel": lambda text: "\ufeff" + text.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("writer", WRITTEN)
def test_a_csv_of_these_writers_is_read(project: Path, writer: str) -> None:
    lines = [HEADER.strip()]
    for each in rows():
        cells = ("" if value is None else str(value).lower() for value in each.values())
        lines.append(",".join(cells).replace(",a,", ",A,").replace(",b,", ",B,"))
    text(WRITTEN[writer]("\n".join(lines)))
    arrives()


@pytest.mark.parametrize("place", [0, 4, 9])
def test_a_quote_that_swallows_a_row_is_told_from_a_long_note_in_any_column(
    project: Path, place: int
) -> None:
    def log(*notes: str) -> str:
        lines = [HEADER.strip().split(",")]
        lines += [f"2,0,{time},1,A,0.5,0,0,{int(time == 2)}".split(",") for time in range(3)]
        cells = zip(lines, ("note", *notes), strict=True)
        return "\n".join(",".join([*row[:place], note, *row[place:]]) for row, note in cells) + "\n"

    for long in ("ate, then\nslept,", ",\n", 'one,\n\n""two"",\r\nthree', "a,b,c,d,e\n,"):
        text(log(f'"{long}"', 'cannula 5" left', '"well"'))
        assert len(run(entry())) == 2
    for swallowed in ('"', 'cannula 5" left'):
        text(log('"see letter', swallowed, ""))
        assert "row 1: found a quote" in refusal(entry())


@pytest.mark.parametrize("count", [2, 3])
def test_a_csv_that_ends_where_a_spreadsheet_does_is_warned_of(
    project: Path, count: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tabular_files._SHEET_ROWS == (2**16 - 1, 2**20 - 1)
    monkeypatch.setattr(tabular_files, "_SHEET_ROWS", (3,))
    for name in ("log/log.csv", "log/log.parquet"):
        write([row(2, 0, time, left=time == count - 1) for time in range(count)], name)
        run(entry())
        said = "log.csv: found 3 rows, where a spreadsheet ends" in capsys.readouterr().err
        assert said is (name.endswith("csv") and count == 3)
        shutil.rmtree("log")


def test_a_bad_row_late_in_a_long_csv_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabular_files, "_CSV_BLOCK_BYTES", 1000)
    lines = [f"2,0,{time},1,A,0.5,1,0,{int(time == 499)}\n" for time in range(500)]
    text(HEADER + "".join(lines))
    assert len(run(entry())) == 499
    lines[321] = lines[321].replace("0.5", "half")
    text(HEADER + "".join(lines))
    assert "row 322: column 'dose'" in refusal(entry())


TYPES = {
    "`string`": [pa.string(), pa.large_string(), pa.string_view()],
    "`int8`": [pa.int8(), pa.int64(), pa.uint64()],
    "`float16`": [pa.float16(), pa.float32(), pa.float64()],
    "`decimal128`": [pa.decimal128(10, 2)],
    "`bool`": [pa.bool_()],
    "`timestamp`": [pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.date32()],
    "`time64`": [pa.time64("us"), pa.duration("s"), pa.binary(), pa.list_(pa.int8()), pa.null()],
}
TYPES["`string`"] += [pa.dictionary(pa.int8(), kind) for kind in TYPES["`string`"][:2]]


def test_the_pages_table_of_types_says_what_is_read(project: Path) -> None:
    page = (REPOSITORY / "docs/datasets/tabular.md").read_text(encoding="utf-8")
    lines = page.partition("## Types of Parquet columns")[2].strip().splitlines()
    kinds: Any = ("id", "category", "number", "order", "flag")
    for line in lines[2 : 2 + len(TYPES)]:
        types, *said = (cell.strip() for cell in line.strip("|").split("|"))
        for kind in TYPES[re.split("[ ,]", types)[0]]:
            path = write(pa.schema([("x", kind)]).empty_table(), "log/log.parquet")
            for role, expected in zip(kinds, said, strict=True):
                found = "read"
                try:
                    LogFiles(path.parent, [Field("x", "x", role)], entry().options.csv)
                except PipelineError:
                    found = "refused"
                assert found == expected, (kind, role)
