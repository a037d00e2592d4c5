"""The check of ``private-evaluation.json`` in a bundle: each answer has a statement, each statement a charge."""

import math
import re
from itertools import pairwise
from pathlib import Path

from primorl.evaluation.private.results import Answer, Histogram, PrivateEvaluation
from primorl.evaluation.recommendation import of_answers
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.release.accounted import check_account, check_charge, check_statement, given
from primorl.release.contents import ANSWERS, CLONE, EVALUATION, LEDGER, MODEL, Evaluation, LedgerStatement
from primorl.setup import estimators as _estimators  # noqa: F401 - registers their queries

_NAME = re.compile("[a-z][a-z0-9_]{0,39}")
_SHARED = ("unit", "units", "neighboring_relation", "dataset_fingerprint", "public_assumptions")
_ROUNDING = 1e-6  # of the sum of a histogram's shares


def check_answers(
    folder: Path, answers: PrivateEvaluation, statement: Statement, ledger: LedgerStatement, evaluation: Evaluation
) -> None:
    """Check that the answers agree with themselves and with the other files, and account their statements again.

    Args:
        folder: of the bundle.
        answers: ``private-evaluation.json``.
        statement: of the model, which was checked.
        ledger: every record of which was checked.
        evaluation: ``evaluation.json``.

    Raises:
        PipelineError: one line; names the key.
    """
    path = folder / ANSWERS
    if not answers.statements or answers.total is None:
        raise PipelineError(f"{path}: statements: found none: nothing was asked, so it does not belong in a bundle")
    _check_subject(path, answers, statement, evaluation)
    if not all(map(_NAME.fullmatch, _named(answers) | set(answers.statements))):
        raise PipelineError(f"{path}: estimator: found another name than up to 40 lower-case letters, digits and _")
    for number, answer in enumerate(answers.estimates):
        _check_answer(path, f"estimates.{number}", answer, answers.statements.get(answer.estimator))
    for number, histogram in enumerate(answers.histograms):
        _check_histogram(path, f"histograms.{number}", histogram, priced=histogram.estimator in answers.statements)
    if answers.verdict is not None and not any(answer.of == "model" for answer in answers.estimates):
        raise PipelineError(f"{path}: verdict: found one without an answer about the model")
    for name, own in answers.statements.items():
        _check_statement(folder, name, own, answers, statement, ledger)
    check_account(path, ledger, next(iter(answers.statements.values())))


def check_clone(folder: Path, clone: Statement, model: Statement, ledger: LedgerStatement) -> None:
    """Check the clone's statement and its charge.

    Args:
        folder: of the bundle.
        clone: its statement.
        model: the model's, which was checked.
        ledger: every record of which was checked.

    Raises:
        PipelineError: one line; names the key.
    """
    path = folder / CLONE
    for key in (*_SHARED, "private"):
        if getattr(clone, key) != getattr(model, key):
            raise PipelineError(f"{path}: {key}: differs from {MODEL[2]}, so it is about other data")
    if clone.charge == model.charge:
        raise PipelineError(f"{path}: charge: found a charge that paid for something else")
    if given(path, "spent_on_dataset", clone.spent_on_dataset).delta != ledger.delta:
        raise PipelineError(f"{path}: spent_on_dataset: delta: differs from {LEDGER}; run `dvc repro`")
    check_statement(path, clone)
    check_charge(folder / LEDGER, ledger, path, clone)
    check_account(path, ledger, clone)


