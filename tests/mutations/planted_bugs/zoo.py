"""Planted bugs of the zoo of logs: files, entries and hidden simulators that no longer agree."""

from tests.mutations.planted_bugs.bug import Bug

_LOG, _TESTS = "benchmarks/quality/logs/log.py", ("tests/benchmarks/test_logs.py",)
_PEERS, _PEERS_TESTS = "benchmarks/quality/logs/peers.py", ("tests/benchmarks/test_peers.py",)

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
    Bug(
        "peers-last-step-lost",
        "zoo",
        _PEERS,
        "np.repeat(np.arange(len(cut)), 1 + cut)",
        "np.repeat(np.arange(len(cut)), 1)",
        "d3rlpy gets no row for the last observation, and never sees the last reward",
        _PEERS_TESTS,
    ),
    Bug(
        "peers-terminations-are-timeouts",
        "zoo",
        _PEERS,
        "whole.ends[own].numpy() & ~terminated",
        "whole.ends[own].numpy()",
        "a true termination is followed by another step",
        _PEERS_TESTS,
    ),
    Bug(
        "peers-actions-stay-scaled",
        "zoo",
        _PEERS,
        "low + (said.reshape(len(observed), -1) + 1) / 2 * (high - low)",
        "said.reshape(len(observed), -1)",
        "a peer's actions are not scaled back to the log's bounds",
        _PEERS_TESTS,
    ),
]
