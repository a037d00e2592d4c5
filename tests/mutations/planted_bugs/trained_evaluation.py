"""Planted bugs of private evaluation by least squares and fitted Q: rows of other units, padding, intervals."""

from tests.mutations.planted_bugs.bug import Bug

_TESTS = "tests/evaluation/private/test_trained.py"
_PRIVATE = "primorl/evaluation/private/"

TRAINED_EVALUATION = [
    Bug(
        "evaluation-rows-of-others",
        "evaluation",
        _PRIVATE + "rows.py",
        "return weights / weights.sum(1, keepdim=True).clamp(min=1e-300)",
        "return weights / weights.sum(1, keepdim=True).mean(0, keepdim=True)",
        "how much a unit's rows count depends on the other units of the batch",
        (_TESTS,),
    ),
    Bug(
        "evaluation-padding-counts",
        "evaluation",
        _PRIVATE + "rows.py",
        "return _taken(episodes, places, number < lengths)",
        "return _taken(episodes, places, number < rows)",
        "padding counts as rows of the unit",
        (_TESTS,),
    ),
    Bug(
        "evaluation-centred-gradients",
        "evaluation",
        _PRIVATE + "networks.py",
        "parts.append(rows.sum(2).transpose(0, 1).flatten(1))",
        "parts.append((rows.sum(2) - rows.sum(2).mean(1, keepdim=True)).transpose(0, 1).flatten(1))",
        "a unit's gradient is centred on those of its batch",
        (_TESTS,),
    ),
    Bug(
        "evaluation-interval-without-noise",
        "evaluation",
        _PRIVATE + "first_states.py",
        "noise = (query.standard_deviation / units) ** 2",
        "noise = 0.0",
        "the interval of a mean leaves the noise out",
        (_TESTS,),
    ),
    Bug(
        "evaluation-least-squares-transposed",
        "evaluation",
        _PRIVATE + "lstd.py",
        "eta = torch.linalg.solve(matrix @ matrix.T + penalty, matrix @ start)",
        "eta = torch.linalg.solve(matrix @ matrix.T + penalty, matrix.T @ start)",
        "the weights of the correction solve another system",
        (_TESTS,),
    ),
]
