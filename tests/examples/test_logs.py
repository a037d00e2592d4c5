"""Logs of the examples, from exports of hospitals to ingested rows: small invented files."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples import invented_cases, tracks_to_log
from examples.anaesthesia_log import FILE, simulate
from examples.spark_ingest import mapped
from primorl.base import PipelineError
from primorl.config.datasets import TabularDataset, validate
from tests.data.builders import collected, ingested
from tests.projects import from_plain, project_settings


@pytest.fixture(autouse=True)
def folder(project: Path) -> None:
    Path("cases").mkdir()


def read(name: str, log: pd.DataFrame) -> list[dict[str, Any]]:
    """What ingest makes of a log by the dataset's file as it is in the repository."""
    Path("log").mkdir(exist_ok=True)
    log.to_parquet("log/log.parquet", index=False)
    entry = project_settings(name)["chosen"]
    options = {"options": entry["options"] | {"files": "log"}}
    own = validate(TabularDataset, entry | options)
    return ingested(collected(own, name), name).to_pylist()


def cases(whose: dict[int, int], unplugged: range = range(0)) -> pd.DataFrame:
    """Ten minutes a case: BIS every 30 s but for `unplugged`, concentrations every minute, rates at
    0, 90 and 240 s.
    """
    subjects = pd.DataFrame(whose.items(), columns=["caseid", "subjectid"])
    subjects.to_csv("cases/clinical_data.csv", index=False)
    columns = ["Time", tracks_to_log.BIS, tracks_to_log.CE, tracks_to_log.CP, tracks_to_log.RATE]
    for number in whose:
        rates = {0: 150.0 + number, 90: 100.0, 240: 50.0}
        rows = []
        for t in range(0, 601, 30):
            bis = None if t in unplugged else 90 - t / 10
            concentrations = (1.5, 2.5) if t % 60 == 0 else ("", "")
            rows.append((t, bis, *concentrations, rates.get(t)))
        ending = "csv.gz" if number % 2 else "csv"
        pd.DataFrame(rows, columns=columns).to_csv(f"cases/{number}.{ending}", index=False)
    return tracks_to_log.log_of(Path("cases"))


def test_a_file_a_case_with_empty_cells_becomes_decisions() -> None:
    """Rows are where the rate was set; the reward of a row is what came until the next one, or
    until the end.
    """
    log = cases({4: 1})
    assert log["seconds"].tolist() == [0.0, 90.0, 240.0]
    assert log["dose"].tolist() == [154.0, 100.0, 50.0]
    assert log["rate_before"].tolist() == [0.0, 154.0, 100.0]
    assert log["ended"].tolist() == [False, False, True]
    # BIS 87 … 81 costs 2 a minute; then 78 … 72 does, 69 and 66 half a minute of -0.5; then 63, 60
    # … 42 …
    assert log["reward"].tolist()[:2] == [-3.0, -3 - 0.5]
    made = read("operations", log)
    assert [each["next_observation"][5] for each in made] == [90.0, 150.0, 150.0]
    assert [each["terminated"] for each in made] == [False, False, True]
    gaps = cases({4: 1, 5: 1}, range(60, 300))  # no recent measurement: no row
    assert gaps["seconds"].tolist() == [0.0, 90.0] * 2


def test_a_patient_is_one_unit_whatever_the_number_of_cases() -> None:
    made = read("operations", cases({number: 1 + number // 3 for number in range(18)}))
    assert len({each["trajectory_id"] for each in made}) == 18
    assert {each["unit_id"] for each in made} == {f"{patient:012d}" for patient in range(1, 7)}


def test_the_cohort_that_is_invented_has_this_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invented_cases, "STEPS", 40)
    invented_cases.invent(6, Path("cases"))
    log = tracks_to_log.log_of(Path("cases"))
    assert log.groupby("caseid")["seconds"].diff().dropna().between(30, 300).all()
    assert log["subjectid"].nunique() == 6
    assert len(read("operations", log)) == len(log)


def test_the_log_is_read_as_its_file_says(project: Path) -> None:
    FILE.parent.mkdir(parents=True)
    log = simulate(patients=4)
    pq.write_table(log, FILE)
    entry = validate(TabularDataset, project_settings("propofol")["chosen"])
    table = ingested(collected(entry, "propofol"), "propofol")
    assert table["unit_id"].combine_chunks().unique().to_pylist() == [f"{i:012d}" for i in range(4)]
    assert table["reward"].to_pylist() == log["reward"].cast(pa.float32()).to_pylist()


def test_the_columns_of_the_entry_are_taken_and_no_others() -> None:
    params = from_plain(project_settings("csv-log"))
    columns, keys = mapped(params)
    names = "patient stay time glucose insulin_on_board meal dose reward"
    assert set(columns) == set(names.split())
    assert keys == ["patient", "stay", "time"]
    with pytest.raises(PipelineError, match=r"datasets/pendulum-replay\.yaml: source: "):
        mapped(from_plain(project_settings()))
