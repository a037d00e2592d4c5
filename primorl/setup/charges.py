"""How a stage pays for touching private data: what an earlier run paid for is taken up, anything else is reserved."""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dp_accounting import dp_event

from primorl.config.params import Params
from primorl.dynamics.ensemble import Architecture
from primorl.privacy.ledger.ledger import Budget, Charge, Ledger, Request, Version, new_charge_id
from primorl.project.errors import PipelineError
from primorl.project.files import finite, home, locked
from primorl.tracking import StageRun, git_commit
from primorl.training import checkpoint
from primorl.training.state import TrainingState
from primorl.trajectories.identity.fingerprint import project_secret
from primorl.trajectories.identity.membership import Membership
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import EVERY, ShardedStore, UnitStore, open_units

_CODE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Paid:
    """A charge, and how far what it paid for has come.

    ``progress`` and the ``file`` it is kept in are None for work without a guarantee: its weights are private.
    """

    charge: Charge
    state: TrainingState | None
    file: Path | None

    @property
    def finished(self) -> bool:
        """Whether everything was done by an earlier run, so that no private byte needs to be read."""
        return self.state is not None and self.state.finished

    def save_checkpoint(self, state: TrainingState) -> None:
        """Write the checkpoint, durably."""
        if self.file is not None:
            checkpoint.write(self.file, state, self.charge.id)


def request(
    params: Params,
    run: StageRun,
    manifest: Manifest,
    version: Version,
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
        version: whose budget this is, from `dataset_version`.
        stage: who asks.
        event: what it will do.
        identity: of the result, from `identity`.
    """
    return Request(
        version=version,
        dataset=manifest.info.dataset,
        stage=stage,
        identity=identity,
        event=event,
        delta=params.privacy.delta,
        git_commit=git_commit(),
        mlflow_run=run.run_id,
    )


def identity(manifest: Manifest, version: Version, code: tuple[str, ...], **choices: Any) -> str:
    """A digest of all that determines a result but for chance: data, choices and the code that carries them out.

    Two runs of equal identity are the same paid work. It stays in the ledger.
    """
    content = {
        "manifest": manifest.to_json(),
        "members": hashlib.sha256(version.members).hexdigest(),
        "code": {name: hashlib.sha256((_CODE / name).read_bytes()).hexdigest() for name in code},
        "choices": choices,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def budget(params: Params, manifest: Manifest) -> Budget | None:
    """What all runs may spend together; None without a limit.

    Raises:
        PipelineError: its δ is so large that it bounds nothing.
    """
    declared = params.privacy.budget
    if declared.delta >= 1 / manifest.private_units:
        raise PipelineError(
            f"params.yaml: privacy.budget.delta: found {declared.delta:g}, allowed is below "
            f"1/{manifest.private_units}, one over the number of units: at it everything would seem to cost nothing"
        )
    return None if declared.epsilon is None else Budget(declared.epsilon, declared.delta)


@contextmanager
def paid(
    ledger: Ledger, wanted: Request, limit: Budget | None, shape: Architecture, begin: TrainingState | None
) -> Iterator[Paid]:
    """Resume or restore what was paid for under the same identity; otherwise reserve, before anything private is read.

    A checkpoint that another living process works on is left to it. A charge whose checkpoint is not here (another
    machine's, or deleted), or is an old copy, stays spent.

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
    with ExitStack() as held:
        for charge in reversed(ledger.charges()):
            file = _file(charge.id)
            if charge.identity != wanted.identity or charge.state == "aborted" or not file.exists():
                continue
            kept = checkpoint.read(file, shape, charge.id)
            if not (charge.state == "committed" and kept.finished):
                if not held.enter_context(locked(file.with_suffix(".lock"))):
                    continue
                kept = checkpoint.read(file, shape, charge.id)  # its owner may have written until it let go
            if kept.lost:
                if charge.state == "reserved":
                    ledger.abort(charge.id, "died while it asked its queries")
                print(
                    f"warning: {file}: its run died between asking its queries and keeping the answers, and a charge "
                    "pays for one answer only; it stays spent",
                    file=sys.stderr,
                )
                continue
            if not kept.finished:
                if not ledger.take(charge.id, kept.taken):
                    print(
                        f"warning: {file}: a copy of this checkpoint was taken up before, or its charge has ended; it "
                        "is left alone and stays spent",
                        file=sys.stderr,
                    )
                    continue
                kept = replace(kept, taken=kept.taken + 1)
                checkpoint.write(file, kept, charge.id)
                print(
                    f"{wanted.stage}: charge {charge.id} is taken up where it was, after {kept.started} of its rounds; "
                    "nothing more is spent",
                    file=sys.stderr,
                )
            yield Paid(charge, kept, file)
            return
        yield _reserved(ledger, wanted, limit, begin, held)


def _reserved(ledger: Ledger, wanted: Request, limit: Budget | None, begin: TrainingState, held: ExitStack) -> Paid:
    """A new charge. Its checkpoint is written first: a disk that is full costs nothing."""
    name = new_charge_id()
    file = _file(name)
    held.enter_context(locked(file.with_suffix(".lock")))
    checkpoint.write(file, begin, name)
    try:
        charge = ledger.reserve(wanted, limit, name)
    except BaseException:
        file.unlink(missing_ok=True)
        file.with_suffix(".lock").unlink(missing_ok=True)
        raise
    cost = "no guarantee" if charge.epsilon is None else f"ε {charge.epsilon:.4g} at δ {charge.delta:g}"
    print(f"{wanted.stage}: charge {name} reserved: {cost}", file=sys.stderr)
    return Paid(charge, begin, file)


def _file(charge: str) -> Path:
    return home() / ".primorl" / "checkpoints" / f"{charge}.safetensors"


def open_private(
    manifest: Manifest, version: Version, partitions: Path, keep_bytes: int, own: slice = EVERY
) -> UnitStore | ShardedStore:
    """The private units, which are those that were charged.

    Args:
        manifest: of the partitions.
        version: whose account was charged.
        partitions: their folder.
        keep_bytes: how much of the rows may stay in memory.
        own: which of them are this process's; all are read, and held against the account.

    Raises:
        PipelineError: a file is missing or broken, or the rows are not of the units in the account.
    """
    folder = partitions / "private"
    found = Membership(project_secret(), manifest.info.dataset)
    store = open_units(folder, keep_bytes, found.update, own)
    if store.info != manifest.info or found.to_bytes() != version.members:
        raise PipelineError(f"{partitions}: its parts are of different partitions; run `dvc repro partition`")
    return store


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
