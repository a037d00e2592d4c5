import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from primorl.project.errors import PipelineError
from primorl.trajectories.identity.fingerprint import Fingerprint, project_secret
from tests.trajectories.builders import INFO, episode, episodes, table

SECRET = bytes(range(32))


def keyed(*tables: pa.Table, secret: bytes = SECRET) -> str:
    fingerprint = Fingerprint(INFO.schema)
    for each in tables:
        fingerprint.update(each)
    return fingerprint.keyed(secret)


def test_batches_do_not_matter_and_the_secret_does() -> None:
    rows = table(episodes(6))
    assert keyed(rows) == keyed(rows.slice(0, 5), rows.slice(5, 1), rows.slice(6))
    assert keyed(rows) == keyed(pa.concat_tables([rows.slice(0, 5), rows.slice(5)]))
    assert keyed(rows) != keyed(rows, secret=bytes(32))


@pytest.mark.parametrize("column", table(episodes(2)).column_names)
def test_any_changed_value_changes_it(column: str) -> None:
    rows = table(episodes(4))
    values: list[Any] = rows[column].to_pylist()
    changed = {
        str: lambda value: value + "x",
        bool: lambda value: not value,
        int: lambda value: value + 1,
        float: lambda value: float(np.nextafter(np.float32(value), np.float32(9))),
        list: lambda value: [*value[:-1], float(np.nextafter(np.float32(value[-1]), np.float32(9)))],
    }
    values[3] = changed[type(values[3])](values[3])
    index = rows.column_names.index(column)
    other = rows.set_column(index, rows.schema.field(index), pa.array(values, rows.schema.field(index).type))
    assert keyed(rows) != keyed(other)


def test_text_cannot_be_shifted_between_rows() -> None:
    assert keyed(table(episodes(2), names=["ab", "c"])) != keyed(table(episodes(2), names=["a", "bc"]))


def test_long_runs_of_an_id_and_single_rows_give_the_same() -> None:
    rows = table([episode(30, seed) for seed in range(3)], names=["a", "bé", "c"])
    assert keyed(rows) == keyed(*(rows.slice(row, 1) for row in range(rows.num_rows)))


def test_the_secret_is_made_once_and_kept_private(project: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: project_secret(), range(16)))
    assert len(made) == 1
    path = project / ".primorl" / "secret"
    assert path.read_bytes() in made
    assert len(path.read_bytes()) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["secret"]


def test_experiments_in_copies_share_the_projects_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = project_secret()
    monkeypatch.setenv("DVC_ROOT", str(project / ".dvc/tmp/exps/one"))
    assert project_secret() == secret


def test_a_damaged_secret_is_not_replaced_in_silence(project: Path) -> None:
    (project / ".primorl").mkdir()
    (project / ".primorl" / "secret").write_bytes(b"short")
    with pytest.raises(PipelineError, match="secret is damaged") as wrong:
        project_secret()
    assert "short" not in str(wrong.value)
