"""Ten runs under a budget that is half-way between seven and eight by PLD: ``python -m benchmarks.privacy.sweep``.

The privacy filter decides. After the first refusal the private partition is not even there: a refusal that needed
it would fail otherwise.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import machine, write
from benchmarks.privacy.crashes import CHANGES
from benchmarks.privacy.small_project import in_process, make
from pipeline import train_model
from pipeline.runner import run_stage
from primorl.config import params as params_module
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.ledger.account import total_of
from primorl.setup.accounts import project_ledger
from tests.projects import write_settings

ALLOWED, RUNS = 7, 10


def main() -> int:
    """Sweep over the seed; write the table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="primorl-sweep-") as name:
        folder = Path(name)
        os.chdir(folder)
        content = make(folder, CHANGES)
        privacy = content["privacy"]
        event = accounting.training_event(
            privacy["sampling_probability"], privacy["noise_multiplier"], privacy["rounds"]
        )
        delta = privacy["budget"]["delta"]
        seven, eight = (accounting.compose([event] * runs, delta).epsilon_pld for runs in (ALLOWED, ALLOWED + 1))
        privacy["budget"]["epsilon"] = (seven + eight) / 2
        rows = sweep(folder, content)
    for row in rows:
        row |= {"machine": machine(), "command": "python -m benchmarks.privacy.sweep"}
    write("sweep", rows)
    return 0


def sweep(folder: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    """All runs; the rows of the table."""
    granted, refusals = 0, []
    private, hidden = Path("data/partitions/private"), Path("hidden")
    for seed in range(RUNS):
        content["seed"] = seed
        write_settings(content, folder)
        hide = bool(refusals)  # what was refused once is refused again, without the partition
        if hide:
            private.rename(hidden)
        process = in_process(lambda: run_stage("train_model", "", train_model.body), folder / "log")
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if hide:
            hidden.rename(private)
        granted += status == 0
        if status:
            refusals.append((folder / "log").read_text(encoding="utf-8").strip().splitlines()[-1])
            print(refusals[-1])
    ledger = project_ledger(params_module.load(folder / "params.yaml"))
    delta = content["privacy"]["budget"]["delta"]
    shown = total_of([event_from_json(charge.event) for charge in ledger.charges()], delta)
    ledger.verify()
    ledger.close()
    blind = refusals[1:]  # the first was refused with the partition there
    refused = sum(line.startswith("error: ") and "budget" in line for line in blind)
    return [
        {"what": "runs granted of ten", "ours": granted, "peer": ALLOWED, "ratio": granted / ALLOWED, "unit": "runs"},
        {
            "what": "runs refused without private data",
            "ours": refused,
            "peer": len(blind),
            "ratio": refused / max(1, len(blind)),
            "unit": "runs",
        },
        {
            "what": f"ε of the {shown.charges} granted: by the filter, against PLD for settings fixed beforehand",
            "ours": shown.epsilon,
            "peer": shown.epsilon_fixed,
            "ratio": shown.epsilon / shown.epsilon_fixed,
            "unit": "ε",
        },
    ]


if __name__ == "__main__":
    sys.exit(main())
