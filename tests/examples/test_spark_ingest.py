"""The Spark example takes the columns that the entry maps, and ingest makes the same of its files as of the log.

The second part runs where pyspark and Java are installed; the project does not depend on them.
"""

import os
import random
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pyarrow.parquet as pq
import pytest

from examples.spark_ingest import ID_DIGITS, mapped
from primorl.config.blocks import PublicColumn
from primorl.config.datasets import TabularDataset
from primorl.config.params import from_plain
from primorl.project.errors import PipelineError
from primorl.trajectories.storage import schema
from tests.projects import ROOT, project_settings, write_settings
from tests.trajectories.conftest import project
from tests.trajectories.sources.tabular_builders import Row, run, write

__all__ = ["project"]  # the fixture


def test_the_columns_of_the_entry_and_the_consent_are_taken_and_no_others() -> None:
    params = from_plain(project_settings("csv-log"))
    columns, keys = mapped(params)
    assert set(columns) == {"patient", "stay", "time", "glucose", "insulin_on_board", "meal", "dose", "reward"}
    assert keys == ["patient", "stay", "time"]
    asked = replace(params.partition, public_fraction=None, public=PublicColumn(column="agreed", values=("yes",)))
    assert set(mapped(replace(params, partition=asked))[0]) - set(columns) == {"agreed"}


def test_where_every_trajectory_is_a_unit_it_is_the_key() -> None:
    raw = project_settings("csv-log")
    raw["chosen"] |= {"unit": "trajectory"}
    raw["chosen"]["options"] |= {"trajectory_ids": "global"}
    raw["chosen"]["options"]["columns"]["unit"] = None
    assert mapped(from_plain(raw))[1] == ["stay", "time"]


def test_a_dataset_that_is_no_log_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"datasets/pendulum-replay\.yaml: source: found another than tabular"):
        mapped(from_plain(project_settings()))


def test_ids_are_padded_as_ingest_pads_them() -> None:
    assert ID_DIGITS == schema._ID_DIGITS


def shuffled() -> list[Row]:
    """Patients 2, 10 and three whose order as text is not that of numbers, in any order of rows."""
    content = [
        {
            "time": datetime(2026, 10, 25, hour),
            "patient": patient,
            "stay": stay,
            "glucose": number + 0.1 * stay,
            "insulin_on_board": 0.5 * hour,
            "meal": "none",
            "dose": None if hour == 3 else 0.5,
            "reward": None if hour == 3 else -1.0,
            "name": "Jane Doe",
        }
        for number, patient in enumerate(("2", "10", "Ö b", "Zoe", "0123456789012345"))
        for stay in (2, 10)
        for hour in range(4)
    ]
    random.Random(0).shuffle(content)
    return content


@pytest.mark.skipif(find_spec("pyspark") is None or which("java") is None, reason="needs pyspark and Java")
def test_ingest_makes_the_same_of_sparks_files_as_of_the_log_itself(project: Path) -> None:
    raw = project_settings("csv-log")
    raw["chosen"]["options"]["files"] = "log"
    dataset = write_settings(raw).chosen
    assert isinstance(dataset, TabularDataset)
    write(shuffled()[:11], "log/part-0.parquet")
    write(shuffled()[11:], "log/part-1.parquet")
    expected = run(dataset)
    command = [sys.executable, str(ROOT / "examples" / "spark_ingest.py"), "log", "sorted", "--files", "3"]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    files = sorted(Path("sorted").glob("*.parquet"))
    assert len(files) == 3
    assert all("name" not in pq.read_schema(file).names for file in files)
    found = run(replace(dataset, options=replace(dataset.options, files="sorted", sorted=True)))
    assert found.num_rows == 30
    assert found.equals(expected)
