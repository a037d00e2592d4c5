"""Small logs with known content, for the tests of ``source: tabular``."""

import shutil
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from primorl.base import PipelineError
from primorl.config.datasets import TabularDataset, validate
from tests.data.builders import collected, ingested
from tests.projects import project_settings

REPOSITORY = Path(__file__).resolve().parents[3]
Row = dict[str, Any]
EXAMPLE = project_settings("csv-log")["chosen"]
SECRET = "Jane Doe"  # stands for what no message may quote

MAPPED: dict[str, Any] = {"unit": "user", "trajectory": "visit", "order": "time", "reward": "gain"}
MAPPED |= {"terminated": "died", "truncated": "left", "next_observation": None}
MAPPED |= {"observation": ["x", {"column": "ward", "categories": ["A", "B"]}]}
MAPPED |= {"action": {"columns": ["dose"], "low": [0.0], "high": [1.0]}}
DISCRETE = {"action": {"column": "choice", "count": 3}}


def entry(columns: dict[str, Any] | None = None, **changes: Any) -> TabularDataset:
    """A dataset; ``changes`` of its options go there, others to the entry itself."""
    options = {"files": "log", "columns": MAPPED | (columns or {}), "sorted": True}
    options |= {"csv": {"delimiter": ",", "decimal_point": "."}, "end": "flags"}
    options |= {"trajectory_ids": "per_unit", "beyond_bounds": "refuse"}
    own = EXAMPLE | {"unit": "user", "horizon": None, "termination": "learned"}
    own["ingestion"] = {"duplicates": "allow"}
    own["bounds"] = {"observation": "public", "reward": "public"}
    options |= {key: value for key, value in changes.items() if key in options}
    own |= {key: value for key, value in changes.items() if key not in options}
    return validate(TabularDataset, own | {"options": options})


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
    return ingested(collected(dataset, "log", raw), "log", raw)


def transition(
    user: int, visit: int, step: int, seen: list[float], after: list[float], **values: Any
) -> Row:
    ids = {"unit_id": f"{user:012d}", "trajectory_id": f"{user:012d}/{visit:012d}", "step": step}
    ends = {name: values.get(name, False) for name in ("terminated", "truncated")}
    chosen = {"action": [np.float32(values["dose"])], "reward": values["gain"]}
    return ids | {"observation": seen, "next_observation": after} | chosen | ends


EXPECTED = [
    transition(2, 0, 0, [1, 1, 0], [2, 0, 1], dose=0.1, gain=1.0),
    transition(2, 0, 1, [2, 0, 1], [3, 1, 0], dose=0.2, gain=2.0),
    transition(2, 0, 2, [3, 1, 0], [3, 1, 0], dose=0.3, gain=3.0, terminated=True),
    transition(2, 1, 0, [4, 0, 1], [5, 0, 1], dose=0.4, gain=4.0),
    transition(2, 1, 1, [5, 0, 1], [6, 1, 0], dose=0.5, gain=5.0, truncated=True),
    transition(10, 0, 0, [7, 1, 0], [8, 0, 1], dose=0.6, gain=6.0, truncated=True),
]
HEADER = "user,visit,time,x,ward,dose,gain,died,left\n"
NO_FLAGS = {"terminated": None, "truncated": None}
BOUNDED: dict[str, Any] = {
    "bounds": {"observation": {"low": [1, 0, 0], "high": [4.5, 1, 1]}, "reward": [0, 4]}
}


def arrives(dataset: TabularDataset | None = None) -> None:
    """The transitions of `rows` come out, whatever form the log in ``log`` has; it is deleted."""
    assert run(dataset or entry()).to_pylist() == EXPECTED
    shutil.rmtree("log")


def refusal(dataset: TabularDataset) -> str:
    """The one line that says no."""
    with pytest.raises(PipelineError) as refused:
        run(dataset)
    assert "\n" not in str(refused.value)
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    return str(refused.value)
