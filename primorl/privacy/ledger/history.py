"""Requests to the ledger, and the history of its records: dataset versions and charges."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from dp_accounting import dp_event

from primorl.base.errors import PipelineError
from primorl.privacy.ledger.chain import Chain, Record


class Refused(PipelineError):  # noqa: N818 - of an outcome, not of a fault
    """A request was refused before anything was written.

    After any other error a charge may have been made.
    """


class BudgetExceeded(Refused):
    """A run was refused because it would exceed the budget.

    Nothing was written and nothing is spent.
    """


@dataclass(frozen=True)
class Budget:
    """Limit for all runs on the same units together: ε at δ."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Version:
    """Dataset version as a client describes it to the ledger.

    Two versions *share units* if their members have a digest in common. It is declared public which
    versions do.

    Attributes:
        fingerprint: keyed, of the content.
        unit: of privacy.
        units: number of private units.
        members: 16-byte keyed digests of the private units, in any order.
        public: the same of the public units. They are published, so none of them may ever be
            private again.
        population: keyed digest of the population's name; None: it has none.
        simulated: whether there is a simulator, which may make other trajectories at any time.
    """

    fingerprint: str
    unit: str
    units: int
    members: bytes
    public: bytes = b""
    population: str | None = None
    simulated: bool = False


@dataclass(frozen=True)
class Request:
    """Request of a run of ``stage`` for work on the units of ``version`` of a dataset; ε is read at
    ``delta``.

    Two runs have the same ``identity`` exactly if they are the same paid work.
    """

    version: Version
    dataset: str
    stage: str
    identity: str
    event: dp_event.DpEvent
    delta: float


@dataclass(frozen=True)
class Charge:
    """A granted charge and its state; it is spent in every state.

    Attributes:
        version: sequence of the record of its dataset version.
        event: JSON of the accounted event (`event_from_json`).
        epsilon: ε at ``delta`` as it was accounted then; None: no guarantee.
        cost: in the privacy filter's currencies.
        time: of the reservation, ISO 8601, UTC.
        budget: ε of the budget that it was granted under; None: there was none.
        by: who ran the work.
        made: files that it made, SHA-256 by name; one entry each time that other content was
            written.
    """

    id: str
    sequence: int
    version: int
    identity: str
    dataset: str
    dataset_fingerprint: str
    unit: str
    units: int
    population: str | None
    stage: str
    event: dict[str, Any]
    epsilon: float | None
    delta: float
    cost: dict[str, Any]
    state: Literal["reserved", "committed"]
    time: str
    git_commit: str | None
    budget: float | None
    by: str | None
    made: tuple[dict[str, str], ...] = ()

    def refuse_another_draw(self, made: Mapping[str, str]) -> None:
        """Refuse files of another draw of the noise: a charge pays for one draw only.

        Raises:
            PipelineError: ``made`` has other tensors than those that the charge made first.
        """
        for name, digest in made.items():
            first = {earlier.get(name, digest) for earlier in self.made} - {digest}
            if name.endswith(".safetensors") and first:
                raise PipelineError(
                    f"charge {self.id}: {name}: found SHA-256 {digest[:12]}…, allowed is "
                    f"{min(first)[:12]}…, which it made first; bring it back by `dvc checkout`, "
                    "or pay for another draw (privacy.draw)"
                )


def paid_identities(charges: Iterable["Charge"]) -> set[str]:
    """Collect the identities of work that is paid for."""
    return {charge.identity for charge in charges}


@dataclass(frozen=True)
class Registered:
    """Version as its record holds it: without its members.

    Attributes:
        population: keyed digest of the population's name.
        members: keyed digest of the private units in the database.
        public: the same of the public units.
        dataset: entry that the version was first registered for.
    """

    fingerprint: str
    unit: str
    units: int
    population: str | None
    members: str
    public: str
    dataset: str

    def same_version(self, other: "Registered") -> bool:
        """Tell whether both records describe the same version, for any entry."""
        return replace(self, dataset=other.dataset) == other


class History:
    """Dataset versions and charges, as the records of a chain tell them."""

    def __init__(self, chain: Chain):
        self.chain = chain
        self.versions: dict[int, Registered] = {}  # by the sequence of their record
        self.charges: dict[str, Charge] = {}  # oldest first
        # charges whose first mark of progress was written with the reservation
        self.marked: set[str] = set()

    def extend(self, records: Sequence[Record]) -> None:
        """Verify the records of a database from the known head on (`Chain.extend`), and
        apply them.
        """
        for content in self.chain.extend(records):
            self._apply(content)

    def _apply(self, content: dict[str, Any]) -> None:
        match content["kind"]:
            case "version":
                known: dict[str, Any] = {
                    each.name: content.get(each.name) for each in fields(Registered)
                }
                self.versions[content["sequence"]] = Registered(**known)
            case "reserved":
                if content.get("marked"):
                    self.marked.add(content["charge"])
                self.charges[content["charge"]] = _read_reservation(
                    content, self.versions[content["version"]]
                )
            case "taken":  # of earlier versions, which counted resumptions here
                pass
            case "committed":
                charge = self.charges[content["charge"]]
                made = (*charge.made, content["made"]) if "made" in content else charge.made
                self.charges[charge.id] = replace(charge, state="committed", made=made)
            case unknown:
                raise self.chain.broken(
                    content["sequence"], f"of kind {unknown!r}, which this version does not know"
                )


def _read_reservation(content: Mapping[str, Any], version: Registered) -> Charge:
    of_version = ("unit", "units", "population")
    given = {*of_version, "id", "dataset_fingerprint", "state", "made"}
    found: dict[str, Any] = {name: getattr(version, name) for name in of_version}
    found |= {
        each.name: content.get(each.name) for each in fields(Charge) if each.name not in given
    }
    return Charge(
        id=content["charge"],
        dataset_fingerprint=version.fingerprint,
        state="reserved",
        **found,
    )
