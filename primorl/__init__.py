"""PriMORL: offline reinforcement learning with trajectory-level differential privacy.

The public names load what they need when they are first used, so that ``import primorl`` is quick::

    import primorl

    run = primorl.Project(".").run(epsilon=1.0)
    action = run.policy.act(observation)
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from primorl.model.ensemble import load_model
    from primorl.policy.loaded import load_policy
    from primorl.privacy.mechanism.mechanism import Mechanism
    from primorl.privacy.statement import Statement
    from primorl.project import Project

__version__ = "0.1.0"
__all__ = ["Mechanism", "Project", "Statement", "__version__", "load_model", "load_policy"]

# OpenMP reads these when torch is loaded. Threads that wait for each other spin for a fraction of a
# millisecond and then give the core back. Longer spinning (the default) gains nothing on an idle
# machine and multiplies the time on a busy one; without any, two threads are slower than one.
# GNU's OpenMP, in torch's wheels for Linux: rounds of the loop
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# LLVM's and Intel's, in torch for macOS and from conda: milliseconds
os.environ.setdefault("KMP_BLOCKTIME", "1")

# MKL reads this at its first product. Without it MKL may choose how to multiply by where matrices
# lie in memory, as it does on AMD's processors, so that the last bits of one unit's update depend
# on the units beside it; the check in primorl/engine/rounds.py then refuses to train. With it the
# best way is taken, and always the same one.
os.environ.setdefault("MKL_CBWR", "AUTO")

_HOMES = {
    "load_policy": "primorl.policy.loaded",
    "load_model": "primorl.model.ensemble",
    "Mechanism": "primorl.privacy.mechanism.mechanism",
    "Project": "primorl.project",
    "Statement": "primorl.privacy.statement",
}
_EXTRAS = {"load_model": "model", "Mechanism": "pipeline", "Project": "pipeline"}


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'primorl' has no attribute {name!r}")
    try:
        found = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as missing:
        if (missing.name or "primorl").partition(".")[0] == "primorl":
            raise
        extra = f"primorl[{_EXTRAS[name]}]" if name in _EXTRAS else "primorl"
        message = (
            f"primorl.{name} needs {missing.name}, which is not installed: `pip install '{extra}'`"
        )
        raise ImportError(message, name=missing.name) from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
