"""Whose rows of a log are whose: ids of any type and spelling, and those that people may share."""

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from primorl.base import PipelineError
from tests.data.sources.tabular_builders import (
    EXPECTED,
    HEADER,
    arrives,
    entry,
    refusal,
    rows,
    run,
    text,
    write,
)


def test_ids_of_digits_and_numbers_of_any_type(project: Path) -> None:
    plain = pa.Table.from_pylist(rows())
    words = pa.dictionary(pa.int8(), pa.large_string())
    texts = (pa.string(), pa.large_string(), pa.string_view(), words)
    for kind, two, ten in ((pa.uint64(), 2, 10), *((kind, "2", "0010") for kind in texts)):
        users = pa.array([two if each["user"] == 2 else ten for each in rows()]).cast(kind)
        write(plain.set_column(0, "user", users))
        arrives()
        if kind != pa.uint64():
            write(plain.set_column(4, "ward", plain["ward"].cast(kind)))
            arrives()
    types = {"x": pa.decimal128(10, 2), "gain": pa.float16(), "dose": pa.float64()}
    types |= {"died": pa.int8(), "left": pa.float64()}
    for name, kind in types.items():
        column = plain[name].cast(pa.int8()) if name in ("died", "left") else plain[name]
        plain = plain.set_column(plain.column_names.index(name), name, column.cast(kind))
    write(plain)
    arrives()


def test_trajectories_that_are_units_of_their_own(project: Path) -> None:
    content = [each | {"visit": 100 * each["user"] + each["visit"]} for each in rows()]
    write(content[::-1])
    written = run(entry({"unit": None}, unit="trajectory", trajectory_ids="global", sorted=False))
    assert written["unit_id"].equals(written["trajectory_id"])
    names = [f"{number:012d}" for number in (200, 201, 1000)]
    assert written["unit_id"].unique().to_pylist() == names
    assert written["observation"].to_pylist() == [each["observation"] for each in EXPECTED]


SPELLINGS = [
    *("4217|4217.0", "P421|P421 ", "Ren\u00e9|Rene\u0301", "0123456789012|123456789012"),
    *("P421|\ufeffP421", "A Lee|A  Lee", "3e3|3000", "1.5E3|1500"),
    "5C1D6E2A-0b1c-4f3e-9a77-0123456789ab|5c1d6e2a-0b1c-4f3e-9a77-0123456789ab",
    "5c1d6e2a0b1c4f3e9a770123456789ab|5c1d6e2a-0b1c-4f3e-9a77-0123456789ab",
    "{5c1d6e2a-0b1c-4f3e-9a77-0123456789ab}|5c1d6e2a-0b1c-4f3e-9a77-0123456789ab",
    *('=""0421""|0421', "'0421|421", "(P421)|P421", "P-421|P\u2011421", "P-421|P\u2212421"),
]


@pytest.mark.parametrize("spellings", SPELLINGS)
def test_one_person_in_two_spellings_is_not_two_units(project: Path, spellings: str) -> None:
    """Neither where one of them withdrew: the other would stay."""
    two = spellings.split("|")
    for number, user in enumerate(two):
        text(f'{HEADER}"{user}",{number},0,1.0,A,0.5,1.0,true,false\n', f"log/{number}.csv")
    gone = Path("data/withdrawals/gone.txt")
    gone.parent.mkdir(parents=True)
    gone.write_text(f"{two[0]}\n", encoding="utf-8")
    for ingestion in ({}, {"exclude_units": str(gone)}):
        with pytest.raises(PipelineError, match="in blanks, quotes, brackets") as refused:
            run(entry(sorted=False, ingestion={"duplicates": "allow"} | ingestion))
        assert two[0] not in str(refused.value)


def test_other_ids_are_other_people(project: Path) -> None:
    users = ["ab", "AB", "a b", "a-b", "a'b", "(a)b", "12-3", "1-23", "7.2", "7.20"]
    users += ["70", "+7", "7", "-7", "17.0", "12e4", "12E4f"]
    for number, user in enumerate(users):
        text(f"{HEADER}{user},{number},0,1.0,A,0.5,1.0,true,false\n", f"log/{number}.csv")
    assert len(set(run(entry(sorted=False))["unit_id"].to_pylist())) == len(users)


CASES: dict[str, tuple[str, int]] = {  # two ids, and how many of people differ by case alone
    "VINs": ("WVWZZZ1JZ3W386000|wvwzzz1jz3w386000", 1),
    "e-mails": ("A.Lee@ward.example|a.lee@ward.example", 1),
    "plates": ("MÜ-AB 12|mü-ab 12", 1),
    "other spaces, too": ("AB  1|AB 2", 0),
    "other people": ("ab-1|AB-2", 0),
}


