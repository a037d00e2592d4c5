"""What the next run does and charges, before any of it is done. Reads no private byte."""

from collections.abc import Set
from dataclasses import replace

from primorl.base.dvc import changed_stages
from primorl.base.paths import MANIFEST, PARTITIONS
from primorl.config.params import Params
from primorl.paid.bill import Bill
from primorl.paid.partitions import Partitions
from primorl.paid.resolve import planned

MAKE_DATA = {"collect", "ingest", "partition"}
UNKNOWN = (
    "what `dvc repro` charges is known once the data are partitioned with these settings: `dvc "
    "repro partition` charges nothing"
)
"""Message if one of `MAKE_DATA` will run, which may make other units or another horizon."""


def preview(params: Params, changed: Set[str] | None = None) -> Bill | None:
    """Make the bill of the next run on the partitioned units; None: they will be made, or made
    anew.

    Args:
        params: every choice.
        changed: stages whose inputs changed; None: DVC is asked.

    Raises:
        PipelineError: the settings do not fit the data, or `dvc status` fails.
    """
    changed = changed_stages() if changed is None else changed
    if not MANIFEST.exists() or changed & MAKE_DATA:
        return None
    partitions = Partitions.open(PARTITIONS, params)
    if partitions.manifest.info.dataset != params.dataset:
        return None
    bill = Bill.of(params, planned(params, partitions), partitions)
    return replace(bill, online=_online(params)) if params.online.asked and changed else bill


def _online(params: Params) -> str:
    from primorl.paid.arrivals import share_ids, whose_account  # which import torch

    shared = share_ids(params)
    uncounted = ", and what they are charged is not counted here" if shared else ""
    return (
        "; the stage `online` charges the users who arrive: "
        f"{whose_account(shared=shared)}{uncounted}"
    )
