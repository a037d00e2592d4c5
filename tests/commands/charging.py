"""A project with partitions whose models name charges, for the tests of what a ledger lost."""

from contextlib import closing
from pathlib import Path

import pytest

from primorl.commands import main as cli
from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import training_event
from primorl.privacy.accounting.events import event_to_json
from primorl.privacy.ledger.ledger import Version
from primorl.project.files import write_json
from primorl.setup.accounts import dataset_version, project_ledger
from primorl.trajectories.storage.manifest import Manifest
from tests.privacy.ledger.ledgers import DELTA, request
from tests.projects import project_settings, write_settings

EVENT = training_event(0.5, 4.0, 3)


def settings(folder: Path, url: str | None = None) -> Params:
    folder.mkdir(exist_ok=True)
    raw = project_settings()
    raw["ledger"]["url"] = url
    raw["privacy"]["budget"] = {"epsilon": None, "delta": DELTA}
    return write_settings(raw, folder)


def data() -> Version:
    return dataset_version(Manifest.load(Path("data/partitions/manifest.json")), Path("data/partitions"))


def charged(params: Params, units: Version | None = None, name: str = "dynamics") -> str:
    """Charge for a model, and leave its statement; return the charge's id."""
    units = units or data()
    with closing(project_ledger(params)) as ledger:
        charge = ledger.reserve(request(units, EVENT), None)
        ledger.commit(charge.id)
        total = ledger.account(units).total(DELTA)
        spent, count = total.epsilon, total.charges
    statement = {
        "charge": charge.id,
        "epsilon": charge.epsilon,
        "delta": DELTA,
        "event": event_to_json(EVENT),
        "unit": units.unit,
        "units": units.units,
        "dataset_fingerprint": units.fingerprint,
        "spent_on_dataset": {
            "epsilon": spent,
            "epsilon_fixed": spent,
            "epsilon_rdp": spent,
            "delta": DELTA,
            "charges": count,
        },
    }
    write_json(Path("models") / name / "privacy.json", statement)
    return charge.id


def primorl(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main(list(words))
    told = capsys.readouterr()
    return status, told.out, told.err
