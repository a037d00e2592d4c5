"""What a bundle holds: its files and their keys.

Every JSON key is declared: here, in `primorl.privacy.statement`, `primorl.dynamics.config` and `primorl.policy.config`.
Their values come from the mechanism's output, params.yaml, the environment, the public split, what is declared public,
or the ledger.
"""

from typing import Annotated, Any, ClassVar, Literal

from primorl.dynamics import starts
from primorl.privacy.statement import Accountant
from primorl.project.records import Hexadecimal, Line, Matching, record
from primorl.project.values import Within

MANIFEST, LEDGER, CARDS = "MANIFEST.json", "ledger-statement.json", ("card.md", "card.html")
MODEL = ("dynamics/model.safetensors", "dynamics/config.json", "dynamics/privacy.json")
POLICY = ("policy/policy.safetensors", "policy/config.json", "policy/privacy.json")
FILES = frozenset((*MODEL, *POLICY, *CARDS, LEDGER))
"""What a bundle holds beside its manifest."""
STARTS = f"dynamics/{starts.FILE}"
"""In the bundle only if a query for first states was paid for."""

_Epsilon = Annotated[float, Within(ge=0)]
_Delta = Annotated[float, Within(gt=0, lt=1)]
_Count = Annotated[int, Within(ge=1)]


@record
class ChargeRecord:
    """One charge in ``ledger-statement.json``: nothing of git, MLflow or other datasets, and no time of day."""

    id: Annotated[Line, "Id of the charge."]
    stage: Annotated[Line, "Stage that was charged."]
    event: Annotated[dict[str, Any], "The accounted event."]
    epsilon: Annotated[_Epsilon | None, "ε of this charge alone; `null`: no guarantee."]
    delta: Annotated[_Delta, "δ at which it is read."]
    state: Annotated[Literal["reserved", "committed", "aborted"], "All three count as spent."]
    day: Annotated[str, Matching(r"\d{4}-\d\d-\d\d"), "Day of the charge."]
    same_version: Annotated[
        bool, "False: of another version of the data that shares a unit with this one, which is declared public."
    ]
    unit: Annotated[Line, "What one unit of privacy was."]
    units_each: Annotated[
        _Count | None,
        "How many units of the charge one unit of this version may be, as declared; `null`: nobody declared it.",
    ]


@record
class LedgerStatement:
    """``ledger-statement.json``: everything spent so far on the units of this version of the data, composed."""

    FORMAT: ClassVar[int] = 2

    dataset_fingerprint: Annotated[Hexadecimal, "Keyed fingerprint of the dataset version."]
    unit: Annotated[Line, "What one unit of privacy is."]
    neighboring_relation: Annotated[Literal["zero_out_one"], "How neighbouring datasets differ."]
    accountant: Annotated[Accountant, "Name and version of the accountant."]
    epsilon: Annotated[
        _Epsilon | None,
        "ε of all charges together, however later runs were chosen after looking at earlier results; `null`: no "
        "guarantee is left.",
    ]
    epsilon_fixed: Annotated[
        _Epsilon | None, "The same by the PLD accountant: it holds if all settings were fixed beforehand."
    ]
    epsilon_rdp: Annotated[_Epsilon | None, "The same by the RDP accountant."]
    delta: Annotated[_Delta, "δ of all three."]
    charges: Annotated[_Count, "Number of charges."]
    records: Annotated[tuple[ChargeRecord, ...], "The charges, oldest first."]


@record
class Manifest:
    """``MANIFEST.json``: SHA-256 of every other file. It tells whether a bundle is complete, not who made it."""

    FORMAT: ClassVar[int] = 1

    kind: Annotated[Literal["primorl release"], "Marks a bundle of this project."]
    files: Annotated[dict[str, Hexadecimal], "SHA-256 of every other file, by name."]
