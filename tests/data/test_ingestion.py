from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

from primorl.base import PipelineError
from primorl.base.files import WITHDRAWALS
from primorl.data import sources as batching
from primorl.data.identity.membership import read_ids
from primorl.data.ingestion import ingest
from primorl.data.storage import rows as parquet
from primorl.data.storage.schema import DatasetInfo
from tests.data.builders import (
    INFO,
    SPACES,
    entry,
    episode,
    episodes,
    made,
    snapshot,
    table,
    write_raw,
)


def run(raw: str = "raw", **changes: Any) -> DatasetInfo:
    return ingest(Path(raw), Path("trajectories"), "small", entry(**changes))


def written() -> pa.Table:
    return pa.concat_tables(made().tables())


@pytest.mark.parametrize(("by", "told"), [(1.0, False), (1.000005, False), (1.5, True)])
def test_observations_beyond_the_declared_space_are_told(
    project: Path, by: float, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    content = episodes(3)
    for each in content:
        each.observations[:, 1] = by * np.sign(each.observations[:, 1])
    write_raw(Path("raw"), content)
    run()
    said = "beyond the space that is declared, in observation_1; correct data or environment"
    assert (said in capsys.readouterr().err) is told


def test_every_transition_arrives_whatever_the_batches_and_a_bad_one_changes_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = episodes(12)
    path = write_raw(Path("raw"), content)
    prints = set()
    for rows in (2**16, 10, 1):
        monkeypatch.setattr(batching, "_ROWS_PER_BATCH", rows)
        monkeypatch.setattr(parquet, "ROWS_PER_BATCH", rows)
        info = run()
        prints.add(info.dataset_fingerprint)
        assert written().equals(table(content, names=[f"small-v0/{i:09d}" for i in range(12)]))
        assert written().schema.equals(INFO.schema)
        assert made().info == info
        assert (info.horizon, info.spaces) == (200, SPACES)
    assert len(prints) == 1
    with h5py.File(path, "a") as file:
        file["episode_5/rewards"][0] -= 0.5
    assert run().dataset_fingerprint not in prints
    with h5py.File(path, "a") as file:
        file["episode_5/actions"][1, 0] = -3.0
    before = snapshot(project)
    with pytest.raises(PipelineError, match="trajectory number 6, step 1: found an action"):
        run()
    assert snapshot(project) == before
    assert sorted(item.name for item in project.iterdir()) == [".primorl", "raw", "trajectories"]


def test_the_declared_horizon_or_the_environments_is_the_bound(project: Path) -> None:
    write_raw(Path("raw"), [episode(20, 1), episode(250, 2)])
    for horizon, most in ((100, 100), (None, 200)):
        with pytest.raises(PipelineError, match=f"number 2, step {most}: found an episode longer"):
            run(horizon=horizon)
    assert run(horizon=250).horizon == 250


def withdraw(*ids: str) -> dict[str, str]:
    file = Path("data/withdrawals/gone.txt")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(ids) + "\n")
    return {"exclude_units": str(file)}


def test_who_withdrew_is_gone_and_everybody_else_stays_who_they_were(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list that the entry does not name, as after going back to an earlier one, is told."""
    content = episodes(12)
    write_raw(Path("raw"), content)
    all_of_them = run().dataset_fingerprint
    info = run(ingestion=withdraw("small-v0/000000003", "", "small-v0/000000007"))
    assert info.dataset_fingerprint != all_of_them
    assert "warning" not in capsys.readouterr().err
    assert run().dataset_fingerprint == all_of_them
    assert "gone.txt: not named by ingestion.exclude_units" in capsys.readouterr().err
    run(ingestion=withdraw("small-v0/000000003", "", "small-v0/000000007"))
    left = [i for i in range(12) if i not in (3, 7)]
    names = [f"small-v0/{i:09d}" for i in left]
    assert written().equals(table([content[i] for i in left], names=names))
    before = snapshot(Path("trajectories"))
    unknown = "small-v0/000000099"
    for ingestion, place in (
        ({"exclude_units": "data/withdrawals/absent.txt"}, r"data/withdrawals/absent\.txt: "),
        ({"exclude_units": "data/withdrawals/../elsewhere.txt"}, "elsewhere"),
        (withdraw("small-v0/000000001", unknown), r"gone\.txt: line 2: "),
    ):
        with pytest.raises(PipelineError, match=place) as wrong:
            run(ingestion=ingestion)
        assert unknown not in str(wrong.value)
    with pytest.raises(PipelineError, match="found no transitions"):
        run(ingestion=withdraw(*(f"small-v0/{i:09d}" for i in range(12))))
    assert snapshot(Path("trajectories")) == before


def test_a_list_that_a_copy_of_dvc_lacks_names_the_option_that_brings_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: in the project itself."""
    Path("params.yaml").touch()
    for place, told in ((project, False), (project / ".dvc/tmp/exps/tmpabc", True)):
        (place / WITHDRAWALS).mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(place)
        with pytest.raises(PipelineError) as wrong:
            read_ids(f"{WITHDRAWALS}/ids.txt", WITHDRAWALS, "key")
        assert (f"`--copy-paths {WITHDRAWALS}/ids.txt`" in str(wrong.value)) is told
