import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest

from primorl.config.datasets import D4rlDataset
from primorl.project.errors import PipelineError
from primorl.trajectories.ingestion import ingest
from primorl.trajectories.sources import d4rl, source_of
from primorl.trajectories.sources.d4rl import table_entry
from primorl.trajectories.storage.parquet import PartReader
from tests.trajectories.builders import snapshot
from tests.trajectories.sources.d4rl_builders import Columns, columns, entry, expected, package, write
from tests.trajectories.sources.servers import serving


def collected(dataset: D4rlDataset) -> None:
    Path("raw").mkdir(exist_ok=True)
    source_of("small", dataset).collect(Path("raw"))


def ingested(dataset: D4rlDataset) -> pa.Table:
    ingest(Path("raw"), Path("trajectories"), "small", dataset)
    return pa.concat_tables(PartReader(Path("trajectories"), made_by="ingest").tables())


def without(content: Columns, *names: str) -> Columns:
    return {name: values for name, values in content.items() if name not in names}


FULL = columns()
CUT = columns((4, 3, 1), (True, False, True)) | {"terminals": np.isin(np.arange(8), [3])}  # the last rows have no end
CUT["timeouts"] = np.isin(np.arange(8), [6])


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(
    ("content", "horizon", "transitions"),
    [
        (FULL, None, 15),
        (without(FULL, "next_observations"), None, 13),  # the outcome of a timed-out episode's last step is not there
        (without(FULL, "timeouts"), 3, 15),
        (without(FULL, "timeouts", "next_observations"), 3, 11),
        (CUT, None, 8),
        (without(CUT, "next_observations"), None, 6),
        (without(columns((3, 1, 2), (True, False, True)), "next_observations"), None, 5),  # one row, cut: no transition
    ],
)
def test_transitions_are_those_of_the_rows_read_one_by_one(
    project: Path, content: Columns, horizon: int | None, transitions: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(d4rl, "_ROWS_PER_BATCH", rows)
    dataset = entry(write(project / "logs" / "x.hdf5", content), horizon=horizon)
    collected(dataset)
    table = ingested(dataset)
    assert table.num_rows == transitions
    assert table.equals(expected(content, horizon))


def test_columns_of_one_number_and_flags_of_numbers_are_accepted(project: Path) -> None:
    upright = {name: FULL[name][:, None] for name in ("rewards", "terminals", "timeouts")}
    forms = [
        FULL | upright | {"terminals": upright["terminals"].astype(np.float32)},
        FULL | {"actions": FULL["actions"][:, 0]},
        FULL | {"timeouts": FULL["timeouts"] | FULL["terminals"]},  # at both, an episode terminated
    ]
    for content in forms:
        dataset = entry(write(project / "x.hdf5", content))
        collected(dataset)
        assert ingested(dataset).equals(expected(FULL))
    content = columns((700,), (False,))
    with h5py.File(project / "x.hdf5", "w") as file:
        for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
            file.create_dataset(name, data=content[name], chunks=True, compression="gzip")
    dataset = entry(project / "x.hdf5", horizon=700)  # longer than the environment allows
    collected(dataset)
    assert ingested(dataset).equals(expected(without(content, "next_observations")))


def test_discrete_actions_are_read_as_whole_numbers(project: Path) -> None:
    content = columns()
    content["observations"] = np.hstack([content["observations"]] * 2)[:, :4]
    content["next_observations"] = np.hstack([content["next_observations"]] * 2)[:, :4]
    content["actions"] = np.arange(15)[:, None] % 2
    dataset = entry(write(project / "x.hdf5", content), environment="CartPole-v1")
    collected(dataset)
    assert ingested(dataset)["action"].to_pylist() == (np.arange(15) % 2).tolist()
    content["actions"][7] = 2**32
    write(project / "x.hdf5", content)
    collected(dataset)
    with pytest.raises(PipelineError, match="trajectory number 3, step 2: found an action outside the declared space"):
        ingested(dataset)


def changed(name: str, change: Callable[[np.ndarray], object]) -> Columns:  # type: ignore[type-arg]
    content = {key: values.copy() for key, values in FULL.items()}
    content[name] = np.asarray(change(content[name]))
    return content


def at(row: int, value: float) -> Callable[[np.ndarray], np.ndarray]:  # type: ignore[type-arg]
    def put(values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        values[row] = value
        return values

    return put


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (without(FULL, "rewards"), "rewards: found nothing; needed is an array; there are actions, infos, metadata"),
        (without(FULL, "actions") | {"actions/left": FULL["actions"]}, "actions: found no array; needed is an array"),
        (changed("actions", lambda a: a[:-1]), "actions: found 14 rows; allowed: 15, as many as observations"),
        (changed("observations", lambda a: a[:, :2]), "observations: found shape (2,) a step, declared is (3,)"),
        (changed("rewards", lambda a: np.stack([a, a], 1)), "rewards: found shape (2,) a step, declared is one number"),
        (changed("observations", lambda a: a.astype(int)), "observations: found type int64; allowed: floating point"),
        (changed("rewards", lambda a: a.astype("S9")), "rewards: found type |S9; allowed: real numbers"),
        (changed("terminals", lambda a: at(6, np.nan)(a.astype(float))), "terminals: row 6 is neither 0 nor 1"),
        (changed("observations", at(6, np.nan)), "trajectory number 3, step 1: found a non-finite observation"),
        (changed("actions", at(6, 71.5)), "trajectory number 3, step 1: found an action outside the declared space"),
        ({name: values[:0] for name, values in FULL.items() if values.ndim}, "found no steps; allowed is at least one"),
        (
            FULL | dict.fromkeys(("terminals", "timeouts"), np.zeros(15)),
            "found no end of an episode; allowed: terminals",
        ),
    ],
)
def test_unfit_files_are_refused_and_the_last_good_data_stay(project: Path, content: Columns, message: str) -> None:
    good = entry(write(project / "good.hdf5", FULL))
    collected(good)
    ingested(good)
    dataset = entry(write(project / "bad.hdf5", content))
    collected(dataset)
    before = snapshot(project)
    with pytest.raises(PipelineError) as wrong:
        ingested(dataset)
    assert message in str(wrong.value)
    assert str(wrong.value).startswith("raw/data.hdf5: ")
    assert "\n" not in str(wrong.value)
    assert "71" not in str(wrong.value)
    assert snapshot(project) == before


