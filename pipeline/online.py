"""Stage: users who come after training improve the policy, each once and privately; charged, and
idle unless asked.
"""

import sys
import time

from pipeline.runner import run_stage
from primorl.base.files import replaced_directory, write_json
from primorl.base.paths import ONLINE, POLICY
from primorl.config.params import Params, plain
from primorl.evaluate.summary import OnlineSummary, write_online_results
from primorl.tracking import StageRun


def idle(params: Params) -> bool:
    """Write that nobody was met, if nobody is asked for; ``models/online`` points to the offline
    policy.
    """
    if params.online.asked:
        return False
    with replaced_directory(ONLINE) as fresh:
        write_json(fresh / "config.json", {"policy": str(POLICY)})
    write_online_results(OnlineSummary(met=False), [], [])
    return True


def body(params: Params, run: StageRun) -> None:
    """Pay for all users, meet them, then write ``models/online`` with its privacy statement.

    Everything that can be refused before anybody is met is refused before the ledger is asked. The
    ledger is asked before the first user is met.
    """
    from primorl.work.online import online_run, paid_online, write_online

    started = time.perf_counter()
    asked = online_run(params)
    run.params({"seed": params.seed, "online": plain(params.online)})
    with paid_online(params, asked, run) as (state, work):
        write_online(params, asked, state, work, run, time.perf_counter() - started)


if __name__ == "__main__":
    description = "Learn online from users who arrive, each once, under differential privacy."
    sys.exit(run_stage("online", description, body, idle))
