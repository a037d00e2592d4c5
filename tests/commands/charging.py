"""A project with partitions whose models name charges, for the tests of what a ledger lost."""

from pathlib import Path

import pytest
import yaml

from primorl.base.files import write_json
from primorl.commands import main as cli
from primorl.config.params import Params
from primorl.data.storage.schema import Manifest
from primorl.privacy.accounting.epsilon import Training, event_to_json
from primorl.privacy.ledger.history import Version
from primorl.work.data import open_to_charge, read_version
from tests.data.builders import episode
from tests.pipeline.training_project import write_partitions
from tests.privacy.ledger.ledgers import DELTA, request
from tests.projects import project_settings, write_settings

EVENT = Training(0.5, 4.0, 3).event


def settings(budget: float | None = None, url: str | None = None) -> Params:
    """Write the settings of a project in the working directory."""
    raw = project_settings()
    raw["ledger"]["url"] = url
    raw["privacy"]["budget"] = {"epsilon": budget}
    raw["privacy"]["delta"] = DELTA
    return write_settings(raw)


def edit(file: str, **changes: object) -> None:
    content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    for key, value in changes.items():
        content[key] = content[key] | value if isinstance(value, dict) else value
    Path(file).write_text(yaml.safe_dump(content), encoding="utf-8")


def partitioned() -> None:
    write_partitions([episode(5, i) for i in range(6)], [episode(5, 100 + i) for i in range(2)])


def data() -> Version:
    return read_version(Manifest.load(Path("data/partitions/manifest.json")))


def charged(params: Params, units: Version | None = None, name: str = "dynamics") -> str:
    """Charge for a model, and leave its statement; return the charge's id."""
    units = units or data()
    ledger = open_to_charge(params)
    charge = ledger.reserve(request(units, EVENT), None)
    ledger.commit(charge.id)
    account = ledger.account(units)
    statement = {"charge": charge.id, "epsilon": charge.epsilon, "event": event_to_json(EVENT)}
    statement |= {"unit": units.unit, "units": units.units, "delta": DELTA}
    statement["dataset_fingerprint"] = units.fingerprint
    statement["spent_on_dataset"] = {
        "epsilon": account.epsilon(DELTA),
        "charges": len(account.entries),
        "delta": DELTA,
    }
    write_json(Path("models") / name / "privacy.json", statement)
    return charge.id


def primorl(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main(list(words))
    told = capsys.readouterr()
    return status, told.out, told.err
