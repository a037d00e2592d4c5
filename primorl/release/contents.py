"""The content of a bundle: its files (`NEEDED`, `OPTIONAL`), their keys, and their reading.

Every JSON key is declared: here, in `primorl.privacy.statement`, `primorl.model.architecture`,
`primorl.policy.config` and `primorl.evaluate.private.results`. Their values come from the
mechanism's output, params.yaml, the environment, the public split, declared facts, or the ledger.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from primorl.base import PipelineError
from primorl.base.files import file_sha256
from primorl.base.records import (
    Hexadecimal,
    Line,
    StatedDelta,
    StatedEpsilon,
    Within,
    matching,
    printable,
    read_record,
    record,
    to_json,
)
from primorl.evaluate.private.results import PrivateEvaluation
from primorl.evaluate.summary import PolicyResult
from primorl.model import starts
from primorl.model.architecture import ModelConfig
from primorl.policy.config import PolicyConfig
from primorl.privacy.statement import Accountant, Statement

MANIFEST, SIGNATURE = "MANIFEST.json", "MANIFEST.sig"
LEDGER, EVALUATION, CARD = "ledger-statement.json", "evaluation.json", "card.md"
MODEL = ("dynamics/model.safetensors", "dynamics/config.json", "dynamics/privacy.json")
POLICY = ("policy/policy.safetensors", "policy/config.json", "policy/privacy.json")
NEEDED = frozenset((*MODEL, *POLICY, LEDGER, EVALUATION, CARD))
"""What every bundle holds beside its manifest and the signature of that, if it is signed."""
STARTS = f"dynamics/{starts.FILE}"
"""In the bundle only if a query for first states was paid for."""
ANSWERS = "private-evaluation.json"
"""``metrics/private_evaluation.json``; in the bundle only if something was asked."""
CLONE = "behaviour/privacy.json"
"""The statement of the clone of the behaviour; in the bundle only if one was made: model, policy,
answers and clone were made from the same people."""
DECLARED = "declared.json"
"""What people declared for the card, as it stands in the dataset's file; in the bundle only if they
did.
"""
OPTIONAL = frozenset((STARTS, ANSWERS, CLONE, DECLARED))
"""What some bundles hold beside `NEEDED`."""

Content = TypeVar("Content")
_MOST_BYTES, _MOST_BYTES_OF_TENSORS = 1 << 24, 1 << 30


@record
class ChargeRecord:
    """One charge in ``ledger-statement.json``: nothing of git, MLflow or other datasets, and no
    time of day.
    """

    id: Line
    """Id of the charge."""
    stage: Line
    """Stage that was charged."""
    event: dict[str, Any]
    """The accounted event."""
    epsilon: StatedEpsilon | None
    """ε of this charge alone, by `accountant`; `null`: no guarantee."""
    delta: StatedDelta
    """δ at which it is read."""
    state: Literal["reserved", "committed"]
    """Both count as spent."""
    day: Annotated[str, matching(r"\d{4}-\d\d-\d\d")]
    """Day of the charge."""
    same_version: bool
    """False: of another version of the data that shares a unit with this one, which is declared
    public.
    """
    unit: Line
    """What one unit of privacy was."""
    same_unit: bool
    """False: of another kind of unit, so nothing is guaranteed of all charges together."""


@record
class LedgerStatement:
    """``ledger-statement.json``: everything spent so far on the units of this version of the data,
    composed.
    """

    FORMAT: ClassVar[int] = 1

    dataset_fingerprint: Hexadecimal
    """Keyed fingerprint of the dataset version."""
    unit: Line
    """What one unit of privacy is."""
    neighboring_relation: Literal["zero_out_one"]
    """How neighbouring datasets differ."""
    accountant: Accountant
    """Name and version of the accountant."""
    epsilon: StatedEpsilon | None
    """ε of all charges together, however later runs were chosen after looking at earlier results;
    `null`: no guarantee is left.
    """
    delta: StatedDelta
    """δ of ε."""
    charges: Annotated[int, Within(ge=0)]
    """Number of charges."""
    records: tuple[ChargeRecord, ...]
    """The charges, oldest first."""
    budget: StatedEpsilon | None = None
    """The most ε that all charges together may take, as declared; `null`: no bound."""
    budget_changes: tuple[Line, ...] = ()
    """How the budget changed between them: when, from what to what."""


@record
class ReleasedResult(PolicyResult):
    """``evaluation.json``: figures of ``metrics/summary.json`` on the card, of one policy."""

    FORMAT: ClassVar[int] = 1

    model_sha256: Hexadecimal
    """SHA-256 of `dynamics/model.safetensors`."""


@record
class Declared:
    """``declared.json``: texts of people, which nothing checks; a text that is not given has no
    key.
    """

    FORMAT: ClassVar[int] = 1

    owner: Line | None = None
    """Who answers for data and policy."""
    purpose: Line | None = None
    """What they may be used for."""
    contact: Line | None = None
    """Whom to ask, or to tell of a mistake."""
    licence: Line | None = None
    """Of the data."""
    reward_meaning: Line | None = None
    """What one point of the return means."""
    left_out: Line | None = None
    """What the declared bounds leave out, as is known beforehand."""
    labels: dict[Line, Line] = field(default_factory=dict)
    """Words for columns and actions, by their names."""


@record
class FileList:
    """``MANIFEST.json``: SHA-256 of every other file.

    It tells whether a bundle is complete, not its author.
    """

    FORMAT: ClassVar[int] = 1

    kind: Literal["primorl release"]
    """Marks a bundle of this project."""
    files: dict[str, Hexadecimal]
    """SHA-256 of every other file, by name."""


@dataclass(frozen=True)
class Bundle:
    """The JSON files of a bundle, as read; the manifest is not among them."""

    folder: Path
    names: frozenset[str]
    """Of all files but manifest and signature."""
    declared: Declared | None
    model: ModelConfig
    policy: PolicyConfig
    of_model: Statement
    of_policy: Statement
    ledger: LedgerStatement
    evaluation: ReleasedResult
    clone: Statement | None
    answers: PrivateEvaluation | None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a bundle's files strictly, keys that are declared and no others; nothing in it runs.

        Raises:
            PipelineError: see `read`.
        """
        names = list_files(folder) - {MANIFEST, SIGNATURE}
        return cls(
            folder=folder,
            names=names,
            declared=read(folder, DECLARED, Declared) if DECLARED in names else None,
            model=read(folder, MODEL[1], ModelConfig),
            policy=read(folder, POLICY[1], PolicyConfig),
            of_model=read(folder, MODEL[2], Statement),
            of_policy=read(folder, POLICY[2], Statement),
            ledger=read(folder, LEDGER, LedgerStatement),
            evaluation=read(folder, EVALUATION, ReleasedResult),
            clone=read(folder, CLONE, Statement) if CLONE in names else None,
            answers=read(folder, ANSWERS, PrivateEvaluation) if ANSWERS in names else None,
        )

    @property
    def charged(self) -> dict[str, Statement]:
        """Statements of what a charge of its own paid for, by the name of their place."""
        found = {MODEL[2]: self.of_model}
        if self.clone is not None:
            found[CLONE] = self.clone
        for name, own in ({} if self.answers is None else self.answers.statements).items():
            found[f"{ANSWERS}: statements.{name}"] = own
        return found


