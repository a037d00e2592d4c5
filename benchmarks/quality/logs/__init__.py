"""Logs whose truth is known: files and entries as a stranger would bring them, and hidden
simulators.
"""

from benchmarks.quality.logs.icu import Icu
from benchmarks.quality.logs.log import Log
from benchmarks.quality.logs.outcomes import Lung, Sepsis, Ward
from benchmarks.quality.logs.simulators import Swing, Titration, Treatment, Visits

LOGS: dict[str, Log] = {
    log.name: log
    for log in (Visits(), Swing(), Treatment(), Titration(), Icu(), Sepsis(), Lung(), Ward())
}
