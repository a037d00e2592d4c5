"""Stage: ask the private units what today's practice earns and how wrong the model is; charged, and
idle unless estimators are named.
"""

import sys

from pipeline.runner import run_stage
from primorl.base.paths import (
    BEHAVIOUR,
    MODEL,
    PARTITIONS,
    POLICY,
    PRIVATE_EVALUATION,
)
from primorl.config.params import Params, plain
from primorl.paid.questions import nothing_asked
from primorl.policy.config import PolicyConfig
from primorl.privacy.statement import Statement
from primorl.tracking import StageRun


def idle(params: Params) -> bool:
    """Write that nothing was asked, if no estimator is named."""
    if params.estimators(Statement.read(MODEL).epsilon):
        return False
    nothing_asked(params).write(PRIVATE_EVALUATION)
    return True


def body(params: Params, run: StageRun) -> None:
    """Refuse what can be refused without private data, pay, ask, then write the answers with their
    statements.
    """
    from primorl.evaluate.private.model_values import values_in_model
    from primorl.paid.bill import Bill
    from primorl.paid.partitions import Partitions
    from primorl.paid.private_evaluation import (
        ROLLOUTS,
        EvaluatedFiles,
        act_of,
        clone_of,
        evaluation_problem,
        evaluation_record,
        paid_evaluation,
    )
    from primorl.policy.exported import DeterministicPolicy
    from primorl.privacy.accounting.events import event_from_json

    chosen, model = params.evaluation.private, Statement.read(MODEL)
    estimators = params.estimators(model.epsilon)
    partitions = Partitions.open(PARTITIONS, params)
    if params.holds_total:
        Bill.of(params, partitions.manifest, event_from_json(model.event)).refuse_total()
    run.params({"seed": params.seed, "evaluation": {"private": plain(chosen)}})
    clone = clone_of(BEHAVIOUR, params.seed)
    problem = evaluation_problem(
        params,
        partitions,
        act_of(DeterministicPolicy.load(POLICY)),
        discount=chosen.discount,
        return_bounds=chosen.return_bounds,
        ends=PolicyConfig.read(POLICY).ends,
    )
    files = EvaluatedFiles.read(cloned=clone is not None)
    free = values_in_model(problem, ROLLOUTS, clone)
    with paid_evaluation(params, problem, estimators, partitions, files, run) as answered:
        record = evaluation_record(params, problem, partitions, files, answered, free)
        record.write(PRIVATE_EVALUATION)
        for each in answered:
            each.work.commit(record.made(each.question.name))
    for answer in record.values():
        run.metric(f"private.{answer.of}.{answer.estimator}", answer.value)
    for log in (run, run.pipeline):
        log.artifact(PRIVATE_EVALUATION)
    if record.total is not None and record.total.epsilon is not None:
        run.metric("epsilon_in_all", record.total.epsilon)


if __name__ == "__main__":
    description = (
        "Ask the private units for today's returns and how wrong the model is; charged to the "
        "ledger."
    )
    sys.exit(run_stage("evaluate_private", description, body, idle))
