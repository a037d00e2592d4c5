"""Planted bugs of the recommendation and of what it is made from."""

from tests.mutations.planted_bugs.bug import Bug

_RULE, _SURVIVAL = "tests/evaluation/test_recommendation.py", "tests/evaluation/test_survival.py"
_RECOMMENDED = "tests/release/test_recommended.py"

RECOMMENDATION = (
    Bug(
        "recommendation-without-misfit",
        "evaluation",
        "primorl/evaluation/recommendation.py",
        "margin = MISFIT_SHARE * misfit + ",
        "margin = ",
        "a gain that the model's known error explains sends a policy into a trial",
        (_RULE,),
    ),
    Bug(
        "recommendation-by-the-best-member",
        "evaluation",
        "primorl/evaluation/recommendation.py",
        "min(clone.gains), min(clone.policy) - behaviour.high",
        "max(clone.gains), min(clone.policy) - behaviour.high",
        "the member that likes the policy best decides",
        (_RULE,),
    ),
    Bug(
        "recommendation-without-doubt",
        "evaluation",
        "primorl/evaluation/recommendation.py",
        "DOUBT_SHARE * max(0.0, clone.doubt)",
        "0.0",
        "a gain where the model has seen nothing sends a policy into a trial",
        (_RULE,),
    ),
    Bug(
        "recommendation-of-a-disbelieved-model",
        "evaluation",
        "primorl/evaluation/recommendation.py",
        "    if not believed:\n",
        "    if False:\n",
        "a model that the check calls wrong recommends a trial",
        (_RULE,),
    ),
    Bug(
        "survival-counts-terminations",
        "evaluation",
        "primorl/evaluation/survival.py",
        "self.weight.where(~self.terminated, 0.0)",
        "self.weight",
        "a termination ends a rollout twice: by the model and by S(t)",
        (_SURVIVAL,),
    ),
    Bug(
        "survival-left-out-of-corrections",
        "evaluation",
        "primorl/evaluation/private/problem.py",
        "        return goes_on * self.chance_of_next(step)\n",
        "        return goes_on * torch.ones_like(step, dtype=torch.float64)\n",
        "corrections by the data are towards the value of whole rollouts, which nobody in the log had",
        (_SURVIVAL,),
    ),
    Bug(
        "guarantee-without-the-clone",
        "release",
        "primorl/release/guaranteed.py",
        "    own = [*([] if clone is None else [clone]), ",
        "    own = [",
        "the ε on the card leaves out the clone that the policy was compared with, or is",
        (_RECOMMENDED,),
    ),
    Bug(
        "release-clone-unbound",
        "release",
        "primorl/release/provenance.py",
        "        if file_sha256(folder / name) != made.get(own):\n",
        "        if False:\n",
        "any clone, and any statement of one, is in a bundle",
        ("tests/release/test_both.py",),
    ),
)
