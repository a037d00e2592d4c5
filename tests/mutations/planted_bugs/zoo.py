"""Planted bugs of the zoo of logs: files, entries and hidden simulators that no longer agree."""

from tests.mutations.planted_bugs.bug import Bug

_LOG, _TESTS = "benchmarks/quality/logs/log.py", ("tests/benchmarks/test_logs.py",)

ZOO = [
    Bug(
        "zoo-last-row-has-an-outcome",
        "zoo",
        _LOG,
        'columns["reward"] = pa.array(rewards.astype(np.float32), mask=empty)',
        'columns["reward"] = pa.array(rewards.astype(np.float32))',
        "the row that only tells what was observed at the end has a reward",
        _TESTS,
    ),
    Bug(
        "zoo-ends-unsaid",
        "zoo",
        _LOG,
        "np.concatenate([step.terminated for step in steps])[order]",
        "np.zeros(len(order), bool)",
        "true terminations are not in the log",
        _TESTS,
    ),
    Bug(
        "zoo-actions-out-of-bounds",
        "zoo",
        _LOG,
        "action = self.action.kept(acting(rng, observed, state))",
        "action = acting(rng, observed, state)",
        "logged actions leave the declared bounds",
        _TESTS,
    ),
    Bug(
        "zoo-categories-shifted",
        "zoo",
        _LOG,
        "np.array(column.categories)[codes]",
        "np.array(column.categories)[codes - 1]",
        "the log names another category than the one a policy sees",
        _TESTS,
    ),
    Bug(
        "zoo-last-reward-alone",
        "zoo",
        _LOG,
        "totals[step.trajectory] += step.reward",
        "totals[step.trajectory] = step.reward",
        "a return is the last reward",
        _TESTS,
    ),
]
