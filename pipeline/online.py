"""Stage: users who come after training improve the policy, each once and privately; charged, and
idle unless asked.
"""

import sys
import time

from pipeline.runner import run_stage
from primorl.base.files import (
    ONLINE,
    ONLINE_CURVE,
    ONLINE_METRICS,
    POLICY,
    replaced_directory,
    write_json,
)
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.evaluate.summary import OnlineSummary, write_online_results
from primorl.tracking import log_run


def idle(params: Params) -> bool:
    """Write that nobody was met, if nobody is asked for; ``models/online`` points to the offline
    policy.
    """
    if params.online.asked:
        return False
    with replaced_directory(ONLINE) as fresh:
        write_json(fresh / "config.json", {"policy": str(POLICY)})
    write_online_results(OnlineSummary(met=False), {})
    return True


def body(params: Params, log: StageLog) -> None:
    """Pay for all users, meet them, then write ``models/online`` with its privacy statement.

    Everything that can be refused before anybody is met is refused before the ledger is asked. The
    ledger is asked before the first user is met.
    """
    from primorl.base.processes import choose_device
    from primorl.privacy.composition import after_offline
    from primorl.stages import online
    from primorl.work.desk import Desk

    started = time.perf_counter()
    learning = online.online_run(params)
    device = choose_device(params.compute.device)
    start = online.begin(learning)
    desk = Desk.open_for(params, learning.people)
    request = online.request_charge(learning)
    with desk.pay(request, start) as paid:
        state = online.learn_for(paid, learning, device)
        policies = [learning.network.export(parameters) for parameters in state.kept]
        curve, before, after = online.evaluate_online(learning, state, policies)
        of_users = online.users_statement(learning)
        of_users = of_users.with_payment(paid.charge.id, paid.spent)
        statement = after_offline(learning.offline, of_users)
        with paid.finish(ONLINE, statement) as folder:
            online.write_policies(folder, learning, policies)
    seconds = time.perf_counter() - started
    summary = online.summarise_online(learning, statement, before, after, seconds)
    write_online_results(summary, curve)
    content = online.list_content(summary, curve)
    files = (ONLINE_METRICS, ONLINE_CURVE, ONLINE / "privacy.json")
    log_run(params, content, files, online.STAGE)


if __name__ == "__main__":
    sys.exit(run_stage("online", __doc__, body, idle))
