"""What a stage took of its machine."""

import resource
import sys

from primorl.project.logs import Log

_READ_PRIVATE = {"collect", "ingest", "partition", "train_model", "clone_behaviour", "evaluate_private", "online"}
"""Stages whose memory tells how many rows a cohort or the data had; it is not logged."""


def log_usage(run: Log, stage: str) -> None:
    """Log the time on processors of this process and of those that it waited for, and the most memory.

    Args:
        run: of the stage.
        stage: its name. One that reads private rows has its memory left out.
    """
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    unit = 2**20 if sys.platform == "darwin" else 2**10  # of ru_maxrss: bytes there, KiB elsewhere
    run.metric("system.cpu_seconds", sum(each.ru_utime + each.ru_stime for each in (own, others)))
    if stage in _READ_PRIVATE:
        return
    run.metric("system.max_memory_mib", max(own.ru_maxrss, others.ru_maxrss) / unit)
    torch = sys.modules.get("torch")  # a stage without it used no GPU
    if torch is not None and torch.cuda.is_available():
        run.metric("system.max_gpu_memory_mib", torch.cuda.max_memory_allocated() / 2**20)