def test_a_truncated_file_is_refused(project: Path) -> None:
    path = write(project / "x.hdf5", FULL)
    dataset = entry(path)
    collected(dataset)
    for damage in (lambda file: file.write_bytes(path.read_bytes()[:2000]), Path.unlink):
        damage(Path("raw/data.hdf5"))
        with pytest.raises(PipelineError, match=r"raw/data\.hdf5: truncated, corrupt or missing HDF5"):
            ingested(dataset)


def test_a_small_file_that_claims_much_is_refused(project: Path) -> None:
    path = project / "x.hdf5"
    with h5py.File(path, "w") as file:
        for name, shape, kind in (("observations", (10**12, 3), "f4"), ("actions", (10**12, 1), "f4")):
            file.create_dataset(name, shape, kind, chunks=(64, shape[1]))
        for name, kind in (("rewards", "f4"), ("terminals", "?"), ("timeouts", "?")):
            file.create_dataset(name, (10**12,), kind, chunks=(64,))
    dataset = entry(path)
    collected(dataset)
    with pytest.raises(PipelineError, match="observations: found 1000000000000 rows claimed, more than the file holds"):
        ingested(dataset)


def test_what_the_layout_does_not_say_must_be_declared(project: Path) -> None:
    with pytest.raises(PipelineError, match=r"datasets/small.yaml: environment: found null; allowed is a Gymnasium id"):
        source_of("small", entry(project / "x.hdf5", environment=None))
    with pytest.raises(PipelineError, match=r"options\.file: .*x\.hdf5 is not there"):
        collected(entry(project / "x.hdf5"))


