"""Planted bugs of online updates of a language model: prompts that see each other, or have no bound."""

from tests.mutations.planted_bugs.bug import Bug

_ANSWERS, _UPDATES = "primorl/online/language/answers.py", "primorl/online/language/updates.py"
_TESTS = ("tests/online/language/test_updates.py",)

LANGUAGE = [
    Bug(
        "language-baseline-of-the-cohort",
        "language",
        _ANSWERS,
        "(rewards - rewards.mean(1, keepdim=True))",
        "(rewards - rewards.mean())",
        "a prompt's advantages depend on other users' rewards",
        _TESTS,
    ),
    Bug(
        "language-padding-has-a-gradient",
        "language",
        _UPDATES,
        "torch.where(answered, (logs - before).exp(), 0.0).sum(-1)",
        "(logs - before).exp().sum(-1)",
        "a user who is not there contributes, and tokens after the end count",
        _TESTS,
    ),
    Bug(
        "language-reference-follows",
        "language",
        _UPDATES,
        "values[REFERENCE], part)",
        "values[PARAMETERS], part)",
        "the KL penalty compares the policy with itself",
        _TESTS,
    ),
]
