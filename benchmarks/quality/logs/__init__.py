"""Logs whose truth is known: files and entries as a stranger would bring them, and hidden
simulators.
"""

from benchmarks.quality.logs.adversarial import Ahead, Edge, Genotypes, Responders, Window
from benchmarks.quality.logs.icu import Icu, Unseen
from benchmarks.quality.logs.log import Log
from benchmarks.quality.logs.operations import Fleet, Inventory, Messages, Pricing
from benchmarks.quality.logs.outcomes import Lung, Sepsis, Ward
from benchmarks.quality.logs.simulators import Clinic, Swing, Titration, Treatment, Visits

_ALL: tuple[Log, ...] = (
    Clinic(),
    Fleet(),
    Icu(),
    Inventory(),
    Lung(),
    Messages(),
    Pricing(),
    Sepsis(),
    Swing(),
    Titration(),
    Treatment(),
    Unseen(),
    Visits(),
    Ward(),
)

LOGS: dict[str, Log] = {log.name: log for log in _ALL}

_MADE_TO_REFUTE: tuple[Log, ...] = (Ahead(), Edge(), Genotypes(), Responders(), Window())

ADVERSARIAL: dict[str, Log] = {log.name: log for log in _MADE_TO_REFUTE}
