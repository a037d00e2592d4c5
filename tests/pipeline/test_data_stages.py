"""The stages before training say and log nothing of the rows, and leave the last good data where
they fail.
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import collect, ingest, partition
from primorl.base.errors import PipelineError
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.stages.splitting import confirm
from tests.data.builders import episodes, snapshot, write_raw
from tests.data.sources.tabular_builders import entry, row, write


def test_people_become_public_by_a_word(small: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is charged. Twin: trajectories of a simulator may be drawn anew."""
    write_raw(Path("data/raw"), episodes(6))
    ingest.body(small, StageLog())
    for salt in (b"7:primorl", b"other"):
        monkeypatch.setattr("primorl.data.identity.membership._SALT", salt)
        partition.body(small, StageLog())
    write(
        [
            row(user, 0, time, x=float(user), left=time == 2)
            for user in range(20)
            for time in range(3)
        ]
    )
    people = replace(
        small, dataset="log", chosen=entry(), policy=replace(small.policy, starts="public")
    )
    shutil.rmtree("data/raw")
    collect.body(people, StageLog())
    ingest.body(people, StageLog())

    def drawn(fraction: float) -> Params:
        return replace(people, partition=replace(people.partition, public_fraction=fraction))

    def split(fraction: float, salt: str = "7:primorl") -> None:
        monkeypatch.setattr("primorl.data.identity.membership._SALT", salt.encode())
        partition.body(drawn(fraction), StageLog())

    split(0.2)
    before = snapshot(Path("data/partitions"))
    with pytest.raises(PipelineError, match="ledger publish p") as refused:
        split(0.6)
    with pytest.raises(PipelineError, match="an earlier split made public"):
        split(0.2, salt="other")
    assert snapshot(Path("data/partitions")) == before
    (word,) = re.findall(r"ledger publish (p\w{8})`,", str(refused.value))
    monkeypatch.setattr("primorl.data.identity.membership._SALT", b"7:primorl")
    with pytest.raises(PipelineError, match="ledger publish p"):
        confirm(drawn(0.9), word)  # the twin: a word of other people
    confirm(drawn(0.6), word)
    assert snapshot(Path("data/partitions")) == before
    split(0.6)
    assert snapshot(Path("data/partitions")) != before
