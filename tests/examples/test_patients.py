"""From exports of hospitals to partitions: small invented files in the formats of MIMIC-IV and of VitalDB."""

import gzip
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from examples import charts_to_log, tracks_to_log
from primorl.config.datasets import Ingestion, TabularDataset, checked
from primorl.project.errors import PipelineError
from primorl.trajectories.ingestion import ingest
from primorl.trajectories.partitioning import partition
from primorl.trajectories.sources import source_of
from primorl.trajectories.storage.parquet import PartReader
from tests.projects import project_settings

HEART, ARTERY, CUFF, BREATHS, OXYGEN = 220045, 220052, 220181, 220210, 220277
Value = tuple[str, int, float | str]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own as the project, with a secret."""
    (tmp_path / ".primorl").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str, header: str, rows: Sequence[Sequence[object]]) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    content = ("\n".join(lines) + "\n").encode()
    Path(path).write_bytes(gzip.compress(content) if path.endswith(".gz") else content)


def charts(stays: dict[int, tuple[int, Sequence[Value]]]) -> None:
    """Tables of MIMIC-IV's module icu with these values; by stay: the patient, and (time, item, value)."""
    write(
        "icu/icustays.csv.gz",
        "subject_id,hadm_id,stay_id,first_careunit,intime,outtime,los",
        [[who, 7, stay, "MICU", "2150-01-01 00:00:00", "2150-01-09 00:00:00", 8.0] for stay, (who, _) in stays.items()],
    )
    write(
        "icu/chartevents.csv.gz",
        "subject_id,hadm_id,stay_id,caregiver_id,charttime,storetime,itemid,value,valuenum,valueuom,warning",
        [
            [who, 7, stay, "", time, time, item, value, value, "bpm", 0]
            for stay, (who, values) in stays.items()
            for time, item, value in values
        ],
    )
    write(
        "icu/inputevents.csv.gz",
        "subject_id,hadm_id,stay_id,caregiver_id,starttime,endtime,storetime,itemid,amount,amountuom,rate,rateuom",
        [
            [1, 7, 30, "", "2150-01-01 08:10:00", "2150-01-01 09:30:00", "", 221906, 1.0, "mg", 0.25, "mcg/kg/min"],
            [1, 7, 30, "", "2150-01-01 08:10:00", "2150-01-01 09:30:00", "", 225158, 500, "ml", 100.0, "mL/hour"],
        ],
    )


def usual(*hours: str, pressure: float = 70.0) -> list[Value]:
    """Everything charted at each of these times of one day."""
    known = {HEART: 80.0, ARTERY: pressure, BREATHS: 15.0, OXYGEN: 97.0}
    return [(f"2150-01-01 {hour}:00", item, value) for hour in hours for item, value in known.items()]


def dataset(name: str, folder: str, **changes: Any) -> TabularDataset:
    """The dataset's file as it is in the repository, on another log."""
    own = project_settings(name)["chosen"]
    options = own["options"] | changes.pop("options", {}) | {"files": folder}
    return checked(TabularDataset, own | changes | {"options": options})


def ingested(name: str, log: pd.DataFrame, **changes: Any) -> list[dict[str, Any]]:
    """What ingest makes of a log."""
    Path("log").mkdir(exist_ok=True)
    log.to_parquet("log/log.parquet", index=False)
    own = dataset(name, "log", **changes)
    raw = Path("raw")
    raw.mkdir(exist_ok=True)
    source_of(name, own).collect(raw)
    ingest(raw, Path("data/trajectories"), name, own)
    rows: list[dict[str, Any]] = pa.concat_tables(
        PartReader(Path("data/trajectories"), made_by="ingest").tables()
    ).to_pylist()
    return rows


def test_a_long_table_of_charts_becomes_rows_at_irregular_times(project: Path) -> None:
    """Values of one time are averaged, artefacts and other items are no values, and a dose runs from start to end."""
    more: list[Value] = [
        ("2150-01-01 08:20:00", HEART, 90.0),
        ("2150-01-01 08:20:00", HEART, 110.0),
        ("2150-01-01 09:45:00", ARTERY, 50.0),
        ("2150-01-01 09:45:00", OXYGEN, 9999),
        ("2150-01-01 09:50:00", 226512, 81.0),  # the weight, of no interest here
        ("2150-01-01 10:00:00", HEART, ""),
    ]
    charts({30: (1, [*usual("08:00"), *more])})
    log = charts_to_log.log_of(Path("icu"))
    assert log["charttime"].dt.strftime("%H:%M").tolist() == ["08:00", "08:20", "09:45"]
    assert log["heart_rate"].tolist() == [80.0, 100.0, 100.0]
    assert log["mean_pressure"].tolist() == [70.0, 70.0, 50.0]
    assert log["saturation"].tolist() == [97.0] * 3
    assert log["dose"].tolist() == [0.0, 0.25, 0.0]
    assert log["reward"].tolist()[:2] == pytest.approx([1 / 3, -85 / 60])
    assert math.isnan(log["reward"][2])
    made = ingested("icu-charts", log)
    assert [each["observation"][4] for each in made] == pytest.approx([0.0, 1 / 3])
    assert [each["next_observation"][4] for each in made] == pytest.approx([1 / 3, 85 / 60])


