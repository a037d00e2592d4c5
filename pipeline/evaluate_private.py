"""Stage: ask the private units what today's practice earns and how wrong the model is; charged, and
idle unless estimators are named.
"""

import sys

from pipeline.runner import run_stage
from primorl.base.paths import BEHAVIOUR, MANIFEST, PARTITIONS, POLICY, PRIVATE_EVALUATION
from primorl.base.records import to_json
from primorl.config.params import Params
from primorl.data.storage.schema import Manifest
from primorl.evaluate.private.results import unasked
from primorl.policy.config import PolicyConfig
from primorl.tracking import StageRun
from primorl.work.jobs import RunPlan
from primorl.work.partitions import Partitions


def idle(_: Params) -> bool:
    """Write that nothing was asked, if the plan has no question."""
    if RunPlan.load().questions:
        return False
    manifest = Manifest.load(MANIFEST)
    info = manifest.info
    nothing = unasked(info.dataset, info.unit, manifest.private_units, info.horizon)
    nothing.write(PRIVATE_EVALUATION)
    return True


def body(params: Params, run: StageRun) -> None:
    """Refuse what can be refused without private data, pay, ask, then write the answers with their
    statements.
    """
    from primorl.evaluate.private.model_values import values_in_model
    from primorl.policy.exported import DeterministicPolicy
    from primorl.work.private_evaluation import (
        ROLLOUTS,
        EvaluatedFiles,
        act_of,
        clone_of,
        evaluation_problem,
        evaluation_record,
        paid_evaluation,
    )

    partitions = Partitions.open(PARTITIONS, params)
    jobs = RunPlan.read(params, partitions).questions
    run.params({job.question: to_json(job) for job in jobs})
    clone = clone_of(BEHAVIOUR, params.seed)
    problem = evaluation_problem(
        jobs[0],
        partitions,
        act_of(DeterministicPolicy.load(POLICY)),
        params.seed,
        ends=PolicyConfig.read(POLICY).ends,
    )
    files = EvaluatedFiles.read(cloned=clone is not None)
    free = values_in_model(problem, ROLLOUTS, clone)
    with paid_evaluation(params, problem, jobs, partitions, files, run) as answered:
        record = evaluation_record(problem, partitions, files, answered, free)
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
