"""Planted bugs of collecting that goes on after a kill: episodes that come twice, a learner that forgot."""

from tests.mutations.planted_bugs.bug import Bug

_COLLECTION = "primorl/trajectories/sources/replay/collection.py"
_RESUMPTION = "primorl/trajectories/sources/replay/resumption.py"
_TESTS = ("tests/trajectories/sources/test_resumption.py",)

COLLECTING = [
    Bug(
        "collect-first-episodes-again",
        "data flow",
        _COLLECTION,
        "        seed = int(resumed.generate_state(1)[0]) % _RESUMED\n",
        "",
        "a run that goes on begins with the starts that it began with, so episodes are in the dataset twice",
        _TESTS,
    ),
    Bug(
        "collect-empty-buffer",
        "data flow",
        _RESUMPTION,
        "getattr(buffer, name)[: len(rows)] = rows.numpy()",
        "getattr(buffer, name)[: len(rows)] = 0",
        "a learner goes on with an empty replay buffer",
        _TESTS,
    ),
    Bug(
        "collect-lost-learner-s-episodes",
        "data flow",
        _RESUMPTION,
        "if int(file.stem) >= self._written:",
        "if False:",
        "episodes after the checkpoint stay, and more are recorded in their place",
        _TESTS,
    ),
    Bug(
        "collect-options-ignored",
        "data flow",
        _RESUMPTION,
        "[environment, asdict(options), ",
        "[environment, ",
        "episodes of other options end up in the dataset",
        _TESTS,
    ),
    Bug(
        "collect-stopped-is-finished",
        "data flow",
        _COLLECTION,
        "        if len(kept) < share:\n            return\n",
        "",
        "a run that another one's error ended is taken for a finished one",
        _TESTS,
    ),
]
