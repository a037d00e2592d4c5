"""``metrics/private_evaluation.json`` and its figure: the answers with their privacy statements."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from primorl.config.params import Params
from primorl.evaluation.figures import draw_evaluation
from primorl.evaluation.private.behaviour import Behaviour
from primorl.evaluation.private.model_check import ModelCheck
from primorl.evaluation.private.problem import Problem
from primorl.evaluation.private.results import MEAN_RETURN, Answer, Histogram, PrivateEvaluation
from primorl.privacy.statement import Statement
from primorl.project.files import replaced_file
from primorl.project.paths import BEHAVIOUR, MANIFEST, MODEL
from primorl.setup.partitions import Partitions
from primorl.setup.private_evaluation import Paid, PaidEvaluation, Subject
from primorl.setup.statement import assumptions
from primorl.trajectories.storage.manifest import Manifest


def nothing_asked(params: Params) -> PrivateEvaluation:
    """Make the file's content where no estimator was asked."""
    manifest = Manifest.load(MANIFEST)
    return PrivateEvaluation(
        dataset=params.dataset,
        unit=manifest.info.unit,
        units=manifest.private_units,
        discount=params.evaluation.private.discount,
        horizon=manifest.info.horizon,
        estimates=(),
        histograms=(),
        verdict=None,
        statements={},
        total=None,
        model_sha256=None,
        policy_sha256=None,
        clone_sha256=None,
    )


def evaluation_record(
    params: Params,
    problem: Problem,
    partitions: Partitions,
    subject: Subject,
    paid: PaidEvaluation,
    free: Sequence[Answer],
) -> PrivateEvaluation:
    """The file's content.

    Args:
        params: every choice.
        problem: the question.
        partitions: whose public facts the statements name.
        subject: model and policy.
        paid: the answers that were charged.
        free: estimates from released things alone.
    """
    statements = {each.asked.estimator.name: _statement(partitions, each, paid) for each in paid.paid}
    answers = [
        _answer(problem, estimate, statements[each.asked.estimator.name])
        for each in paid.paid
        for estimate in each.asked.estimator.estimates(problem, each.asked.plan, each.state)
    ]
    return PrivateEvaluation(
        dataset=params.dataset,
        unit=problem.unit,
        units=problem.units,
        discount=problem.discount,
        horizon=problem.horizon,
        estimates=(*answers, *(_answer(problem, estimate, None) for estimate in free)),
        histograms=tuple(_histogram(each) for each in paid.paid if isinstance(each.asked.estimator, Behaviour)),
        verdict=_verdict(problem, paid.paid),
        statements=statements,
        total=paid.spent,
        model_sha256=subject.model_sha256,
        policy_sha256=subject.policy_sha256,
        clone_sha256=subject.clone_sha256,
    )


def write_evaluation(path: Path, figure: Path, record: PrivateEvaluation) -> None:
    """Write the file and its figure, each atomically."""
    record.write(path)
    with replaced_file(figure) as fresh:
        draw_evaluation(fresh, record)


def _statement(partitions: Partitions, each: Paid, paid: PaidEvaluation) -> Statement:
    info = partitions.manifest.info
    statement = each.asked.plan.statement(
        dataset_fingerprint=info.dataset_fingerprint, public_assumptions=assumptions(partitions.manifest)
    )
    # The question itself holds the model, the policy and the clone: where they are not private, neither is the whole.
    parts = [("model", MODEL), *([("clone", BEHAVIOUR)] if "clone" in each.asked.estimator.about else [])]
    unsound = [
        f"the {part} in the question has no sound guarantee of its own"
        for part, folder in parts
        if not Statement.read(folder).sound
    ]
    return replace(
        statement,
        void=(*statement.void, *unsound),
        public_units=partitions.manifest.public_units,
        trajectories_per_person=info.trajectories_per_person,
    ).with_payment(each.charge, paid.spent)


def _histogram(each: Paid) -> Histogram:
    """How the units' returns are spread."""
    values = each.state.values
    return Histogram(
        estimator=each.asked.estimator.name,
        what="return of a unit",
        edges=tuple(values["edges"].tolist()),
        shares=tuple(values["histogram"].tolist()),
    )


def _verdict(problem: Problem, paid: Sequence[Paid]) -> str | None:
    for each in paid:
        if isinstance(each.asked.estimator, ModelCheck):
            return each.asked.estimator.verdict(problem, each.asked.plan, each.state)
    return None


def _answer(problem: Problem, found: Answer, statement: Statement | None) -> Answer:
    """An answer with its cost; a mean return and its interval are held within the return's bounds."""
    value, ends = found.value, found.ci95
    if found.what == MEAN_RETURN:
        value = problem.held_return(value)
        ends = None if ends is None else (problem.held_return(ends[0]), problem.held_return(ends[1]))
    epsilon, delta = (statement.epsilon, statement.delta) if statement else (None, None)
    return replace(found, value=value, ci95=ends, epsilon=epsilon, delta=delta)
