"""What the project's files say was charged, held against the ledger: one that lacks it was deleted, cut or replaced."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from primorl.privacy.ledger.ledger import Ledger
from primorl.project.dvc import is_recorded, recorded_file
from primorl.project.errors import PipelineError
from primorl.project.files import home, parse_json, read_json, workspace
from primorl.project.paths import BEHAVIOUR, LOCK, MODEL, MODELS, PRIVATE_EVALUATION
from primorl.project.records import printable

_STATEMENT = "privacy.json"
_OF_ONE = ("charge", "epsilon", "event")  # of a mechanism by itself; the other facts are those of the whole
UNKNOWN = "unknown"
"""Stands for the id of a charge that ``dvc.lock`` tells of without naming it."""


@dataclass(frozen=True)
class Loss:
    """A charge that the ledger should have and has not.

    Attributes:
        charge: its id.
        file: what names it.
        statement: the privacy statement there, as it stands; empty if there is none to read.
    """

    charge: str
    file: str
    statement: Mapping[str, Any] = field(default_factory=dict)

    @property
    def says(self) -> str:
        """One line without an advice."""
        if self.charge == UNKNOWN:
            return f"{self.file}: train_model has run, and its charge is not in the ledger, which is empty"
        return f"{self.file}: charge {self.charge} is not in the ledger"


def losses(ledger: Ledger | None) -> list[Loss]:
    """What models, private answers and ``dvc.lock`` name and the ledger lacks.

    Charges whose loss a repair has recorded are left out.

    Args:
        ledger: the project's; None if none was begun.

    Raises:
        PipelineError: the ledger or a statement cannot be read.
    """
    known: set[str] = set()
    if ledger is not None:
        known = {charge.id for charge in ledger.charges()} | ledger.lost().keys()
    named = list(_named())
    found = {loss.charge: loss for loss in reversed(named) if loss.charge not in known}
    if not known and not named and is_recorded("train_model"):
        return [Loss(UNKNOWN, str(LOCK))]
    return sorted(found.values(), key=lambda loss: (loss.file, loss.charge))


def refuse_losses(ledger: Ledger | None, *, head: bool = True) -> None:
    """Check that the ledger has its head, and every charge that models, private answers and ``dvc.lock`` name.

    Args:
        ledger: the project's; None if none was begun.
        head: whether to check the head.

    Raises:
        PipelineError: the head or a charge is missing; says what to do.
    """
    found = losses(ledger)
    if found:
        raise PipelineError(
            f"{'; '.join(loss.says for loss in found)}: records were cut off, or it is another ledger; put back the "
            "one that has it (.primorl, or the database of ledger.url) from its backup, or run `primorl ledger "
            "repair`, which says what is lost"
        )
    if ledger is not None and head:
        ledger.check_head()


def _named() -> Iterator[Loss]:
    """Every charge that a file of the project names: models, and the answers of the private units.

    DVC deletes a stage's outputs before it runs the stage. So the statements of model and clone and the answers are
    also looked up in DVC's cache.
    """
    for root in dict.fromkeys((workspace().resolve(), home())):
        for file in sorted((root / MODELS).glob(f"*/{_STATEMENT}")):
            yield from _of(_read(file, file.parent, root), _shown(file, root))
        if (answers := root / PRIVATE_EVALUATION).exists():
            yield from _of_answers(_read(answers, answers, root), _shown(answers, root))
    for folder in (MODEL, BEHAVIOUR):
        recorded = recorded_file(folder, _STATEMENT)
        if recorded is not None:
            yield from _of(parse_json(recorded, LOCK), f"{LOCK} ({folder / _STATEMENT})")
    recorded = recorded_file(PRIVATE_EVALUATION)
    if recorded is not None:
        yield from _of_answers(parse_json(recorded, LOCK), f"{LOCK} ({PRIVATE_EVALUATION})")


def _read(file: Path, output: Path, root: Path) -> Mapping[str, Any]:
    try:
        return read_json(file)
    except PipelineError as broken:
        raise PipelineError(
            f"{str(broken).partition(';')[0]}, so nobody can tell which charge it names; bring "
            f"{_shown(output, root)} back by `dvc checkout`, or delete it"
        ) from None


def _shown(file: Path, root: Path) -> str:
    return str(file.relative_to(root) if root == workspace().resolve() else file)


def _of_answers(answers: Mapping[str, Any], file: str) -> Iterator[Loss]:
    statements = answers.get("statements")
    for name, statement in statements.items() if isinstance(statements, dict) else ():
        if isinstance(statement, dict):
            yield from _of(statement, f"{file} ({printable(name)})")


def _of(statement: Mapping[str, Any], file: str) -> Iterator[Loss]:
    """The charge of a statement, and those of the mechanisms in it, each with its own event and ε."""
    charge = statement.get("charge")
    if isinstance(charge, str):
        yield Loss(charge, file, statement)
    mechanisms = statement.get("mechanisms")
    for part in mechanisms if isinstance(mechanisms, list) else ():
        if isinstance(part, dict):
            whole = {key: value for key, value in statement.items() if key not in ("mechanisms", *_OF_ONE)}
            yield from _of({**whole, **part}, f"{file} ({printable(str(part.get('what')))})")
