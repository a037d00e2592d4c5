"""Charges that files of the project name and that its ledger lacks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from primorl.base.dvc import is_recorded, recorded_file
from primorl.base.errors import PipelineError
from primorl.base.files import home, parse_json, read_json, workspace
from primorl.base.paths import BEHAVIOUR, LOCK, MODEL, MODELS, PRIVATE_EVALUATION
from primorl.base.records import printable
from primorl.privacy.ledger.ledger import Ledger

_STATEMENT = "privacy.json"
_OF_ONE = (
    "charge",
    "epsilon",
    "event",
)  # of a mechanism by itself; the other facts are those of the whole
UNKNOWN = "unknown"
"""Stands for the id of a charge that ``dvc.lock`` tells of without naming it."""


@dataclass(frozen=True)
class MissingCharge:
    """A charge that the ledger should have and has not.

    Attributes:
        charge: its id.
        file: it names the charge.
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


def missing_charges(ledger: Ledger | None) -> list[MissingCharge]:
    """List the charges that models, private answers and ``dvc.lock`` name and that the ledger lacks.

    Charges that a repair has recorded as lost are left out.

    Raises:
        PipelineError: the ledger or a statement cannot be read.
    """
    known: set[str] = set()
    if ledger is not None:
        known = {charge.id for charge in ledger.charges()} | ledger.lost().keys()
    named = list(_named())
    found = {loss.charge: loss for loss in reversed(named) if loss.charge not in known}
    if not known and not named and is_recorded("train_model"):
        return [MissingCharge(UNKNOWN, str(LOCK))]
    return sorted(found.values(), key=lambda loss: (loss.file, loss.charge))


def refuse_missing_charges(ledger: Ledger | None, *, head: bool = True) -> None:
    """Check that the ledger has its head, and every charge that models, private answers and ``dvc.lock`` name.

    Raises:
        PipelineError: the head or a charge is missing.
    """
    found = missing_charges(ledger)
    if found:
        raise PipelineError(
            f"{'; '.join(loss.says for loss in found)}: records were cut off, or it is another ledger; put back the "
            "one that has it (.primorl, or the database of ledger.url) from its backup, or run `primorl ledger "
            "repair`, which says what is lost"
        )
    if ledger is not None and head:
        ledger.check_head()


def _named() -> Iterator[MissingCharge]:
    """Every charge that a file of the project names: models, and the answers of the private units.

    DVC deletes a stage's outputs before it runs the stage. So the statements of model and clone and the answers are
    also looked up in DVC's cache.
    """
    here = workspace().resolve()
    for root in dict.fromkeys((here, home())):
        answers = [root / PRIVATE_EVALUATION] if (root / PRIVATE_EVALUATION).exists() else []
        for file in (*sorted((root / MODELS).glob(f"*/{_STATEMENT}")), *answers):
            shown = file.relative_to(root) if root == here else file
            try:
                content = read_json(file)
            except PipelineError as broken:
                output = shown if file in answers else shown.parent
                raise PipelineError(
                    f"{str(broken).partition(';')[0]}, so nobody can tell which charge it names; bring {output} back "
                    "by `dvc checkout`, or delete it"
                ) from None
            yield from _of(content, str(shown))
    for output, name in ((MODEL, _STATEMENT), (BEHAVIOUR, _STATEMENT), (PRIVATE_EVALUATION, None)):
        recorded = recorded_file(output, name)
        if recorded is not None:
            yield from _of(parse_json(recorded, LOCK), f"{LOCK} ({output / (name or '')})")


def _of(statement: Mapping[str, Any], file: str) -> Iterator[MissingCharge]:
    """The charge of a statement, and those of the mechanisms in it, each with its own event and ε; or of answers."""
    answers = statement.get("statements")
    for name, answer in answers.items() if isinstance(answers, dict) else ():
        if isinstance(answer, dict):
            yield from _of(answer, f"{file} ({printable(name)})")
    charge = statement.get("charge")
    if isinstance(charge, str):
        yield MissingCharge(charge, file, statement)
    mechanisms = statement.get("mechanisms")
    for part in mechanisms if isinstance(mechanisms, list) else ():
        if isinstance(part, dict):
            whole = {
                key: value
                for key, value in statement.items()
                if key not in ("mechanisms", *_OF_ONE)
            }
            yield from _of({**whole, **part}, f"{file} ({printable(str(part.get('what')))})")