def test_a_large_table_is_read_in_parts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charts({30: (1, usual("08:00", "09:00", "11:30")), 31: (2, usual("08:00", "23:00"))})
    whole = charts_to_log.log_of(Path("icu"))
    monkeypatch.setattr(charts_to_log, "ROWS", 3)
    pd.testing.assert_frame_equal(charts_to_log.log_of(Path("icu")), whole)


def test_no_value_is_carried_into_another_stay_or_beyond_its_age(project: Path) -> None:
    """Nor into another person's: what is not known yet, or too long ago, makes no row. The twin knows all."""
    begun: list[Value] = [("2150-01-01 09:00:00", HEART, 120.0), ("2150-01-01 10:00:00", HEART, 121.0)]
    late: list[Value] = [("2150-01-01 09:00:00", HEART, 85.0), ("2150-01-01 17:00:00", HEART, 86.0)]
    charts({30: (1, usual("08:00", "08:30")), 31: (1, begun), 32: (2, begun), 33: (3, [*usual("08:00"), *late])})
    log = charts_to_log.log_of(Path("icu"))
    assert log["stay_id"].tolist() == [30, 30, 33, 33]
    assert log["heart_rate"].tolist() == [80.0, 80.0, 80.0, 85.0]
    charts({31: (1, [*usual("08:00"), *begun])})
    assert charts_to_log.log_of(Path("icu"))["heart_rate"].tolist() == [80.0, 120.0, 121.0]


def case(folder: str, number: int, rows: Sequence[Sequence[object]], ending: str = "csv.gz") -> None:
    header = f"Time,{tracks_to_log.BIS},{tracks_to_log.CE},Solar8000/HR,{tracks_to_log.CP},{tracks_to_log.RATE}"
    write(f"{folder}/{number}.{ending}", header, rows)


def cases(whose: dict[int, int], changes: dict[int, Sequence[Sequence[object]]] | None = None) -> None:
    """A folder of tracks; by case: its patient. Every second file is not compressed."""
    Path("cases").mkdir(exist_ok=True)
    write("cases/clinical_data.csv", "caseid,subjectid,age,sex", [[*pair, 61, "F"] for pair in whose.items()])
    for number in whose:
        other = (changes or {}).get(number)
        case("cases", number, other or tracks(number), "csv.gz" if number % 2 else "csv")


def tracks(number: int) -> list[list[object]]:
    """A case of ten minutes: BIS every 30 s, concentrations every minute, the rate at 0, 90 and 240 s."""
    rates = {0: 150.0 + number, 90: 100.0, 240: 50.0}
    return [
        [t, 90 - t / 10, 1.5 if t % 60 == 0 else "", "", 2.5 if t % 60 == 0 else "", rates.get(t, "")]
        for t in range(0, 601, 30)
    ]


def test_a_file_a_case_with_empty_cells_becomes_decisions(project: Path) -> None:
    """Rows are where the rate was set; the reward of a row is what came until the next one, or until the end."""
    cases({4: 1})
    log = tracks_to_log.log_of(Path("cases"))
    assert log["seconds"].tolist() == [0.0, 90.0, 240.0]
    assert log["minutes"].tolist() == [0.0, 1.5, 4.0]
    assert log["dose"].tolist() == [154.0, 100.0, 50.0]
    assert log["rate_before"].tolist() == [0.0, 154.0, 100.0]
    assert log["bis"].tolist() == [90.0, 81.0, 66.0]
    assert log["ended"].tolist() == [False, False, True]
    # BIS 87 … 81 costs 2 a minute; then 78 … 72 does, 69 and 66 half a minute of -0.5; then 63, 60 … 42 …
    assert log["reward"].tolist()[:2] == [-3.0, -3 - 0.5]
    scored = [tracks_to_log.score(90 - t / 10) / 2 for t in range(270, 601, 30)]
    assert log["reward"][2] == sum(scored)
    made = ingested("operations", log)
    assert [each["observation"][5] for each in made] == [0.0, 90.0, 150.0]
    assert [each["next_observation"][5] for each in made] == [90.0, 150.0, 150.0]
    assert [each["terminated"] for each in made] == [False, False, True]


def test_a_longer_gap_than_declared_counts_as_the_most(project: Path) -> None:
    """Nobody looked for 390 s; what that earned is bounded as well."""
    rates = {0: 150.0, 390: 70.0}
    seldom = [[t, 20.0, *rest[:-1], rates.get(t, "")] for t, _, *rest in tracks(4)]
    cases({4: 1}, {4: seldom})
    log = tracks_to_log.log_of(Path("cases"))
    assert log["seconds"].tolist() == [0.0, 390.0]
    assert log["reward"].tolist() == [-10.0, -7.0]
    assert [each["next_observation"][5] for each in ingested("operations", log)] == [300.0, 300.0]


