"""What was lost or exchanged stops `train_model` before it charges, and the advice of each refusal works."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import ingest, optimize_mopo, partition, train_model
from primorl.commands import main as cli
from primorl.config.params import Params
from primorl.privacy.ledger.ledger import Ledger
from primorl.project.errors import PipelineError
from tests.pipeline.fakes import FakeRun
from tests.pipeline.training_project import charged, trained, watch_private, with_changes
from tests.trajectories.builders import episodes, write_raw

MANIFEST, PUBLIC_UNITS = Path("data/partitions/manifest.json"), Path("data/partitions/public_units.bin")
REMAKE = "`dvc repro --force --single-item ingest partition`"


@pytest.fixture
def whole(small: Params) -> Params:
    write_raw(Path("data/raw"), episodes(12))
    chosen = with_changes(small)
    remake(chosen)
    return chosen


def remake(params: Params) -> None:
    ingest.body(params, FakeRun())
    partition.body(params, FakeRun())


def nothing_happens(monkeypatch: pytest.MonkeyPatch, params: Params, says: str) -> str:
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "reserve", lambda *_: pytest.fail("a charge was asked for"))
        watch_private(patch, lambda: pytest.fail("private data was opened"))
        baseline = with_changes(params, dynamics={"variant": "mopo"})
        patch.setattr(optimize_mopo.Released, "read", lambda *_, **__: None)
        patch.setattr(optimize_mopo.GaussianEnsemble, "load", lambda *_: None)
        patch.setattr(optimize_mopo, "PessimisticModel", lambda *_, **__: None)
        found = []
        for run in (
            lambda: train_model.body(params, FakeRun()),
            lambda: train_model.body(baseline, FakeRun()),
            lambda: optimize_mopo.body(baseline, FakeRun()),
        ):
            with pytest.raises(PipelineError, match=says) as refused:
                run()
            found.append(str(refused.value))
    assert "\n" not in found[0]
    return found[0]


def test_partitions_of_another_secret_are_refused_before_a_charge(
    whole: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(".primorl/secret").write_bytes(b"n" * 32)
    said = nothing_happens(monkeypatch, whole, "secret_check: made under another secret than")
    assert REMAKE in said
    assert not Path(".primorl/ledger.db").exists()
    remake(whole)
    trained(whole)
    assert len(charged(whole)) == 1


def swapped() -> None:
    content = bytearray(PUBLIC_UNITS.read_bytes())
    content[0] ^= 1
    PUBLIC_UNITS.write_bytes(bytes(content))


def emptied() -> None:
    PUBLIC_UNITS.write_bytes(b"\0" * len(PUBLIC_UNITS.read_bytes()))


def test_public_units_are_verified_by_content(whole: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = PUBLIC_UNITS.read_bytes()
    PUBLIC_UNITS.write_bytes(b"\0" * len(sound))  # as many as there are, of nobody
    said = nothing_happens(monkeypatch, whole, "public_units.bin: not of the units in data/partitions/public")
    assert REMAKE in said
    remake(whole)
    assert PUBLIC_UNITS.read_bytes() == sound
    trained(whole)
    assert len(charged(whole)) == 1


def test_a_deleted_state_folder_charges_nobody_until_it_is_repaired(
    whole: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(whole)
    (charge,) = charged(whole)
    shutil.rmtree(".primorl")
    again = replace(whole, seed=1)
    said = nothing_happens(monkeypatch, again, r"secret: not there, and data/partitions was made under it")
    assert "`primorl ledger repair`" in said
    assert REMAKE in said
    assert not Path(".primorl").exists(), "no new secret is made"
    remake(again)
    said = nothing_happens(monkeypatch, again, f"models/dynamics/privacy.json: charge {charge.id} is not in the ledger")
    assert "`primorl ledger repair`" in said
    assert cli.main(["ledger", "repair"]) == 1
    assert "run `primorl ledger repair --accept-loss`" in capsys.readouterr().err
    assert cli.main(["ledger", "repair", "--accept-loss"]) == 0
    assert f"recorded again: charge {charge.id}" in capsys.readouterr().out
    trained(again)
    assert charged(again)[0].id == charge.id
    assert len(charged(again)) == 2
