import csv
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import yaml

from primorl.base import PipelineError
from primorl.config.datasets import D4rlDataset
from primorl.data import sources as batching
from primorl.data.sources import d4rl, source_of
from primorl.data.storage.schema import Transitions
from tests.data.builders import SPACES, collected, dataset, ingested, snapshot
from tests.projects import ROOT

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
    observations, after = rng.uniform(-1, 1, (2, rows, 3)).astype(np.float32)
    after[~last] = observations[np.flatnonzero(~last) + 1]
    return {
        "observations": observations,
        "actions": rng.uniform(-2, 2, (rows, 1)).astype(np.float32),
        "rewards": rng.uniform(-16, 0, rows).astype(np.float32),
        "next_observations": after,
        "terminals": last & terminal,
        "timeouts": last & ~terminal,
        "infos/qpos": rng.normal(size=(rows, 2)),
        "metadata/algorithm": np.array(b"SAC"),
    }


def entry(file: Path | None = None, name: str | None = None, **changes: Any) -> D4rlDataset:
    options = {"file": None if file is None else str(file), "name": name}
    options["remote"] = changes.pop("remote", False)
    return dataset(D4rlDataset, "d4rl", options, **changes)


def written(content: Columns, name: str = "x.hdf5", **changes: Any) -> D4rlDataset:
    """A dataset of a new file of these arrays, collected."""
    with h5py.File(name, "w") as file:
        for array, values in content.items():
            file[array] = values
    return collected(entry(Path(name).resolve(), **changes))


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
            last, name = step == len(after) - 1, f"{number:09d}"
            seen = np.stack([content["observations"][row], after[row]])
            done, earned = content["actions"][[row]], content["rewards"].ravel()[[row]]
            ends = np.array([last and ended]), np.array([last and not ended])
            one = Transitions.of_episode(name, seen[:-1], done, earned, seen[1:], *ends)
            steps = pa.array([step], pa.int32())
            tables.append(one.table(SPACES).set_column(2, "step", steps))
    return pa.concat_tables(tables)


def without(content: Columns, *names: str) -> Columns:
    return {name: values for name, values in content.items() if name not in names}


FULL = columns()
CUT = columns((4, 3, 1), (True, False, True))  # the last rows have no end
CUT |= {"terminals": np.arange(8) == 3, "timeouts": np.arange(8) == 6}