@pytest.fixture
def tables(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a stand-in for the package d4rl, with its tables, where Python looks for packages."""

    def put(url: str) -> None:
        monkeypatch.syspath_prepend(str(package(project / "site", url)))

    monkeypatch.setenv("D4RL_DATASET_DIR", str(project / "d4rl"))
    monkeypatch.delitem(sys.modules, "d4rl", raising=False)
    return put


def test_a_name_finds_the_file_here_or_fetches_it(
    project: Path, tables: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    body = write(project / "x.hdf5", FULL).read_bytes()
    with serving({"/sets/tiny.hdf5": (200, {}, body)}) as address:
        tables(f"{address}/sets/tiny.hdf5")
        with pytest.raises(PipelineError, match=r"'tiny-medium-v0' is not in .*\(tiny.hdf5\); set options.remote"):
            collected(entry(name="tiny-medium-v0"))
        collected(entry(name="tiny-medium-v0", remote=True))
    assert Path("raw/data.hdf5").read_bytes() == body
    assert snapshot(project / "d4rl") == {"tiny.hdf5": body}
    collected(entry(name="tiny-medium-v0"))  # from the disk: the server is gone
    assert ingested(entry(name="tiny-medium-v0")).equals(expected(FULL))
    assert capsys.readouterr().err == ""


def test_a_score_that_is_not_the_references_is_pointed_out(
    project: Path, tables: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(project / "d4rl" / "tiny.hdf5", FULL)
    tables("http://127.0.0.1:9/tiny.hdf5")
    assert table_entry("tiny-medium-v0")[1] == (-1500.0, -150.0)
    assert table_entry("tiny-expert-v0")[1] is None
    collected(entry(name="tiny-medium-v0", score={"low": -1500.0, "high": -150.0, "scale": 100.0}))
    collected(entry(name="tiny-expert-v0", score={"low": 0.0, "high": 1.0, "scale": 100.0}))
    assert capsys.readouterr().err == ""
    collected(entry(name="tiny-medium-v0", score={"low": -1500.0, "high": 0.0, "scale": 100.0}))
    told = capsys.readouterr().err
    assert "datasets/small.yaml: score: D4RL's reference scores are {low: -1500.0, high: -150.0, scale: 100}" in told


def test_a_name_that_cannot_be_had_is_one_clear_error(
    project: Path, tables: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "d4rl", None)
    with pytest.raises(PipelineError, match=r"needs the package d4rl; `pip install --no-deps 'd4rl>=1.1'` is enough"):
        collected(entry(name="tiny-medium-v0"))
    monkeypatch.delitem(sys.modules, "d4rl")
    with serving({"/tiny.hdf5": (200, {"Content-Length": "1000"}, b"short")}, {}) as address:
        tables(f"{address}/tiny.hdf5")
        with pytest.raises(PipelineError, match=r"found 'tiny-x-v0'; allowed are .* tiny-expert-v0, tiny-medium-v0"):
            collected(entry(name="tiny-x-v0"))
        with pytest.raises(PipelineError, match=r"could not be fetched \(.*\); check the network"):
            collected(entry(name="tiny-medium-v0", remote=True))
    started = time.perf_counter()
    with pytest.raises(PipelineError, match=r"could not be fetched \(URLError\); check the network"):
        collected(entry(name="tiny-medium-v0", remote=True))
    assert time.perf_counter() - started < 5
    assert snapshot(project / "d4rl") == {}
    (project / "site" / "d4rl" / "infos.py").write_text("DATASET_URLS = 1\n", encoding="utf-8")
    with pytest.raises(PipelineError, match="D4RL's tables cannot be read"):
        collected(entry(name="tiny-medium-v0"))