def read(folder: Path, name: str, kind: type[Content]) -> Content:
    """Read one JSON file of a bundle strictly.

    A file is sound when writing the content that was read from it gives exactly the same bytes. So
    there is no room for an extra key, a comment or padding.

    Raises:
        PipelineError: missing, not JSON, another set of keys or types, or not written as
            `write_record` writes.
    """
    path = folder / name
    found = read_record(path, kind, "a bundle holds nothing else")
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    if content != to_json(found) or text != json.dumps(content, indent=2, allow_nan=False) + "\n":
        raise PipelineError(f"{path}: not written as this project writes JSON; make it again")
    return found


def make_manifest(folder: Path) -> FileList:
    """Make the content of ``MANIFEST.json`` for the files that are in ``folder``."""
    names = sorted(list_files(folder) - {MANIFEST, SIGNATURE})
    return FileList(
        kind="primorl release", files={name: file_sha256(folder / name) for name in names}
    )


def check_names_and_hashes(folder: Path) -> None:
    """Check the files of a bundle.

    Raises:
        PipelineError: a file is missing, too many, not the one that the manifest lists,
            or no signature.
    """
    if not folder.is_dir() or folder.is_symlink():
        raise PipelineError(f"{folder}: not a folder; give the folder of a bundle")
    found = list_files(folder)
    needed = NEEDED | {MANIFEST}
    allowed = needed | OPTIONAL | {SIGNATURE}
    if wrong := (found - allowed) | (needed - found):
        name = min(wrong)
        what = "is missing; fetch the bundle again"
        if name in found:
            what = "does not belong in a bundle; delete it, or fetch the bundle again"
        raise PipelineError(f"{folder}: {printable(name)} {what}")
    for name in sorted(found):  # before anything is read
        size = (folder / name).stat().st_size
        most = _MOST_BYTES_OF_TENSORS if name.endswith(".safetensors") else _MOST_BYTES
        if size > most:
            raise PipelineError(f"{folder / name}: found {size} bytes, allowed are up to {most}")
    listed = read(folder, MANIFEST, FileList).files
    if set(listed) != found - {MANIFEST, SIGNATURE}:
        raise PipelineError(f"{folder / MANIFEST}: lists other files than a bundle has")
    for name in sorted(listed):
        if file_sha256(folder / name) != listed[name]:
            raise PipelineError(
                f"{folder / name}: not the file that {MANIFEST} lists: damaged, as by a copy that "
                "changes line ends, or exchanged"
            )


def list_files(folder: Path) -> frozenset[str]:
    """List the relative names of everything but the folders of a bundle; refuse links and special
    files.
    """
    names = set[str]()
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            found = f"{printable(name)} is a link or a special file"
            raise PipelineError(f"{folder}: {found}; a bundle holds plain files")
        if path.is_file() or name not in ("dynamics", "policy", "behaviour"):
            names.add(name)
    return frozenset(names)
