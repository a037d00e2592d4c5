"""Planted bugs of the policy stage near a clone."""

from tests.mutations.planted_bugs.bug import Bug

_STAGE, _PRIOR = "tests/pipeline/test_optimize_near_clone.py", "tests/policy/test_prior.py"

NEAR_CLONE = [
    Bug(
        "near-clone-undoubted",
        "policy",
        "primorl/policy/choice.py",
        "self.gains.amin(-1) - DOUBT_SHARE * self.doubts.clamp(min=0)",
        "self.gains.amin(-1)",
        "the candidate is written that goes where the model has seen nothing",
        ("tests/policy/test_choice.py",),
    ),
    Bug(
        "near-clone-likeliest-released",
        "policy",
        "primorl/policy/behaviour.py",
        "        drawn=behaviour.discrete_actions,\n",
        "",
        "the clone that leaves never does what people do seldom and in time",
        ("tests/policy/test_behaviour.py",),
    ),
    Bug(
        "near-clone-epsilon-of-the-model-alone",
        "statements",
        "pipeline/optimize_policy.py",
        "        released = released.with_clone(BEHAVIOUR)\n",
        "",
        "a policy made from model and clone states the ε of the model",
        (_STAGE,),
    ),
    Bug(
        "near-clone-joint-event-forgets-parts",
        "accounting",
        "primorl/privacy/together.py",
        "yield from event.events if isinstance(event, dp_event.ComposedDpEvent) else (event,)",
        "yield from event.events[-1:] if isinstance(event, dp_event.ComposedDpEvent) else (event,)",
        "the queries before the rounds are not counted where two releases are put together",
        ("tests/privacy/test_together.py",),
    ),
    Bug(
        "near-clone-void-of-the-clone-lost",
        "statements",
        "primorl/privacy/together.py",
        "void=_united(statement.void for statement in statements.values()),",
        "void=first.void,",
        "a clone that must not be relied on makes a policy that says nothing of it",
        ("tests/privacy/test_together.py",),
    ),
    Bug(
        "near-clone-release-believes-the-whole",
        "release",
        "primorl/release/accounted.py",
        '    if statement.event != event_to_json(joint):\n        raise PipelineError(f"{path}: event: not that of the '
        'mechanisms in the same file together")\n',
        "",
        "a bundle may state an event that leaves the clone out",
        ("tests/release/test_both.py",),
    ),
    Bug(
        "near-clone-pull-the-other-way",
        "data flow",
        "primorl/policy/sac.py",
        "pull = -normals.slope(both.action)",
        "pull = normals.slope(both.action)",
        "policies are pushed away from the clone",
        (_PRIOR,),
    ),
    Bug(
        "near-clone-boldest-member-decides",
        "data flow",
        "primorl/policy/choice.py",
        "self.gains.amin(-1)",
        "self.gains.amax(-1)",
        "the candidate is chosen by the member that likes it best",
        ("tests/policy/test_choice.py",),
    ),
    Bug(
        "near-clone-hidden-clone-uncounted",
        "release",
        "primorl/release/pages.py",
        "    counted = counted_clone(clone, ledger)\n",
        "    counted = clone\n",
        "a bundle whose clone was taken out promises less",
        ("tests/release/test_both.py",),
    ),
    Bug(
        "near-clone-choice-unsaid",
        "release",
        "primorl/release/both.py",
        "    if evaluation.recommendation is None or answers is None:\n        return statement\n",
        "    return statement\n",
        "the policy's statement does not say that private answers chose it",
        ("tests/release/test_recommended.py",),
    ),
]
