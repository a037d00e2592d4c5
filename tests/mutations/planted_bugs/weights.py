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
    Bug(
        "clone-of-another-policy",
        "evaluation",
        "primorl/evaluation/private/behaviour_model.py",
        "chances = problem.asked(problem.clone, episodes.observation)",
        "chances = problem.asked(problem.policy, episodes.observation)",
        "weights take the policy's own actions for the clone's probabilities",
        (_IMPORTANCE,),
    ),
    Bug(
        "clone-not-in-the-question",
        "evaluation",
        "primorl/setup/private_evaluation.py",
        """    if "clone" in estimator.about:
""",
        """    if "clones" in estimator.about:
""",
        "weights of another clone are taken for those that were paid for",
        ("tests/setup/test_paid_answers.py",),
    ),
    Bug(
        "clone-without-guarantee-not-said",
        "evaluation",
        "primorl/setup/evaluation_files.py",
        """if "clone" in each.asked.estimator.about else []""",
        """if "clones" in each.asked.estimator.about else []""",
        "an answer whose weights are of a clone without a guarantee is stated as private",
        ("tests/pipeline/test_evaluate_private.py",),
    ),
    Bug(
        "earlier-answer-charged-again",
        "evaluation",
        "primorl/setup/private_evaluation.py",
        "    return asked.earlier if _identity(params, partitions, asked.earlier, subject) in known else asked",
        "    return asked",
        "an upgrade charges the same people again for an answer that they paid for",
        ("tests/setup/test_paid_answers.py",),
    ),
    Bug(
        "clone-log-probabilities",
        "evaluation",
        "primorl/setup/evaluation_problem.py",
        "exact.log_probabilities(observation.double()).exp()",
        "exact.log_probabilities(observation.double())",
        "weights are made of logarithms instead of probabilities",
        ("tests/policy/test_behaviour.py",),
    ),
    Bug(
        "clone-left-out-of-the-question",
        "evaluation",
        "pipeline/evaluate_private.py",
        "        clone=clone,\n",
        "",
        "a clone that was paid for is not used, and a fit is paid for beside it",
        ("tests/pipeline/test_evaluate_private.py",),
    ),
    Bug(
        "clone-asked-batch-by-batch",
        "evaluation",
        "primorl/evaluation/private/behaviour_model.py",
        "chances = problem.asked(problem.clone, episodes.observation)",
        "chances = problem.clone(episodes.observation)",
        "the rounding of one unit's weights depends on who shares its batch",
        (_IMPORTANCE,),
    ),
    Bug(
        "earlier-answer-unknown",
        "evaluation",
        "primorl/setup/estimators.py",
        'if "clone" in made.about:',
        "if False:",
        "who paid for an answer with a fitted behaviour pays again once there is a clone",
        ("tests/setup/test_paid_answers.py",),
    ),
]
