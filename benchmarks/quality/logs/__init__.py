"""A zoo of logs whose truth is known: files and entries as a stranger would bring them, and hidden simulators."""

from benchmarks.quality.logs.care import Anticoagulant, Insulin, Treatment, Triage
from benchmarks.quality.logs.control import Boat, Building, Swing
from benchmarks.quality.logs.heterogeneous import Lending, Messages, Relapse, Titration
from benchmarks.quality.logs.icu import Icu
from benchmarks.quality.logs.linear import Tracking, Visits, Wide
from benchmarks.quality.logs.log import Log
from benchmarks.quality.logs.operations import Desk, Inventory, Machine, Pricing
from benchmarks.quality.logs.people import Lessons, Recommendation, Training

_ALL: tuple[Log, ...] = (
    Visits(),
    Swing(),
    Insulin(),
    Inventory(),
    Desk(),
    Treatment(),
    Recommendation(),
    Lessons(),
    Triage(),
    Anticoagulant(),
    Machine(),
    Wide(),
    Tracking(),
    Training(),
    Pricing(),
    Building(),
    Boat(),
    Titration(),
    Messages(),
    Relapse(),
    Lending(),
    Icu(),
)
LOGS: dict[str, Log] = {log.name: log for log in _ALL}