def test_a_decision_without_a_recent_measurement_is_no_row(project: Path) -> None:
    """Of a device that was unplugged, or that shows an artefact; the twin has all rows."""
    gone = [[t, "" if 60 < t < 300 else bis, *rest] for t, bis, *rest in tracks(4)]
    cases({4: 1}, {4: gone})
    assert tracks_to_log.log_of(Path("cases"))["seconds"].tolist() == [0.0, 90.0]
    broken = [[t, 255.0 if t == 0 else bis, *rest] for t, bis, *rest in tracks(4)]
    cases({4: 1}, {4: broken})
    assert tracks_to_log.log_of(Path("cases"))["seconds"].tolist() == [90.0, 240.0]


def test_no_measurement_is_carried_into_the_next_case(project: Path) -> None:
    """Of the same patient neither: her next case begins when its own devices have shown something."""
    unplugged = [[t, "" if t < 120 else bis, *rest] for t, bis, *rest in tracks(5)]
    cases({4: 1, 5: 1}, {5: unplugged})
    log = tracks_to_log.log_of(Path("cases"))
    assert log[log["caseid"] == 5]["seconds"].tolist() == [240.0]


def test_a_patient_is_one_unit_whatever_the_number_of_cases(project: Path) -> None:
    """All cases of a patient lie on one side of the split, and leave together when the patient withdraws."""
    whose = {number: 1 + number // 3 for number in range(30)}  # ten patients, three cases each
    cases(whose)
    log = tracks_to_log.log_of(Path("cases"))
    made = ingested("operations", log)
    assert len({each["trajectory_id"] for each in made}) == 30
    assert {each["unit_id"] for each in made} == {f"{who:012d}" for who in whose.values()}
    manifest = partition(Path("data/trajectories"), Path("data/partitions"), public_fraction=0.4, salt="primorl")
    sides = [
        pa.concat_tables(PartReader(Path("data/partitions") / side, made_by="partition").tables())
        for side in ("private", "public")
    ]
    private, public = ({row["unit_id"] for row in side.to_pylist()} for side in sides)
    assert private
    assert public
    assert not private & public
    assert (manifest.private_units, manifest.public_units) == (len(private), len(public))
    for side in sides:
        cases_of = side.select(["unit_id", "trajectory_id"]).group_by(["unit_id", "trajectory_id"]).aggregate([])
        assert np.unique(cases_of["unit_id"].to_numpy(), return_counts=True)[1].tolist() == [3] * (len(cases_of) // 3)

    Path("data/withdrawals").mkdir()
    Path("data/withdrawals/2026.txt").write_text("4\n", encoding="utf-8")
    stay = ingested("operations", log, ingestion=Ingestion(exclude_units="data/withdrawals/2026.txt"))
    assert {each["unit_id"] for each in made} - {each["unit_id"] for each in stay} == {f"{4:012d}"}
    assert len({each["trajectory_id"] for each in stay}) == 27


def test_cases_that_are_numbered_as_patients_are_need_ids_of_their_own(project: Path) -> None:
    """Case 4 of a private patient would be taken for patient 4, who is public; the test above has `per_unit`."""
    cases({number: 1 + number // 3 for number in range(30)})
    own = project_settings("operations")["chosen"]["options"]
    ingested("operations", tracks_to_log.log_of(Path("cases")), options=own | {"trajectory_ids": "global"})
    with pytest.raises(PipelineError, match=r"set options\.trajectory_ids: per_unit"):
        partition(Path("data/trajectories"), Path("data/partitions"), public_fraction=0.4, salt="primorl")


def test_a_patient_with_more_cases_than_declared_is_refused(project: Path) -> None:
    """The bound is a public fact of the protocol; the twin has exactly as many."""
    cases({number: 1 + number // 3 for number in range(6)})
    log = tracks_to_log.log_of(Path("cases"))
    ingested("operations", log)
    with pytest.raises(PipelineError, match="trajectories_per_person"):
        ingested("operations", log, trajectories_per_person=2)


def test_the_cohort_that_is_invented_has_this_form(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At irregular times, within what the dataset's file declares."""
    pytest.importorskip("anesthesim")
    from examples import invented_cases

    monkeypatch.setattr(invented_cases, "STEPS", 40)
    invented_cases.invent(6, Path("cases"))
    log = tracks_to_log.log_of(Path("cases"))
    gaps = log.groupby("caseid")["seconds"].diff().dropna()
    assert gaps.between(30, 300).all()
    assert gaps.nunique() > 5
    assert log["subjectid"].nunique() == 6
    assert log.groupby("subjectid")["caseid"].nunique().between(1, 3).all()
    bounds = replace(dataset("operations", "log"), horizon=40).bounds
    assert log["reward"].dropna().between(*bounds.reward).all()
    assert len(ingested("operations", log)) == len(log)
