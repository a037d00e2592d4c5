from pathlib import Path

import h5py
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from primorl.project.errors import PipelineError
from primorl.trajectories.ingestion import ingest
from primorl.trajectories.sources.minari import reading as minari_reading
from primorl.trajectories.storage import parquet
from primorl.trajectories.storage.parquet import PartReader
from primorl.trajectories.storage.schema import DatasetInfo, arrow_schema
from tests.trajectories.builders import SPACES, entry, episode, episodes, snapshot, table, write_raw


def run(environment: str = "Pendulum-v1") -> DatasetInfo:
    return ingest(Path("raw"), Path("trajectories"), "small", entry(environment=environment))


@pytest.mark.parametrize("rows", [2**16, 10])
def test_every_transition_arrives(project: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minari_reading, "_ROWS_PER_BATCH", rows)
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", rows)
    content = episodes(12)
    write_raw(Path("raw"), content)
    info = run()
    written = pa.concat_tables(PartReader(Path("trajectories"), made_by="ingest").tables())
    assert written.equals(table(content, names=[f"small-v0/{i:09d}" for i in range(12)]))
    assert written.schema.equals(arrow_schema(SPACES))
    assert DatasetInfo.from_schema(pq.read_schema("trajectories/part-00000.parquet"), Path("x")) == info
    assert (info.dataset, info.environment, info.unit, info.horizon) == ("small", "Pendulum-v1", "trajectory", 200)
    assert info.spaces == SPACES


def test_episodes_that_terminate_need_a_declaration(project: Path) -> None:
    write_raw(Path("raw"), episodes(2))
    with pytest.raises(PipelineError, match="trajectory number 1, step 0: found an episode that terminates") as wrong:
        ingest(Path("raw"), Path("trajectories"), "small", entry(termination="none"))
    assert "set the dataset's termination to learned" in str(wrong.value)
    assert not Path("trajectories").exists()
    truncated = [item for item in episodes(9) if item.truncated]
    write_raw(Path("other"), truncated)
    assert ingest(Path("other"), Path("trajectories"), "small", entry(termination="none")).termination == "none"


def test_episodes_longer_than_the_horizon_are_refused(project: Path) -> None:
    for steps, horizon, most in ((150, 100, 100), (250, None, 200), (100, 100, None), (250, 250, None)):
        write_raw(Path(f"raw-{steps}-{horizon}"), [episode(20, 1), episode(steps, 2)])
        raw, dataset = Path(f"raw-{steps}-{horizon}"), entry(horizon=horizon)
        if most is None:
            ingest(raw, Path("trajectories"), "small", dataset)
            continue
        with pytest.raises(PipelineError, match=f"number 2, step {most}: found an episode longer than the horizon"):
            ingest(raw, Path("trajectories"), "small", dataset)
        assert not Path("trajectories").exists()


def withdraw(*ids: str) -> str:
    file = Path("data/withdrawals/gone.txt")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(ids) + "\n")
    return str(file)


def test_who_withdrew_is_gone_and_everybody_else_stays_who_they_were(project: Path) -> None:
    content = episodes(12)
    write_raw(Path("raw"), content)
    before = run().dataset_fingerprint
    info = ingest(
        Path("raw"),
        Path("trajectories"),
        "small",
        entry(ingestion={"exclude_units": withdraw("small-v0/000000003", "", "small-v0/000000007")}),
    )
    assert info.dataset_fingerprint != before
    left = [i for i in range(12) if i not in (3, 7)]
    written = pa.concat_tables(PartReader(Path("trajectories"), made_by="ingest").tables())
    assert written.equals(table([content[i] for i in left], names=[f"small-v0/{i:09d}" for i in left]))


def test_a_list_that_cannot_be_read_is_refused(project: Path) -> None:
    write_raw(Path("raw"), episodes(2))
    for file, message in (
        ("data/withdrawals/absent.txt", r"data/withdrawals/absent\.txt: No such file"),
        ("data/withdrawals/../elsewhere.txt", "allowed is a file in data/withdrawals"),
    ):
        with pytest.raises(PipelineError, match=message):
            ingest(Path("raw"), Path("trajectories"), "small", entry(ingestion={"exclude_units": file}))


def test_a_withdrawal_that_meets_nobody_is_refused(project: Path) -> None:
    write_raw(Path("raw"), episodes(4))
    run()
    before = snapshot(Path("trajectories"))
    with pytest.raises(PipelineError, match=r"gone\.txt: line 2: found an id that no unit has") as wrong:
        ingest(
            Path("raw"),
            Path("trajectories"),
            "small",
            entry(ingestion={"exclude_units": withdraw("small-v0/000000001", "small-v0/000000099")}),
        )
    assert "small-v0/000000099" not in str(wrong.value)
    assert snapshot(Path("trajectories")) == before
    everybody = withdraw(*(f"small-v0/{i:09d}" for i in range(4)))
    with pytest.raises(PipelineError, match="found no transitions"):
        ingest(Path("raw"), Path("trajectories"), "small", entry(ingestion={"exclude_units": everybody}))


def test_the_fingerprint_is_the_contents_and_not_the_batches(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_raw(Path("raw"), episodes(8))
    first = run().dataset_fingerprint
    monkeypatch.setattr(minari_reading, "_ROWS_PER_BATCH", 1)
    assert run().dataset_fingerprint == first
    with h5py.File("raw/small-v0/data/main_data.hdf5", "a") as file:
        file["episode_5/rewards"][0] -= 0.5
    assert run().dataset_fingerprint != first


def test_a_bad_episode_late_in_the_file_changes_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minari_reading, "_ROWS_PER_BATCH", 1)
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", 1)
    path = write_raw(Path("raw"), episodes(8))
    run()
    with h5py.File(path, "a") as file:
        file["episode_5/actions"][1, 0] = -3.0
    before = snapshot(project)
    with pytest.raises(PipelineError, match="trajectory number 6, step 1: found an action outside the declared space"):
        run()
    assert snapshot(project) == before
    assert sorted(item.name for item in project.iterdir()) == [".primorl", "raw", "trajectories"]
