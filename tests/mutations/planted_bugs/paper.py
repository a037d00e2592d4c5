"""Planted bugs of the paper's tables: rows that are lost or mixed up, and statistics that have a wrong name."""

from tests.mutations.planted_bugs.bug import Bug

_FOLDER, _TESTS = "benchmarks/quality/paper", ("tests/benchmarks/test_paper.py",)

PAPER = [
    Bug(
        "paper-oldest-row-wins",
        "paper",
        f"{_FOLDER}/rows.py",
        "_age(row) > _age(newest[key])",
        "_age(row) < _age(newest[key])",
        "of two rows of one trial the older one stays",
        _TESTS,
    ),
    Bug(
        "paper-order-decides",
        "paper",
        f"{_FOLDER}/rows.py",
        "if key not in newest or _age(row) > _age(newest[key]):",
        "if True:",
        "the row that is read last wins, so the order of merging decides",
        _TESTS,
    ),
    Bug(
        "paper-tuning-is-a-result",
        "paper",
        f"{_FOLDER}/sheets.py",
        "        if key in planned:",
        "        if key in planned or True:",
        "runs with settings that no table has are shown as its results",
        _TESTS,
    ),
    Bug(
        "paper-mean-for-iqm",
        "paper",
        f"{_FOLDER}/statistics.py",
        "np.concatenate(tasks, axis=-1), 0.25, axis=axis",
        "np.concatenate(tasks, axis=-1), 0.0, axis=axis",
        "the mean is stated as the interquartile mean",
        _TESTS,
    ),
    Bug(
        "paper-best-epoch-as-final",
        "paper",
        f"{_FOLDER}/rows.py",
        'final, curve = summary.get("return_mean"), content["curve"]',
        'final, curve = max(content["curve"], default=None), content["curve"]',
        "the best epoch's return is stated as the final policy's",
        _TESTS,
    ),
]
