"""The zoo's logs are what their entries declare, and their simulators are what made them."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.quality.logs import LOGS
from benchmarks.quality.logs.log import CONSENTED, Box
from benchmarks.quality.logs.project import SPLITS, keep_public, lay
from benchmarks.quality.logs.report import by_log
from primorl.base.paths import PARTITIONS
from primorl.config.datasets import TabularDataset, checked
from primorl.data.ingestion import ingest
from primorl.data.partitioning import partition
from primorl.data.sources import source_of
from primorl.data.storage.parquet import PartReader


@pytest.mark.parametrize("name", LOGS)
def test_ingest_takes_every_row_of_a_log(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So bounds, categories, ends and ids are those that the entry declares; no setting is suggested."""
    monkeypatch.chdir(tmp_path)
    log = LOGS[name]
    log.write(Path("log"), 12, seed=3)
    entry = log.entry("log")
    assert not any(entry["suggested"].values())
    dataset = checked(TabularDataset, entry)
    source_of(name, dataset).collect(Path("raw"))
    ingest(Path("raw"), Path("trajectories"), name, dataset)
    kept = sum(
        part.num_rows
        for part in PartReader(Path("trajectories"), made_by="ingest").tables(columns=["unit_id"])
    )
    logged = pq.read_table("log/log.parquet")
    assert kept == len(logged) - logged["reward"].null_count
    low, high = log.reward
    rewards = logged["reward"].drop_null().to_numpy()
    assert low <= rewards.min() <= rewards.max() <= high
    if isinstance(log.action, Box):
        for column, lowest, highest in zip(
            log.action.columns, log.action.low, log.action.high, strict=True
        ):
            actions = logged[column].drop_null().to_numpy()
            assert lowest <= actions.min() <= actions.max() <= highest


def test_the_simulator_is_the_one_that_made_the_log(tmp_path: Path) -> None:
    """The mean over people of the mean over a person's trajectories agrees; another policy's value does not."""
    log = LOGS["desk"]
    log.write(tmp_path, 400, seed=3)
    rows = {
        name: np.array(values)
        for name, values in pq.read_table(tmp_path / "log.parquet").to_pydict().items()
    }
    person, trajectory = rows[log.unit], rows["trajectory"]
    reward = np.where(rows["reward"] == np.array(None), 0, rows["reward"]).astype(float)
    each = [
        reward[person == i].sum() / len(set(trajectory[person == i])) for i in np.unique(person)
    ]
    truth = log.behaviour_returns(2000, seed=0)
    spread = np.hypot(np.std(each) / len(each) ** 0.5, truth.std() / len(truth) ** 0.5)
    assert abs(np.mean(each) - truth.mean()) < 4 * spread
    assert abs(np.mean(each) - log.random_returns(2000, seed=0).mean()) > 8 * spread


@pytest.mark.parametrize("name", ["titration", "messages", "relapse", "lending"])
def test_the_behaviour_of_heterogeneous_people_is_mediocre(name: str) -> None:
    """It is better than random actions, and by far not as good as the best policy known."""
    log = LOGS[name]
    behaviour, chance = (
        log.behaviour_returns(10_000, 0).mean(),
        log.random_returns(10_000, 0).mean(),
    )
    assert (
        chance
        < behaviour
        < log.returns(log.best_known, 10_000, 0).mean() - 0.5 * (behaviour - chance)
    )


@pytest.mark.parametrize(("name", "column"), [("titration", "age"), ("desk", "reward")])
def test_who_consents_is_unlike_the_others(name: str, column: str, tmp_path: Path) -> None:
    """One of fifty people consents: the young, or those whose first trajectory went well."""
    log = LOGS[name]
    log.write(tmp_path, 500, seed=3)
    rows = pq.read_table(tmp_path / "log.parquet")
    first = rows.filter((pc.field("trajectory") == 0) & pc.field("reward").is_valid())
    means = first.group_by([log.unit, CONSENTED]).aggregate([(column, "mean")])
    assert len(means) == 500
    yes = means[CONSENTED].to_numpy() == "yes"
    assert yes.sum() == 10
    of_consenting, of_others = (
        means[f"{column}_mean"].to_numpy()[chosen] for chosen in (yes, ~yes)
    )
    sign = -1 if log.bias else 1
    assert np.min(sign * of_consenting) > np.quantile(sign * of_others, 0.85)


def test_public_people_alone_are_the_public_people_of_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else is in the reference's data."""
    monkeypatch.chdir(tmp_path)
    log = LOGS["triage"]
    log.write(Path("log"), 60, seed=3)
    lay(log, 3, {}, Path())
    dataset = checked(TabularDataset, log.entry("log"))
    source_of(log.name, dataset).collect(Path("raw"))
    ingest(Path("raw"), Path("trajectories"), log.name, dataset)
    consent = SimpleNamespace(**cast("dict[str, str]", SPLITS["ten"]["partition.public"]))
    partition(Path("trajectories"), PARTITIONS, public_fraction=None, salt="", public=consent)
    keep_public(Path("log/log.parquet"), log.unit, Path())
    assert set(pq.read_table("log/log.parquet")[log.unit].to_pylist()) == set(range(1, 11))


def test_the_report_marks_what_private_people_add() -> None:
    """Bold: above the better of the references of public people alone, with intervals apart."""
    truth = {"behaviour": 0.0, "best": 1.0, "worst": 0.0}
    same = {
        "log": "desk",
        "people": 1000,
        "public": "ten",
        "truth": truth,
        "cloned": None,
        "error": None,
        "summary": {},
    }

    def row(learner: str, mean: float, **changes: object) -> dict[str, object]:
        return same | {
            "learner": learner,
            "changes": changes,
            "policy": {"mean": mean, "error": 0.01},
        }

    private = row("private", 0.5, **{"privacy.target_epsilon": 1.0})
    assert "| **+50% ± 2%** (" in by_log(
        [private, row("alone", 0.4), row("alone", 0.1, other=1)], []
    )
    assert "| +50% ± 2% (" in by_log([private, row("alone", 0.4), row("alone", 0.48, other=1)], [])