def check_recommendation(folder: Path, evaluation: Evaluation, answers: PrivateEvaluation | None) -> None:
    """Check that a recommendation repeats the answers' figures, and names the policy that its answer means.

    Raises:
        PipelineError: one line; names the key.
    """
    said = evaluation.recommendation
    if said is None:
        return
    path = folder / f"{EVALUATION}: recommendation"
    if said.policy != {"trial": "models/policy", "keep": "models/behaviour", "more_data": None}[said.answer]:
        raise PipelineError(f"{path}: policy: not the one that {said.answer} means")
    found = None if answers is None else of_answers(answers, None)
    for key in ("gain", "margin", "misfit"):
        if getattr(said, key) != (None if found is None else getattr(found, key)):
            raise PipelineError(f"{path}: {key}: not what the answers in {ANSWERS} come to")
    if found is not None and said.answer == "trial" and found.answer != "trial":
        raise PipelineError(f"{path}: answer: found trial, which the answers in {ANSWERS} do not allow")


def _named(answers: PrivateEvaluation) -> set[str]:
    """Names of the estimators that said something."""
    return {each.estimator for each in answers.estimates} | {each.estimator for each in answers.histograms}


def _check_subject(path: Path, answers: PrivateEvaluation, statement: Statement, evaluation: Evaluation) -> None:
    """Data, unit, K and horizon are those of the other files."""
    expected = {"dataset": evaluation.dataset, "unit": statement.unit, "units": statement.units}
    if evaluation.model_value_horizon is not None:
        expected["horizon"] = evaluation.model_value_horizon
    for key, value in expected.items():
        if getattr(answers, key) != value:
            raise PipelineError(f"{path}: {key}: differs from the other files of the bundle, so it is about other data")


def _check_answer(path: Path, key: str, answer: Answer, statement: Statement | None) -> None:
    """Its price is that of its estimator's statement; without one it is free. Its value lies in its interval."""
    price = (None, None) if statement is None else (statement.epsilon, statement.delta)
    if (answer.epsilon, answer.delta) != price:
        raise PipelineError(f"{path}: {key}: epsilon, delta: not those of the statement of {answer.estimator}")
    if answer.of in ("behaviour", "model") and statement is None:
        raise PipelineError(f"{path}: {key}: {answer.of}: found an answer of the private units without a statement")
    if answer.ci95 is not None and not answer.ci95[0] <= answer.value <= answer.ci95[1]:
        raise PipelineError(f"{path}: {key}: ci95: the value is not in its interval; swapped?")


def _check_histogram(path: Path, key: str, histogram: Histogram, *, priced: bool) -> None:
    edges, shares = histogram.edges, histogram.shares
    if not priced:
        raise PipelineError(f"{path}: {key}: found shares of the private units without a statement")
    ascending = all(low < high for low, high in pairwise(edges))
    if len(edges) != len(shares) + 1 or not shares or not ascending:
        raise PipelineError(f"{path}: {key}: edges: allowed is one more than shares, ascending")
    if min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=_ROUNDING):
        raise PipelineError(f"{path}: {key}: shares: allowed are shares that are not negative, one in all")


def _check_statement(
    folder: Path,
    name: str,
    own: Statement,
    answers: PrivateEvaluation,
    model: Statement,
    ledger: LedgerStatement,
) -> None:
    path = folder / f"{ANSWERS}: statements.{name}"
    if not own.private:
        raise PipelineError(f"{path}: private: found false, allowed is true: private units answer through noise only")
    if name not in _named(answers):
        raise PipelineError(f"{path}: found a charge without an answer")
    for key in _SHARED:
        if getattr(own, key) != getattr(model, key):
            raise PipelineError(f"{path}: {key}: differs from {MODEL[2]}, so it is about other data")
    if own.spent_on_dataset != answers.total:
        raise PipelineError(f"{path}: spent_on_dataset: differs from total")
    if given(path, "spent_on_dataset", own.spent_on_dataset).delta != ledger.delta:
        raise PipelineError(f"{path}: spent_on_dataset: delta: differs from {LEDGER}; run `dvc repro`")
    if own.charge == model.charge or sum(own.charge == each.charge for each in answers.statements.values()) > 1:
        raise PipelineError(f"{path}: charge: found a charge that paid for something else")
    check_statement(path, own)
    check_charge(folder / LEDGER, ledger, path, own)
