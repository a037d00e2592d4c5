import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

from primorl.base.errors import PipelineError
from primorl.config.datasets import D4rlDataset
from primorl.data.ingestion import ingest
from primorl.data.sources import d4rl, source_of
from primorl.data.storage.parquet import PartReader
from primorl.data.storage.schema import trajectory_table
from tests.data.builders import SPACES, dataset, snapshot
from tests.data.sources.servers import serving

Columns = dict[str, Any]


def columns(
    lengths: tuple[int, ...] = (4, 1, 3, 2, 5),
    terminates: tuple[bool, ...] = (True, True, False, True, False),
) -> Columns:
    """All arrays of episodes in Pendulum's spaces, each ended by a terminal or by a timeout."""
    rows = sum(lengths)
    rng = np.random.default_rng(rows)
    last = np.zeros(rows, dtype=bool)
    last[np.cumsum(lengths) - 1] = True
    terminal = np.repeat(terminates, lengths)
    return {
        "observations": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "actions": rng.uniform(-2, 2, (rows, 1)).astype(np.float32),
        "rewards": rng.uniform(-16, 0, rows).astype(np.float32),
        "next_observations": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "terminals": last & terminal,
        "timeouts": last & ~terminal,
        "infos/qpos": rng.normal(size=(rows, 2)),
        "metadata/algorithm": np.array(b"SAC"),
    }


def entry(
    file: Path | None = None, name: str | None = None, remote: bool = False, **changes: Any
) -> D4rlDataset:
    options = {"file": None if file is None else str(file), "name": name, "remote": remote}
    return dataset(D4rlDataset, "d4rl", options, **changes)


def collected(chosen: D4rlDataset) -> D4rlDataset:
    Path("raw").mkdir(exist_ok=True)
    source_of("small", chosen).collect(Path("raw"))
    return chosen


def written(content: Columns, name: str = "x.hdf5", **changes: Any) -> D4rlDataset:
    """A dataset of a new file of these arrays, collected."""
    with h5py.File(name, "w") as file:
        for array, values in content.items():
            file[array] = values
    return collected(entry(Path(name).resolve(), **changes))


def ingested(chosen: D4rlDataset) -> pa.Table:
    ingest(Path("raw"), Path("trajectories"), "small", chosen)
    return pa.concat_tables(PartReader(Path("trajectories"), made_by="ingest").tables())


def expected(content: Columns, horizon: int | None = None) -> pa.Table:
    """Slow and obvious: row by row, as the source's page says."""
    timeouts = content.get("timeouts")
    episodes: list[list[int]] = [[]]
    for row, terminal in enumerate(content["terminals"].ravel()):
        episodes[-1].append(row)
        out_of_time = len(episodes[-1]) == horizon if timeouts is None else bool(timeouts[row])
        if terminal or out_of_time:
            episodes.append([])
    tables = []
    for number, rows in enumerate(episodes):
        ended = bool(rows) and bool(content["terminals"].ravel()[rows[-1]])
        if "next_observations" in content:
            after = {row: content["next_observations"][row] for row in rows}
        else:
            after = {row: content["observations"][row + 1] for row in rows[:-1]}
            if ended:
                after[rows[-1]] = content["observations"][rows[-1]]
        for step, row in enumerate(sorted(after)):
            last = step == len(after) - 1
            seen = [np.stack([content["observations"][row], after[row]])]
            done, earned = [content["actions"][[row]]], [content["rewards"].ravel()[[row]]]
            ends = [np.array([last and ended])], [np.array([last and not ended])]
            one = trajectory_table(
                SPACES, [f"{number:09d}"], [f"{number:09d}"], seen, done, earned, *ends
            )
            tables.append(one.set_column(2, "step", pa.array([step], pa.int32())))
    return pa.concat_tables(tables)


def without(content: Columns, *names: str) -> Columns:
    return {name: values for name, values in content.items() if name not in names}


