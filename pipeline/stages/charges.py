"""How a stage pays for touching private data: what an earlier run paid for is taken up, anything else is reserved."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_accounting import dp_event

from pipeline.accounts import dataset_version
from pipeline.dynamics import checkpoint
from pipeline.dynamics.ensemble import Architecture
from pipeline.dynamics.training import Progress
from pipeline.files import finite, home, locked
from pipeline.params import Params
from pipeline.privacy.ledger import Budget, Charge, Ledger, Request, Version
from pipeline.tracking import StageRun, git_commit
from pipeline.trajectories.manifest import Manifest

_CODE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Paid:
    """A charge, and how far what it paid for has come.

    ``progress`` and the ``file`` it is kept in are None for work without a guarantee: its weights are private.
    """

    charge: Charge
    progress: Progress | None
    file: Path | None

    @property
    def finished(self) -> bool:
        """Whether everything was done by an earlier run, so that no private byte needs to be read."""
        return self.progress is not None and self.progress.finished

    def keep(self, progress: Progress) -> None:
        """Write the checkpoint, durably."""
        if self.file is not None:
            checkpoint.write(self.file, progress, self.charge.id)


def request(
    params: Params,
    run: StageRun,
    manifest: Manifest,
    partitions: Path,
    *,
    stage: str,
    event: dp_event.DpEvent,
    identity: str,
) -> Request:
    """What the ledger is asked for.

    Args:
        params: names the δ of this run.
        run: its MLflow run.
        manifest: of the partitions.
        partitions: the folder whose ``units.bin`` says, in keyed digests, whose budget this is.
        stage: who asks.
        event: what it will do.
        identity: of the result, from `identity`.

    Raises:
        PipelineError: ``units.bin`` is missing, or is of another partition.
    """
    return Request(
        version=dataset_version(manifest, partitions),
        dataset=manifest.info.dataset,
        stage=stage,
        identity=identity,
        event=event,
        delta=params.privacy.delta,
        git_commit=git_commit(),
        mlflow_run=run.run_id,
    )


def identity(manifest: Manifest, partitions: Path, code: tuple[str, ...], **choices: Any) -> str:
    """A digest of all that determines a result but for chance: data, choices and the code that carries them out.

    Two runs of equal identity are the same paid work. It stays in the ledger.
    """
    members = hashlib.sha256((partitions / "units.bin").read_bytes()) if (partitions / "units.bin").exists() else None
    content = {
        "manifest": manifest.to_json(),
        "members": members.hexdigest() if members else None,
        "code": {name: hashlib.sha256((_CODE / name).read_bytes()).hexdigest() for name in code},
        "choices": choices,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def budget(params: Params) -> Budget | None:
    """What all runs may spend together; None without a limit."""
    declared = params.privacy.budget
    return None if declared.epsilon is None else Budget(declared.epsilon, declared.delta)


@contextmanager
def paid(
    ledger: Ledger, wanted: Request, limit: Budget | None, shape: Architecture, begin: Progress | None
) -> Iterator[Paid]:
    """Resume or restore what was paid for under the same identity; otherwise reserve, before anything private is read.

    A checkpoint that another living process works on is left to it. A charge whose checkpoint is not here (another
    machine's, or deleted) stays spent.

    Args:
        ledger: where charges are.
        wanted: what to reserve.
        limit: the budget.
        shape: of the ensemble in the checkpoints.
        begin: the progress to begin from; None for work without a guarantee, which is neither kept nor taken up.

    Raises:
        PipelineError: the budget does not allow it, or the checkpoint to resume from is damaged.
    """
    if begin is None:
        yield Paid(ledger.reserve(wanted, limit), None, None)
        return
    folder = home() / ".primorl" / "checkpoints"
    with ExitStack() as held:
        for charge in reversed(ledger.charges()):
            file = folder / f"{charge.id}.safetensors"
            if charge.identity != wanted.identity or charge.state == "aborted" or not file.exists():
                continue
            if charge.state == "reserved" and not held.enter_context(locked(file.with_suffix(".lock"))):
                continue
            yield Paid(charge, checkpoint.read(file, shape, charge.id), file)
            return
        charge = ledger.reserve(wanted, limit)
        file = folder / f"{charge.id}.safetensors"
        held.enter_context(locked(file.with_suffix(".lock")))
        checkpoint.write(file, begin, charge.id)
        yield Paid(charge, begin, file)


def account(params: Params, ledger: Ledger, charge: Charge, version: Version) -> Mapping[str, Any]:
    """What a statement says of the ledger: its charge, and what was spent so far on the same units, itself included."""
    delta = params.privacy.budget.delta
    spent = ledger.spent_on(version, delta)
    return {
        "charge": charge.id,
        "spent_on_dataset": {
            "epsilon": finite(spent.epsilon_pld),
            "epsilon_rdp": finite(spent.epsilon_rdp),
            "delta": delta,
            "charges": len(ledger.sharing(version)),
        },
    }
