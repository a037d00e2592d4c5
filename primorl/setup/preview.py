"""What the next `dvc repro` would charge, before it does. Charges nothing and reads no private row."""

import math
from contextlib import closing
from dataclasses import dataclass

from primorl.config.params import Params
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.account import Account
from primorl.project.dvc import changed_stages
from primorl.project.paths import MANIFEST, PARTITIONS
from primorl.setup import accounts, model_work
from primorl.setup.arrivals import share_ids, whose_account
from primorl.setup.fitting import fitted
from primorl.setup.next_charges import MAKE_DATA, PendingCharge, beside_model, check_clone, mark_paid, said
from primorl.setup.partitions import Partitions
from primorl.setup.planning import check_choices, make_plan

_NEAR = 0.8  # of a budget


@dataclass(frozen=True)
class Preview:
    """What would be charged.

    Attributes:
        line: to be printed.
        near: whether more than 80% of the budget would be spent afterwards.
    """

    line: str
    near: bool


def preview(params: Params) -> Preview | None:
    """The most that the next run charges to the units that are partitioned.

    None: they are not partitioned, or will be anew, which may make other units or another horizon of them.

    Raises:
        PipelineError: the settings do not fit the data, or `dvc status` fails.
    """
    changed = changed_stages()
    if not MANIFEST.exists() or changed & MAKE_DATA:
        return None
    partitions = Partitions.open(PARTITIONS)
    if partitions.manifest.info.dataset != params.dataset:
        return None
    chosen, _ = fitted(params, partitions.manifest, partitions.rows)
    check_choices(chosen, partitions.manifest, partitions.rows)
    check_clone(chosen, partitions.manifest)
    plan = make_plan(chosen, partitions.manifest)
    spent = plan.spent()
    ledger, account = accounts.begun_ledger(params), Account(())
    if ledger is not None:
        with closing(ledger):
            account = ledger.account(partitions.version)
    epsilon = None if spent is None else spent.epsilon_pld
    wanted = [PendingCharge(model_work.STAGE, epsilon, plan.event), *beside_model(params, epsilon, partitions.manifest)]
    new = [each for each in mark_paid(params, partitions, account, wanted) if not each.paid]
    online = _online(params) if params.online.asked and changed else ""
    if not new:
        return Preview(f"the next `dvc repro` charges nothing: all of it is paid{online}", near=False)
    if spent is None:
        line = f"the next `dvc repro` has no guarantee (variant {params.dynamics.variant}): all ε then counts as spent"
        return Preview(line, near=params.privacy.budget.epsilon is not None)
    budget = params.privacy.budget
    before, after = account.epsilon(budget.delta), account.with_events([each.event for each in new], budget.delta)
    most = "at most " if any(each.question is not None for each in new) else ""
    line = f"the next `dvc repro` charges {most}{said(new)}: ε {_shown(before)} is spent, {_shown(after)} afterwards"
    if budget.epsilon is None:
        return Preview(f"{line}, without a budget{online}", near=False)
    line += f", of a budget of {at_most(budget.epsilon, 6)}"
    if after > budget.epsilon:
        line += ": what does not fit is refused before it reads a private row"
    return Preview(line + online, near=after > _NEAR * budget.epsilon)


def _online(params: Params) -> str:
    """What is said of the users who arrive: this preview never counts them."""
    shared = share_ids(params)
    uncounted = ", and what they are charged is not counted here" if shared else ""
    return f"; the stage `online` charges the users who arrive: {whose_account(shared=shared)}{uncounted}"


def _shown(epsilon: float) -> str:
    return at_most(epsilon, 4) if math.isfinite(epsilon) else "infinite"
