"""Planted bugs of the accounting and the statements."""

from tests.mutations.planted_bugs.bug import Bug

_ACCOUNTING = "tests/privacy/accounting/test_epsilon.py"
_CANARIES = "tests/privacy/audits/test_canaries.py"
_PLAN = "tests/privacy/mechanism/test_plan.py"
_STAGE = "tests/pipeline/test_train_model.py"
_PAID = "tests/pipeline/test_train_model_payment.py"

ACCOUNTING = [
    Bug(
        "accounting-half-q",
        "accounting",
        "primorl/privacy/accounting/epsilon.py",
        "dp_event.PoissonSampledDpEvent(self.sampling_probability, gaussian)",
        "dp_event.PoissonSampledDpEvent(self.sampling_probability / 2, gaussian)",
        "the accountant is told q/2",
        (_ACCOUNTING, _CANARIES),
    ),
    Bug(
        "accounting-one-round-less",
        "accounting",
        "primorl/privacy/accounting/epsilon.py",
        "dp_event.SelfComposedDpEvent(sampled, self.rounds)",
        "dp_event.SelfComposedDpEvent(sampled, max(1, self.rounds - 1))",
        "the accountant is told T - 1",
        (_ACCOUNTING,),
    ),
    Bug(
        "accounting-wrong-delta",
        "accounting",
        "primorl/privacy/accounting/epsilon.py",
        "_accountant(event, guess, rounds, neighbours).get_epsilon(delta)",
        "_accountant(event, guess, rounds, neighbours).get_epsilon(10 * delta)",
        "ε is read at ten times the stated δ",
        (_ACCOUNTING,),
    ),
    Bug(
        "accounting-swapped",
        "accounting",
        "primorl/privacy/accounting/epsilon.py",
        "return Spent(min(epsilon, pure), stated, delta)",
        "return Spent(loose, min(epsilon, pure), delta)",
        "RDP's ε is stated as PLD's and the other way round",
        (_ACCOUNTING, _PLAN),
    ),
    Bug(
        "accounting-other-relation",
        "accounting",
        "primorl/privacy/accounting/epsilon.py",
        "NeighboringRelation.REPLACE_SPECIAL\n",
        "NeighboringRelation.REPLACE_ONE\n",
        "ε of another neighbouring relation than is named",
        (_ACCOUNTING,),
    ),
    Bug(
        "accounting-more-noise-than-added",
        "accounting",
        "primorl/privacy/mechanism/plan.py",
        "return accounting.Training(self.sampling_probability, self.noise_multiplier, rounds, queries)",
        "return accounting.Training(self.sampling_probability, 2 * self.noise_multiplier, rounds, queries)",
        "the stated ε is that of twice the noise",
        (_PLAN, _CANARIES),
    ),
    Bug(
        "accounting-event-of-another-plan",
        "accounting",
        "primorl/privacy/mechanism/plan.py",
        "return self._accounted(self.rounds).event",
        "return self._accounted(1).event",
        "the event that is stated and charged is not the one ε is of",
        (
            _STAGE,
            _PAID,
        ),
    ),
]

STATEMENTS = [
    Bug(
        "statement-void-omitted",
        "statement",
        "primorl/privacy/mechanism/plan.py",
        "return [reason for reason, holds in reasons.items() if holds]",
        "return []",
        "reasons not to rely on it are left out",
        (_PLAN,),
    ),
    Bug(
        "statement-always-private",
        "statement",
        "primorl/privacy/mechanism/plan.py",
        "private=self.is_private,",
        "private=True,",
        "says private where nothing is guaranteed",
        (_PLAN,),
    ),
    Bug(
        "statement-larger-delta",
        "statement",
        "primorl/privacy/mechanism/plan.py",
        "delta=self.delta,",
        "delta=self.delta / 10,",
        "states a δ below the one ε is of",
        (
            _STAGE,
            _PAID,
        ),
    ),
]