UNMARKED = FULL | {"timeouts": FULL["timeouts"] & (np.arange(15) > 9)}  # an end is missing
SINGLE = columns((3, 1, 2), (True, False, True))  # one row, cut: no transition


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(
    ("content", "horizon", "transitions", "left_out"),
    [
        (FULL, None, 15, False),
        (UNMARKED, None, 15, False),
        # no outcome of a step that timed out
        (without(FULL, "next_observations"), None, 13, False),
        (without(FULL, "timeouts", "next_observations"), 3, 11, False),
        (without(CUT, "next_observations"), None, 6, True),
        (without(SINGLE, "next_observations"), None, 5, True),
    ],
)
def test_transitions_are_those_of_the_rows_read_one_by_one(
    project: Path,
    content: Columns,
    horizon: int | None,
    transitions: int,
    left_out: bool,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Episodes of one row that are left out are told."""
    monkeypatch.setattr(batching, "_ROWS_PER_BATCH", rows)
    table = ingested(written(content, horizon=horizon))
    assert table.num_rows == transitions
    assert table.equals(expected(content, horizon))
    told = "left out 1 episodes of one row that is cut" in capsys.readouterr().err
    assert told is left_out


def test_discrete_actions_are_whole_numbers_of_any_kind(project: Path) -> None:
    wide = {name: np.ones((15, 4)) for name in ("observations", "next_observations")}
    chosen = np.arange(15) % 2
    for actions in (chosen, chosen.astype(np.float32)[:, None]):
        dataset = written(FULL | wide | {"actions": actions}, environment="CartPole-v1")
        assert ingested(dataset)["action"].to_pylist() == chosen.tolist()
    unfit: list[tuple[Any, str]] = [
        (chosen + 0.5, "of whole numbers"),
        (np.eye(2)[chosen], "of whole numbers"),
        (chosen + 1, "an action outside the declared space"),
    ]
    for wrong, says in unfit:
        dataset = written(FULL | wide | {"actions": wrong}, environment="CartPole-v1")
        with pytest.raises(PipelineError, match=says):
            ingested(dataset)


def test_other_forms_of_the_same_arrays_are_accepted(project: Path) -> None:
    upright = {name: FULL[name][:, None] for name in ("rewards", "terminals", "timeouts")}
    for content in (
        FULL | upright | {"terminals": upright["terminals"].astype(np.float32)},
        FULL | {"actions": FULL["actions"][:, 0]},
        FULL | {"timeouts": FULL["timeouts"] | FULL["terminals"]},  # at both, an episode terminated
        without(FULL, "timeouts") | {"truncations": FULL["timeouts"]},
        without(FULL, "terminals") | {"terminations": FULL["terminals"]},
        {name: each.astype(each.dtype.newbyteorder(">")) for name, each in FULL.items()},
    ):
        assert ingested(written(content)).equals(expected(FULL))
    for name, kind in itertools.product(("observations", "actions", "rewards"), ("i8", "f2")):
        changed = FULL | {name: np.abs(FULL[name]).astype(kind)}
        assert ingested(written(changed)).equals(expected(changed))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (without(FULL, "rewards"), "found not all of .*; allowed are D4RL's flat arrays"),
        (
            {f"observations_{n}": np.zeros((3, 3)) for n in (0, 1)},
            "found not all .*; convert d3rlpy's",
        ),
        ({"data/demo_0/obs": np.zeros((3, 3))}, "found not all .* read Minari's by"),
        (FULL | {"observations": FULL["observations"].T}, "observations: .*of numbers"),
        (FULL | {"actions": FULL["actions"][:-1]}, "actions: "),
        (FULL | {"terminals": np.where(np.arange(15) == 6, np.nan, 0)}, "terminals: "),
        (FULL | dict.fromkeys(("terminals", "timeouts"), np.zeros(15)), "found no end"),
    ],
)
def test_unfit_files_are_refused(project: Path, content: Columns, message: str) -> None:
    with pytest.raises(PipelineError, match=rf"^raw/data\.hdf5: {message}[^\n]*$"):
        ingested(written(content))


def link_folder_out(file: h5py.File, name: str) -> None:
    file["rest"] = h5py.ExternalLink("other.hdf5", "/")
    file[name] = h5py.SoftLink(f"/rest/{name}")


def map_virtually(file: h5py.File, name: str) -> None:
    layout = h5py.VirtualLayout(FULL[name].shape, FULL[name].dtype)
    layout[:7] = h5py.VirtualSource("other.hdf5", name, FULL[name].shape)[:7]
    file.create_virtual_dataset(name, layout)


def write_nothing(file: h5py.File, name: str) -> None:
    file.create_dataset(name, FULL[name].shape, FULL[name].dtype)


def write_a_part(file: h5py.File, name: str) -> None:
    """As a program that was killed leaves it."""
    file.create_dataset(name, FULL[name].shape, FULL[name].dtype, chunks=(4,))[:7] = FULL[name][:7]


@pytest.mark.parametrize("write", [link_folder_out, map_virtually, write_nothing, write_a_part])
def test_rows_that_the_file_alone_does_not_give_are_refused_by_name(
    project: Path, write: Callable[[h5py.File, str], None]
) -> None:
    chosen, name = written(FULL), "rewards"
    with h5py.File("raw/data.hdf5", "r+") as file, h5py.File("raw/other.hdf5", "w") as other:
        del file[name]
        for array, values in FULL.items():
            other[array] = values
        write(file, name)
    named = "rest" if write is link_folder_out else name
    remedy = "with all files there, copy the arrays into one$"  # h5repack writes zeros else
    if write in (write_nothing, write_a_part):
        remedy = "write the file again"
    with pytest.raises(PipelineError, match=rf"data.hdf5: {named}: found .*{remedy}"):
        ingested(chosen)


def test_an_episode_cut_where_nothing_says_so_is_refused_or_with_timeouts_told(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `d4rl.qlearning_dataset` writes: the last row of an episode out of time is left out."""
    unmarked = without(FULL, "timeouts")
    says = (
        r"next_observations\[7\] differs from observations\[8\]: an episode ends .*write timeouts"
    )
    nothing = FULL | {"timeouts": np.zeros_like(FULL["timeouts"])}
    for content in (unmarked, nothing):
        with pytest.raises(PipelineError, match=rf"^raw/data\.hdf5: {says}[^\n]*$"):
            ingested(written(content, horizon=4))
    rounded = FULL["next_observations"] * np.float32(1 + 1e-6)
    for content, horizon, told in (
        (unmarked, 3, False),  # ends where it was cut
        (FULL | {"next_observations": rounded}, None, False),
        (UNMARKED, None, True),
    ):
        ingested(written(content, horizon=horizon))
        said = capsys.readouterr().err
        assert ("warning: raw/data.hdf5: in 1 rows within episodes, as next_obs" in said) is told


def test_what_the_layout_does_not_say_must_be_declared(project: Path) -> None:
    with pytest.raises(PipelineError, match=r"datasets/small.yaml: environment: found null"):
        source_of("small", entry(project / "x.hdf5", environment=None))
    with pytest.raises(PipelineError, match=r"options\.file: .*x\.hdf5 is not there"):
        collected(entry(project / "x.hdf5"))
    np.savez("x.hdf5", **without(FULL, "metadata/algorithm"))
    Path("x.hdf5.npz").rename("x.hdf5")
    with pytest.raises(PipelineError, match="no HDF5 file, cut, corrupt, or of a filter"):
        ingested(collected(entry(project / "x.hdf5")))


def test_a_name_finds_the_file_here_or_fetches_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(FULL)
    body = Path("x.hdf5").read_bytes()
    there = Path("sets/tiny.hdf5")
    there.parent.mkdir()
    there.write_bytes(body)
    monkeypatch.setenv("D4RL_DATASET_DIR", str(project / "d4rl"))
    monkeypatch.setattr(d4rl, "NAMES", project / "names.csv")
    address = there.absolute().as_uri()
    d4rl.NAMES.write_text(f"name,address,low,high\ntiny-medium-v0,{address},-1,1\n")
    for name, remote, says in (
        ("tiny-medium-v0", False, r"tiny\.hdf5 is not there; put .* there by hand, .*remote: true"),
        ("tiny-x-v0", True, "found 'tiny-x-v0'; allowed are D4RL's, as tiny-medium-v0"),
    ):
        with pytest.raises(PipelineError, match=says):
            collected(entry(name=name, remote=remote))
    there.rename("away")
    with pytest.raises(PipelineError, match=r"could not be fetched .* put .* there by hand"):
        collected(entry(name="tiny-medium-v0", remote=True))
    assert snapshot(project / "d4rl") == {}
    Path("away").rename(there)
    collected(entry(name="tiny-medium-v0", remote=True))
    there.unlink()
    assert snapshot(project / "d4rl") == {"tiny.hdf5": body}
    assert ingested(collected(entry(name="tiny-medium-v0"))).equals(expected(FULL))


def test_the_table_has_d4rls_reference_scores_and_our_files_use_them() -> None:
    rows = {row["name"]: row for row in csv.DictReader(d4rl.NAMES.open(encoding="utf-8"))}
    assert len(rows) == 155
    file = ROOT / "datasets/halfcheetah-medium-expert.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    row = rows[content["options"]["name"]]
    assert content["score"].items() >= {key: float(row[key]) for key in ("low", "high")}.items()
