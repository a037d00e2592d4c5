"""Stage: ask the private units what today's practice earns; charged, and idle unless the question
has a share of ε.
"""

import sys

from pipeline.runner import run_stage
from primorl.base.files import MANIFEST, PLAN, POLICY, PRIVATE_EVALUATION
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.data.storage.schema import Manifest
from primorl.evaluate.private.results import PrivateEvaluation
from primorl.policy.config import PolicyConfig
from primorl.work.jobs import RunPlan


def idle(_: Params) -> bool:
    """Write that nothing was asked, if the plan has no question."""
    if RunPlan.read(PLAN).question is not None:
        return False
    manifest = Manifest.load(MANIFEST)
    info = manifest.info
    PrivateEvaluation(
        dataset=info.dataset,
        unit=info.unit,
        units=manifest.private_units,
        horizon=info.horizon,
        discount=1.0,
    ).write(PRIVATE_EVALUATION)
    return True


def body(params: Params, log: StageLog) -> None:
    """Refuse what can be refused without private data, pay, ask, then write the answers with their
    statements.
    """
    from primorl.policy.exported import DeterministicPolicy
    from primorl.stages import asking
    from primorl.work.desk import Desk
    from primorl.work.jobs import request_for

    desk = Desk.open(params)
    data, job = desk.partitions, desk.read_plan(params).question
    assert job is not None, "else the stage is idle"
    policy, config = DeterministicPolicy.load(POLICY), PolicyConfig.read(POLICY)
    problem = asking.evaluation_problem(job, data, policy, params.seed, config.ends)
    compared = asking.compare_in_model(problem, data, params.chosen, config)

    mechanism = job.build_mechanism(data.manifest)
    with desk.pay(request_for(job, data), asking.begin(problem)) as paid:
        released = asking.ask_for(paid, problem, mechanism)
        record = asking.add_answers(compared, paid, problem, mechanism, released)
        record.write(PRIVATE_EVALUATION)
        paid.commit(record.hash_answers())
    for answer in record.values():
        log.metric(f"private.{answer.of}.{answer.estimator}", answer.value)
    if record.total is not None and record.total.epsilon is not None:
        log.metric("epsilon_in_all", record.total.epsilon)


if __name__ == "__main__":
    sys.exit(run_stage("evaluate_private", __doc__, body, idle))