FULL = columns()
CUT = columns((4, 3, 1), (True, False, True)) | {
    "terminals": np.isin(np.arange(8), [3])
}  # the last rows have no end
CUT["timeouts"] = np.isin(np.arange(8), [6])


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(
    ("content", "horizon", "transitions"),
    [
        (FULL, None, 15),
        (
            without(FULL, "next_observations"),
            None,
            13,
        ),  # the outcome of a timed-out episode's last step is not there
        (without(FULL, "timeouts"), 3, 15),
        (without(FULL, "timeouts", "next_observations"), 3, 11),
        (CUT, None, 8),
        (without(CUT, "next_observations"), None, 6),
        (
            without(columns((3, 1, 2), (True, False, True)), "next_observations"),
            None,
            5,
        ),  # one row, cut: no transition
    ],
)
def test_transitions_are_those_of_the_rows_read_one_by_one(
    project: Path,
    content: Columns,
    horizon: int | None,
    transitions: int,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(d4rl, "_ROWS_PER_BATCH", rows)
    table = ingested(written(content, horizon=horizon))
    assert table.num_rows == transitions
    assert table.equals(expected(content, horizon))


def test_other_forms_of_the_same_arrays_are_accepted(project: Path) -> None:
    upright = {name: FULL[name][:, None] for name in ("rewards", "terminals", "timeouts")}
    for content in (
        FULL | upright | {"terminals": upright["terminals"].astype(np.float32)},
        FULL | {"actions": FULL["actions"][:, 0]},
        FULL | {"timeouts": FULL["timeouts"] | FULL["terminals"]},  # at both, an episode terminated
    ):
        assert ingested(written(content)).equals(expected(FULL))


def test_discrete_actions_are_read_as_whole_numbers(project: Path) -> None:
    content = columns()
    for name in ("observations", "next_observations"):
        content[name] = np.hstack([content[name]] * 2)[:, :4]
    content["actions"] = np.arange(15)[:, None] % 2
    table = ingested(written(content, environment="CartPole-v1"))
    assert table["action"].to_pylist() == (np.arange(15) % 2).tolist()
    content["actions"][7] = 2**32
    with pytest.raises(
        PipelineError,
        match="trajectory number 3, step 2: found an action outside the declared space",
    ):
        ingested(written(content, environment="CartPole-v1"))


def changed(name: str, change: Callable[[Any], object]) -> Columns:
    return FULL | {name: np.asarray(change(FULL[name].copy()))}


def at(row: int, value: float) -> Callable[[Any], Any]:
    def put(values: Any) -> Any:
        values[row] = value
        return values

    return put


def test_unfit_files_are_refused_and_the_last_good_data_stay(project: Path) -> None:
    ingested(written(FULL))
    before = snapshot(Path("trajectories"))
    for content, message in (
        (
            without(FULL, "rewards"),
            "rewards: found nothing; needed is an array; there are actions, infos, metadata",
        ),
        (
            without(FULL, "actions") | {"actions/left": FULL["actions"]},
            "actions: found no array; needed is an array",
        ),
        (
            changed("actions", lambda a: a[:-1]),
            "actions: found 14 rows; allowed: 15, as many as observations",
        ),
        (
            changed("rewards", lambda a: np.stack([a, a], 1)),
            "rewards: found shape (2,) a step, declared is one number",
        ),
        (
            changed("terminals", lambda a: at(6, np.nan)(a.astype(float))),
            "terminals: row 6 is neither 0 nor 1",
        ),
        (
            changed("actions", at(6, 71.5)),
            "trajectory number 3, step 1: found an action outside the declared space",
        ),
        (
            {name: values[:0] for name, values in FULL.items() if values.ndim},
            "found no steps; allowed is at least one",
        ),
        (
            FULL | dict.fromkeys(("terminals", "timeouts"), np.zeros(15)),
            "found no end of an episode; allowed: termin",
        ),
    ):
        with pytest.raises(PipelineError) as wrong:
            ingested(written(content))
        text = str(wrong.value)
        assert message in text
        assert text.startswith("raw/data.hdf5: ")
        assert not any(word in text for word in ("\n", "71"))
    good, chosen = Path("x.hdf5").read_bytes(), written(FULL)
    for damage in (lambda file: file.write_bytes(good[:2000]), Path.unlink):
        damage(Path("raw/data.hdf5"))
        with pytest.raises(
            PipelineError, match=r"raw/data\.hdf5: truncated, corrupt or missing HDF5"
        ):
            ingested(chosen)
    assert snapshot(Path("trajectories")) == before


def test_a_small_file_that_claims_much_is_refused(project: Path) -> None:
    with h5py.File("x.hdf5", "w") as file:
        for name, shape, kind in (
            ("observations", (10**12, 3), "f4"),
            ("actions", (10**12, 1), "f4"),
        ):
            file.create_dataset(name, shape, kind, chunks=(64, shape[1]))
        for name, kind in (("rewards", "f4"), ("terminals", "?"), ("timeouts", "?")):
            file.create_dataset(name, (10**12,), kind, chunks=(64,))
    with pytest.raises(
        PipelineError,
        match="observations: found 1000000000000 rows claimed, more than the file holds",
    ):
        ingested(collected(entry(project / "x.hdf5")))


def test_what_the_layout_does_not_say_must_be_declared(project: Path) -> None:
    with pytest.raises(
        PipelineError,
        match=r"datasets/small.yaml: environment: found null; allowed is a Gymnasium id",
    ):
        source_of("small", entry(project / "x.hdf5", environment=None))
    with pytest.raises(PipelineError, match=r"options\.file: .*x\.hdf5 is not there"):
        collected(entry(project / "x.hdf5"))


@pytest.fixture
def tables(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a stand-in for the package d4rl, which cannot be imported, where Python looks for packages."""

    def put(url: str) -> Path:
        package = project / "site" / "d4rl"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise Exception('no MuJoCo 2.1')\n", encoding="utf-8")
        (package / "infos.py").write_text(
            f"DATASET_URLS = {{'tiny-medium-v0': {url!r}, 'tiny-expert-v0': {url!r}}}\n"
            "REF_MIN_SCORE = {}\nREF_MAX_SCORE = {}\n"
            "for name in ('medium',):\n"
            "    REF_MIN_SCORE[f'tiny-{name}-v0'] = -1500.0\n"
            "    REF_MAX_SCORE[f'tiny-{name}-v0'] = -150\n",
            encoding="utf-8",
        )
        monkeypatch.syspath_prepend(str(project / "site"))
        return package / "infos.py"

    monkeypatch.setenv("D4RL_DATASET_DIR", str(project / "d4rl"))
    monkeypatch.delitem(sys.modules, "d4rl", raising=False)
    return put


def test_a_name_finds_the_file_here_or_fetches_it_and_another_score_is_pointed_out(
    project: Path, tables: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    written(FULL)
    body = Path("x.hdf5").read_bytes()
    with serving({"/sets/tiny.hdf5": (200, {}, body)}) as address:
        tables(f"{address}/sets/tiny.hdf5")
        with pytest.raises(
            PipelineError, match=r"'tiny-medium-v0' is not in .*\(tiny.hdf5\); set options.remote"
        ):
            collected(entry(name="tiny-medium-v0"))
        collected(entry(name="tiny-medium-v0", remote=True))
    assert Path("raw/data.hdf5").read_bytes() == body
    assert snapshot(project / "d4rl") == {"tiny.hdf5": body}
    right, wrong = ({"low": -1500.0, "high": high, "scale": 100.0} for high in (-150.0, 0.0))
    chosen = collected(
        entry(name="tiny-medium-v0", score=right)
    )  # from the disk: the server is gone
    assert ingested(chosen).equals(expected(FULL))
    collected(entry(name="tiny-expert-v0", score=wrong))  # the tables have no score of it
    assert capsys.readouterr().err == ""
    collected(entry(name="tiny-medium-v0", score=wrong))
    told = capsys.readouterr().err
    assert (
        "datasets/small.yaml: score: D4RL's reference scores are {low: -1500.0, high: -150.0, scale: 100}"
        in told
    )


def test_a_name_that_cannot_be_had_is_one_clear_error(
    project: Path, tables: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, message: str) -> None:
        with pytest.raises(PipelineError, match=message):
            collected(entry(name=name, remote=True))

    monkeypatch.setitem(sys.modules, "d4rl", None)
    refused(
        "tiny-medium-v0", r"needs the package d4rl; `pip install --no-deps 'd4rl>=1.1'` is enough"
    )
    monkeypatch.delitem(sys.modules, "d4rl")
    with serving({"/tiny.hdf5": (200, {"Content-Length": "1000"}, b"short")}, {}) as address:
        infos = tables(f"{address}/tiny.hdf5")
        refused("tiny-x-v0", r"found 'tiny-x-v0'; allowed are .* tiny-expert-v0, tiny-medium-v0")
        refused("tiny-medium-v0", r"could not be fetched \(.*\); check the network")
    started = time.perf_counter()
    refused("tiny-medium-v0", r"could not be fetched \(URLError\); check the network")
    assert time.perf_counter() - started < 5
    assert snapshot(project / "d4rl") == {}
    infos.write_text("DATASET_URLS = 1\n", encoding="utf-8")
    refused("tiny-medium-v0", "D4RL's tables cannot be read")
