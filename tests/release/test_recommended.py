"""Which policy leaves: the recommended one, and its guarantee covers the clone that it was compared with."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from primorl.release.card_answers import included
from primorl.release.card_content import _advice

from primorl.evaluation.private.results import MEAN_RETURN
from primorl.evaluation.recommendation import Recommendation
from primorl.evaluation.summary import Summary
from primorl.privacy.accounting.epsilon import Training
from primorl.project.errors import PipelineError
from primorl.project.paths import BEHAVIOUR, POLICY
from primorl.project.records import to_json
from primorl.release.build import chosen_policy
from primorl.release.bundle import CHOSEN, as_released
from primorl.release.composition import whole
from tests.evaluation.test_recommendation import ANSWERS, answer
from tests.statements import OF_TRAINING, PRIVATE


def summary(said: str | None, policy: str | None) -> Summary:
    advice = None
    if said is not None:
        advice = Recommendation(
            answer=cast(Any, said), policy=cast(Any, policy), reason="So.", gain=1.0, margin=2.0, misfit=3.0
        )
    return cast(Summary, SimpleNamespace(recommendation=advice, env_id="Pendulum-v1" if said is None else None))


def test_the_recommended_policy_leaves() -> None:
    assert chosen_policy(summary(None, None), ANSWERS, None) == POLICY
    assert chosen_policy(summary("trial", "models/policy"), ANSWERS, None) == POLICY
    assert chosen_policy(summary("keep", "models/behaviour"), ANSWERS, None) == BEHAVIOUR


def test_where_more_data_is_needed_nothing_leaves_unless_it_is_named() -> None:
    wanting = summary("more_data", None)
    with pytest.raises(PipelineError, match=r"more data needed: So; .*--policy models/policy"):
        chosen_policy(wanting, ANSWERS, None)
    assert chosen_policy(wanting, ANSWERS, "models/policy") == POLICY
    assert chosen_policy(wanting, ANSWERS, "models/behaviour") == BEHAVIOUR


def test_a_clone_whose_worth_nobody_knows_does_not_leave() -> None:
    unknown = replace(ANSWERS, estimates=(answer("behaviour", MEAN_RETURN, -80.0),))
    for found, answers in ((summary("trial", "models/policy"), unknown), (summary(None, None), ANSWERS)):
        with pytest.raises(PipelineError, match=r"--policy: found models/behaviour"):
            chosen_policy(found, answers, "models/behaviour")


def test_the_guarantee_covers_the_clone() -> None:
    """The twin: the model's own ε is less than that of model and clone."""
    assert whole(PRIVATE, None, None, 1e-5) == PRIVATE
    both = whole(PRIVATE, PRIVATE, None, 1e-5)
    alone = Training(0.1, 4.083, 150).spent(1e-5).epsilon_pld
    assert alone < both["epsilon"] < 2 * alone
    assert included(PRIVATE, None) == ", clone of the behaviour included"


def test_the_policy_s_statement_says_that_the_answers_had_a_say_in_the_choice() -> None:
    """Its ε is of the weights alone. The twin: without answers, or without a recommendation, it is what it was."""
    own, path = OF_TRAINING, Path("policy/privacy.json")
    advised, measured = cast(Any, summary("keep", "models/behaviour")), cast(Any, summary(None, None))
    told = as_released(own, advised, ANSWERS)
    assert told.public_assumptions == (*own.public_assumptions, CHOSEN)
    assert as_made(path, told, advised, ANSWERS) == own
    for evaluation, answers in ((advised, None), (measured, ANSWERS)):
        assert as_released(own, evaluation, answers) == own == as_made(path, own, evaluation, answers)
        with pytest.raises(PipelineError, match="public_assumptions"):
            as_made(path, told, evaluation, answers)
    with pytest.raises(PipelineError, match=r"policy/privacy\.json: public_assumptions: .* needed last with"):
        as_made(path, own, advised, ANSWERS)
    sections = _advice({"policy": "models/behaviour"}, {"recommendation": to_json(advised.recommendation)}, asked=True)
    assert "policy/privacy.json is of the policy's weights alone" in sections[0].points[-1]
