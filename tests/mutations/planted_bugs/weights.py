"""Planted bugs of evaluation with importance weights: bounds, what is charged, and what is clipped."""

from tests.mutations.planted_bugs.bug import Bug

_IMPORTANCE = "tests/evaluation/private/test_importance.py"
_ROBUST = "tests/evaluation/private/test_doubly_robust.py"
_FIT = "tests/evaluation/private/test_behaviour_model.py"
_WEIGHTING = "primorl/evaluation/private/weighting.py"

WEIGHTS = [
    Bug(
        "weights-not-cut",
        "evaluation",
        _WEIGHTING,
        "logs.exp().clamp(1.0, self.largest_weight)",
        "logs.exp()",
        "the product of a few small probabilities is beyond the bound",
        (_IMPORTANCE,),
    ),
    Bug(
        "weights-probability-not-held",
        "evaluation",
        _WEIGHTING,
        "probability.nan_to_num(nan=1.0).clamp(1 / self.largest_weight, 1.0)",
        "probability",
        "a log that names no number as a probability makes a contribution that is none",
        (_IMPORTANCE, _ROBUST),
    ),
    Bug(
        "weights-over-the-trajectory-before",
        "evaluation",
        _WEIGHTING,
        "torch.minimum(step, torch.full_like(step, lookback - 1))",
        "torch.minimum(place, torch.full_like(step, lookback - 1))",
        "a unit's second trajectory inherits the weight of its first",
        (_IMPORTANCE, _ROBUST),
    ),
    Bug(
        "weights-spread-not-paid",
        "evaluation",
        _WEIGHTING,
        "noise_multiplier(left * math.sqrt(1 - _SPREAD_SHARE))",
        "noise_multiplier(left)",
        "the second release costs more than was reserved",
        (_IMPORTANCE,),
    ),
    Bug(
        "doubly-robust-correction-not-held",
        "evaluation",
        "primorl/evaluation/private/doubly_robust.py",
        "((corrected - middle) / half).clamp(-1, 1)",
        "(corrected - middle) / half",
        "a contribution is beyond the norm that it states",
        (_ROBUST,),
    ),
    Bug(
        "behaviour-gradient-of-padding",
        "evaluation",
        "primorl/evaluation/private/behaviour_model.py",
        "share = episodes.own / episodes.own.sum(1, keepdim=True)",
        "share = torch.ones_like(episodes.own) / episodes.own.sum(1, keepdim=True)",
        "the gradient of a unit depends on how long others of its batch are",
        (_FIT,),
    ),
]