@pytest.mark.parametrize("which", CASES)
@pytest.mark.parametrize("of", ["units", "trajectories"])
def test_ids_that_differ_by_case_alone_are_counted_and_warned_of(
    project: Path, which: str, of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not refused: case tells some people apart."""
    ids, count = CASES[which]
    for number, name in enumerate(ids.split("|")):
        user, visit = (name, number) if of == "units" else (7, name)
        text(f"{HEADER}{user},{visit},0,{number}.0,A,0.5,1.0,true,false\n", f"log/{number}.csv")
    assert len(run(entry(sorted=False))) == 2
    said = capsys.readouterr().err
    assert (f"found ids of {of} ({count}) that differ from another one by case alone" in said) is (
        count > 0
    )
    assert ids.split("|")[0] not in said


def test_whole_numbers_that_were_read_as_decimal_ones_are_refused(project: Path) -> None:
    """Another version has them without `.0`, and would be of other people. Twin: one is none."""
    write([each | {"user": f"{each['user']}.0"} for each in rows()], "log/log.csv")
    assert "all ids of units end in `.0`" in refusal(entry(sorted=False))
    write([each | {"user": f"{each['user']}.0"} for each in rows()][:6], "log/log.csv")
    text(f"{HEADER}7.5,0,0,1.0,A,0.5,1.0,true,false\n", "log/other.csv")
    assert len(set(run(entry(sorted=False))["unit_id"].to_pylist())) == 2


SHARED_IDS = ["\\N", "--", "(null)", "#REF!", "NA", "n/a", "<NA>", "nan", "None", " "]
SHARED_IDS += [
    ".",
    "?",
    "undefined",
    "#N/A",
    "NULL",
    "1.58291E+17",
    "2,5e+12",
    "missing",
    "Unknown",
    "-1",
    "-999",
]


@pytest.mark.parametrize("shared", SHARED_IDS)
@pytest.mark.parametrize("column", ["user", "visit"])
def test_ids_that_different_people_may_share_are_refused(
    project: Path, column: str, shared: str
) -> None:
    """Other programs write missing ids so, and long ones with fewer digits."""
    content = [each | {"user": str(each["user"]), "visit": str(each["visit"])} for each in rows()]
    content[6] |= {column: shared}
    for name in ("log/log.csv", "log/log.parquet"):
        write(content, name)
        said = refusal(entry(sorted=False))
        word = re.search(r"\de|^ $", shared, re.IGNORECASE) is None
        found = "a word that stands for a missing id" if word else "a missing id, or one in"
        assert f"row 7: column '{column}': found {found}" in said
        assert said.endswith("columns.words_as_ids: true") is word
        content[7] |= {column: shared}
        write(content, name)
        content[7] |= {column: str(rows()[7][column])}
        names = entry({"words_as_ids": True}, sorted=False)
        if not word:
            assert "row 7" in refusal(names)
        else:
            ids = {"user": "unit_id", "visit": "trajectory_id"}[column]
            assert any(shared in each for each in run(names)[ids].to_pylist())
        shutil.rmtree("log")


@pytest.mark.parametrize("column", ["user", "visit"])
@pytest.mark.parametrize("shared", [-1, -9, -9999])
def test_numbers_that_stand_for_a_missing_id_are_refused(
    project: Path, column: str, shared: int
) -> None:
    """As pandas codes a category that is missing. Twin: others are ids."""
    content = rows()
    content[6] |= {column: shared}
    for kind in ("parquet", "csv"):
        write(content, f"log/log.{kind}")
        assert f"row 7: column '{column}': found a word that stands for" in refusal(entry())
        Path(f"log/log.{kind}").unlink()
    write([each | {"user": each["user"] - 9} for each in content[:6]])
    assert len(run(entry(sorted=False))) == 5


@pytest.mark.parametrize("spellings", ["1|1.0", "v1| v1", "1e3|1000", "7.0|7"])
def test_one_trajectory_in_two_spellings_is_not_two(project: Path, spellings: str) -> None:
    """As where pandas read one file's numbers with a missing one. Twin: of two people."""
    for users in ((2, 2), (2, 10)):
        for part, (user, visit) in enumerate(zip(users, spellings.split("|"), strict=True)):
            lines = [f"{user},{visit},{9 * part + n},1,A,0.5,1,0,0\n" for n in range(2)]
            text(HEADER + "".join(lines), f"log/{part}.csv")
        dataset = entry({"terminated": None, "truncated": None}, sorted=False, end="last_row")
        if users == (2, 2):
            assert "found ids of trajectories (1) that differ" in refusal(dataset)
        else:
            assert len(run(dataset)) == 2


@pytest.mark.parametrize("id_", ["NAN4", "Nancy", "1e5", "12e", "nulla", "E+3"])
def test_ids_that_only_look_so_are_ids(project: Path, id_: str) -> None:
    write([each | {"user": f"{each['user']}" if each["user"] == 2 else id_} for each in rows()])
    assert id_ in run(entry(sorted=False))["unit_id"].to_pylist()
