"""Which process did something, and whether it is still there."""

import psutil

from primorl.project.files import HOST


def mark(process: psutil.Process) -> str:
    """A process by machine, number and start time. Numbers are used again, so a number alone is not enough."""
    return f"{HOST}:{process.pid}:{process.create_time():.2f}"


def is_alive(known: str) -> bool:
    """Whether the process with a mark runs on this machine."""
    try:
        return mark(psutil.Process(int(known.split(":")[1]))) == known
    except (psutil.Error, ValueError):
        return False
