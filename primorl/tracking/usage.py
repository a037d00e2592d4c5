"""What a stage took of its machine."""

import re
import resource
import sys
from pathlib import Path

from primorl.project.logs import Log

_READ_PRIVATE = {
    *("collect", "ingest", "partition", "train_model", "clone_behaviour", "optimize_mopo", "evaluate_private", "online")
}
_PROCESS = Path("/proc/self/status")  # Linux; getrusage counts the parent's memory before the start, too


class Usage:
    """Measures a stage from here on.

    Memory tells how many rows a cohort or the data had. So it is neither logged for a stage that reads private rows,
    nor for a later stage of the same process, as in a sweep: the peak is that of the process, and what was freed may
    still be held.

    Args:
        stage: its name.
    """

    _has_read_private = False  # this process

    def __init__(self, stage: str) -> None:
        if stage in _READ_PRIVATE:
            Usage._has_read_private = True
        self._begun = _cpu_seconds()

    def log(self, run: Log) -> None:
        """Log the seconds on processors, of this process and of those that it waited for, and the most memory in MiB.

        MLflow shows metrics under ``system/`` on a page of their own.
        """
        run.metric("system/cpu_seconds", _cpu_seconds() - self._begun)
        if Usage._has_read_private:
            return
        if (memory := _most_memory()) is not None:
            run.metric("system/max_memory_mib", memory)
        torch = sys.modules.get("torch")  # a stage without it used no GPU
        if torch is not None and torch.cuda.is_available():
            run.metric("system/max_gpu_memory_mib", torch.cuda.max_memory_allocated() / 2**20)


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _most_memory() -> float | None:
    """MiB that this program held at most since it was started; None: the system does not say."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", _PROCESS.read_text() if _PROCESS.exists() else "", re.MULTILINE)
    return None if found is None else int(found[1]) / 2**10
