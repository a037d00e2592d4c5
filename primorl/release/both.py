"""The statement of the policy in a bundle: it counts model and clone, and says what had a say in the choice."""

from dataclasses import replace
from pathlib import Path

from primorl.evaluation.private.results import PrivateEvaluation
from primorl.privacy.statement import Statement
from primorl.privacy.together import BEFOREHAND, SHARED, mechanism
from primorl.project.errors import PipelineError
from primorl.release.accounted import check_account, check_part, check_together, find_charge
from primorl.release.contents import ANSWERS, CLONE, LEDGER, MODEL, POLICY, Evaluation, LedgerStatement

WHAT = ("models/dynamics", "models/behaviour")
CHOSEN = (
    "which policy was released: the answers of the private units had a say in it, and this ε is of the weights alone; "
    "that of the card counts the answers too"
)
"""What the policy's statement takes for granted where a recommendation was made from answers of the private units."""


def as_released(statement: Statement, evaluation: Evaluation, answers: PrivateEvaluation | None) -> Statement:
    """The policy's statement in a bundle: what it is at home, and `CHOSEN` where the answers had a say.

    Args:
        statement: of what the policy was made from.
        evaluation: ``evaluation.json``, with the recommendation.
        answers: of the private units; None: nothing was asked.
    """
    if evaluation.recommendation is None or answers is None:
        return statement
    return replace(statement, public_assumptions=(*statement.public_assumptions, CHOSEN))


def as_made(path: Path, released: Statement, evaluation: Evaluation, answers: PrivateEvaluation | None) -> Statement:
    """The inverse of `as_released`.

    Raises:
        PipelineError: the statement does not say `CHOSEN` where it should, or the other way round.
    """
    own = tuple(line for line in released.public_assumptions if line != CHOSEN)
    made = replace(released, public_assumptions=own)
    if as_released(made, evaluation, answers) != released:
        raise PipelineError(f"{path}: public_assumptions: {CHOSEN!r}: needed last with a recommendation from {ANSWERS}")
    return made


def check_policy_statement(
    folder: Path,
    policy: Statement,
    model: Statement,
    ledger: LedgerStatement,
    answers: PrivateEvaluation | None,
    *,
    clone: Statement | None,
    candidates: bool,
) -> None:
    """Check the policy's statement: the model's own, or that of model and clone together, accounted again.

    Args:
        folder: of the bundle.
        policy: what was read of the policy.
        model: what was read of the model, which was checked.
        ledger: every record of which was checked.
        answers: of the private units; None: nothing was asked.
        clone: its own statement; None: the bundle has none.
        candidates: whether the policy was chosen among candidates near a clone.

    Raises:
        PipelineError: one line; names the key.
    """
    path = folder / POLICY[2]
    if not policy.mechanisms:
        if candidates:
            raise PipelineError(f"{path}: mechanisms: found none, yet {POLICY[1]} names candidates near a clone")
        if policy != model:
            raise PipelineError(f"{path}: differs from {MODEL[2]}: the policy is not of this model")
        return
    if tuple(part.what for part in policy.mechanisms) != WHAT:
        raise PipelineError(f"{path}: mechanisms: allowed are those of {' and '.join(WHAT)}, in this order")
    own, part = policy.mechanisms
    if own != mechanism(WHAT[0], model):
        raise PipelineError(f"{path}: mechanisms.0: differs from {MODEL[2]}: the policy is not of this model")
    _check_facts(path, policy, model)
    check_part(path, 1, policy)
    others = {model.charge, *(each.charge for each in (answers.statements.values() if answers else ()))}
    if part.charge in others:
        raise PipelineError(f"{path}: mechanisms.1: charge: found a charge that paid for something else")
    find_charge(folder / LEDGER, ledger, path, part.charge, part.event, policy)
    check_account(path, ledger, policy)
    check_together(path, policy)
    if clone is None:
        raise PipelineError(f"{path}: mechanisms: found {WHAT[1]}, and the bundle has no {CLONE}; `dvc repro`")
    if part != mechanism(WHAT[1], clone):
        raise PipelineError(f"{path}: mechanisms.1: differs from {CLONE}: the policy is not of this clone")


def _check_facts(path: Path, policy: Statement, model: Statement) -> None:
    """Facts about the data are the model's, and nothing that the model's statement admits is left out."""
    for key in (*SHARED, "private", "termination", "trajectories_per_person"):
        if getattr(policy, key) != getattr(model, key):
            raise PipelineError(f"{path}: {key}: differs from {MODEL[2]}: the policy is not of this model")
    for key in ("void", "public_assumptions"):
        own = (BEFOREHAND,) if key == "public_assumptions" else ()
        if not set(getattr(policy, key)) >= {*getattr(model, key), *own}:
            raise PipelineError(f"{path}: {key}: leaves out what {MODEL[2]} says")
