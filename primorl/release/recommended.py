"""Which policy a bundle holds: the recommended one, which may be the clone of the behaviour, or one that was named."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean

from primorl.evaluation.private.results import MEAN_RETURN, PrivateEvaluation
from primorl.evaluation.recommendation import Released
from primorl.evaluation.summary import Summary
from primorl.policy.behaviour import BehaviourConfig
from primorl.privacy.ledger.ledger import Charge
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256
from primorl.project.paths import BEHAVIOUR, MODELS, POLICY, SUMMARY
from primorl.release import bundle
from primorl.release.contents import CLONE, Evaluation
from primorl.setup.estimators import ROLLOUTS

CLONE_NOTE = "the mean return of the clone of today's practice in the released model, not measured: wrong where that is"


def chosen_policy(summary: Summary, answers: PrivateEvaluation, named: Released | None) -> Path:
    """The folder of the policy that leaves.

    Args:
        summary: with the recommendation.
        answers: of the private units.
        named: by the caller; None: the recommended one is taken.

    Raises:
        PipelineError: none is recommended and none is named, or the clone is wanted and nothing tells what it is worth.
    """
    advice = summary.recommendation
    if named is None and advice is not None and advice.policy is None:
        raise PipelineError(
            f"{SUMMARY}: recommendation: more data needed: {advice.reason.rstrip('.')}; to release a policy all the "
            "same, name it: --policy models/policy or --policy models/behaviour"
        )
    folder = named or (advice and advice.policy) or "models/policy"
    if folder == "models/policy":
        return POLICY
    if summary.env_id is not None or answers.answer("clone", MEAN_RETURN) is None:
        raise PipelineError(
            "--policy: found models/behaviour, allowed without an environment, where a clone was made "
            "(behaviour.target_epsilon) and the private units were asked (evaluation.private.estimators)"
        )
    return BEHAVIOUR


def clone_statement() -> Statement | None:
    """The clone's statement; None: no clone was made.

    Raises:
        PipelineError: what is in its folder is incomplete.
    """
    if not BEHAVIOUR.exists() or not BehaviourConfig.read(BEHAVIOUR).made:
        return None
    return bundle.read(MODELS, CLONE, Statement)


def made_clone(charges: Sequence[Charge], clone: Statement) -> dict[str, str]:
    """The digests of the clone's files that its charge was recorded with: of those that are here, if it made them.

    Raises:
        PipelineError: the charge is not in the ledger, or has no digests.
    """
    own = next((charge for charge in charges if charge.id == clone.charge), None)
    if own is None or not own.made:
        raise PipelineError(
            f"{MODELS / CLONE}: charge {clone.charge}: the ledger has no digests of what it made for these data; "
            "`dvc repro -f -s clone_behaviour` restores the clone for free from its checkpoint and records them"
        )
    here = {file.name: file_sha256(file) for file in sorted(BEHAVIOUR.iterdir())}
    return here if here in own.made else own.made[-1]


def quoted(summary: Summary, answers: PrivateEvaluation, source: Path) -> Evaluation:
    """What the cards quote of the summary; of several seeds the first one's own figures, as its policy leaves.

    Of the clone they quote its value in the model, which stands among the answers.

    Args:
        summary: of the run.
        answers: of the private units.
        source: folder of the policy that leaves.

    Raises:
        PipelineError: the summary lacks a figure.
    """
    found = {field.name: getattr(summary, field.name) for field in fields(Evaluation)}
    if source == BEHAVIOUR:
        value = answers.answer("clone", MEAN_RETURN)
        assert value is not None
        assert value.members is not None
        found |= {
            "policy_sha256": file_sha256(source / "policy.safetensors"),
            "model_value": fmean(value.members),
            "model_value_range": (min(value.members), max(value.members)),
            "model_value_members": len(value.members),
            "model_value_rollouts": ROLLOUTS,
            "model_value_horizon": answers.horizon,
            "model_value_note": CLONE_NOTE,
            "seeds": None,
        }
    elif summary.by_seed:
        found |= {name: value for name, value in vars(summary.by_seed[0]).items() if name in found}
    try:
        return Evaluation(**found)
    except ValueError as wrong:
        raise PipelineError(f"{SUMMARY}: {wrong}; run `dvc repro evaluate`") from None
