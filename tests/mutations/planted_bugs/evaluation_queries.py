"""Planted bugs of the queries of private evaluation: the behaviour's return and the model check."""

from tests.mutations.planted_bugs.bug import Bug

_FOLDER = "primorl/evaluation/private"
_MEANS = "tests/evaluation/private/test_noisy_means.py"
_BEHAVIOUR = "tests/evaluation/private/test_behaviour.py"
_CHECK = "tests/evaluation/private/test_model_check.py"

EVALUATION_QUERIES = [
    Bug(
        "behaviour-blocks-share-nothing",
        "private evaluation",
        f"{_FOLDER}/behaviour.py",
        "[place] * math.sqrt((1 - self.mean_share) / self.levels)",
        "[place]",
        "the histogram of a unit has a norm of its own, beyond the joint bound",
        (_BEHAVIOUR,),
    ),
    Bug(
        "behaviour-return-unbounded",
        "private evaluation",
        f"{_FOLDER}/behaviour.py",
        "x = (returns.double() / _ONE - middle / half).clamp(-1, 1)",
        "x = returns.double() / _ONE - middle / half",
        "a return may be beyond its declared bounds",
        (_BEHAVIOUR,),
    ),
    Bug(
        "query-interval-of-sampling-alone",
        "private evaluation",
        f"{_FOLDER}/noisy_means.py",
        "factor * (self.noise**2 + square / units)",
        "factor * (square / units)",
        "intervals leave the noise out",
        (_MEANS,),
    ),
    Bug(
        "query-variance-as-it-comes",
        "private evaluation",
        f"{_FOLDER}/noisy_means.py",
        "max(own + doubt, 0.0)",
        "max(own, 0.0)",
        "noise may hide the spread of the units from an interval",
        (_MEANS,),
    ),
    Bug(
        "query-units-without-a-number",
        "private evaluation",
        f"{_FOLDER}/noisy_means.py",
        "share = min(self.share, 1.0)",
        "share = max(self.share, 1.0)",
        "units that lack a number are counted as if they had it",
        (_MEANS,),
    ),
    Bug(
        "model-check-across-trajectories",
        "private evaluation",
        f"{_FOLDER}/model_check.py",
        "left = last - place + 1",
        "left = episodes.own.sum(1, keepdim=True) - place",
        "predictions run on into a unit's next trajectory",
        (_CHECK,),
    ),
    Bug(
        "model-check-norm-of-one-horizon",
        "private evaluation",
        f"{_FOLDER}/model_check.py",
        "numbers = 4 * len(kept) + sum(h > 1 for h in kept)",
        "numbers = 4",
        "the errors of all horizons together exceed the joint bound",
        (_CHECK,),
    ),
]
