"""What the ledger's records amount to: dataset versions and charges."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from primorl.privacy.ledger.chain import Chain, Record
from primorl.project.errors import PipelineError


@dataclass(frozen=True)
class Charge:
    """What a run was granted, and what became of it; spent in every state.

    ``event`` is what `event_from_json` rebuilds, ``epsilon`` its ε at ``delta`` as it was accounted then (None: no
    guarantee), ``time`` when it was reserved (ISO 8601, UTC), ``made`` the files that it made: SHA-256 by name,
    once for every time that other content was written (a result that is restored gets a newer statement).
    """

    id: str
    sequence: int
    identity: str
    dataset: str
    dataset_fingerprint: str
    unit: str
    units: int
    stage: str
    event: dict[str, Any]
    epsilon: float | None
    delta: float
    state: Literal["reserved", "committed", "aborted"]
    time: str
    git_commit: str | None
    mlflow_run: str | None
    note: str | None
    made: tuple[dict[str, str], ...] = ()

    def refuse_another_draw(self, made: Mapping[str, str]) -> None:
        """A charge pays for one draw of the noise, so its tensors stay those that it made first.

        Raises:
            PipelineError: ``made`` has other tensors.
        """
        for name, digest in made.items():
            first = {earlier.get(name, digest) for earlier in self.made} - {digest}
            if name.endswith(".safetensors") and first:
                raise PipelineError(
                    f"charge {self.id}: {name}: found SHA-256 {digest[:12]}…, allowed is {min(first)[:12]}…, which it "
                    "made first; bring it back by `dvc checkout`, or pay for another draw (privacy.draw)"
                )


@dataclass(frozen=True)
class Registered:
    """A version without its members."""

    fingerprint: str
    unit: str
    units: int
    members_digest: str


class History:
    """What the records of a chain amount to."""

    def __init__(self, chain: Chain):
        self.chain = chain
        self.versions: dict[int, Registered] = {}  # by the sequence of their record
        self.charges: dict[str, Charge] = {}  # oldest first
        self.version_of: dict[str, int] = {}  # by charge
        self.taken: Counter[str] = Counter()  # how often a charge was taken up again

    def extend(self, records: Sequence[Record]) -> None:
        """Check and take in what a database holds from the known head on (`Chain.extend`)."""
        for content in self.chain.extend(records):
            self._take_in(content)

    def _take_in(self, content: dict[str, Any]) -> None:
        match content["kind"]:
            case "version":
                self.versions[content["sequence"]] = Registered(
                    content["fingerprint"], content["unit"], content["units"], content["members"]
                )
            case "reserved":
                self.version_of[content["charge"]] = content["version"]
                self.charges[content["charge"]] = _reserved(content, self.versions[content["version"]])
            case "taken":
                self.taken[content["charge"]] += 1
            case "committed" | "aborted" as state:
                charge = self.charges[content["charge"]]
                made = (*charge.made, content["made"]) if "made" in content else charge.made
                self.charges[charge.id] = replace(charge, state=state, note=content.get("note"), made=made)
            case unknown:
                raise self.chain.broken(content["sequence"], f"of kind {unknown!r}, which this version does not know")


def _reserved(content: Mapping[str, Any], version: Registered) -> Charge:
    return Charge(
        id=content["charge"],
        sequence=content["sequence"],
        identity=content["identity"],
        dataset=content["dataset"],
        dataset_fingerprint=version.fingerprint,
        unit=version.unit,
        units=version.units,
        stage=content["stage"],
        event=content["event"],
        epsilon=content["epsilon"],
        delta=content["delta"],
        state="reserved",
        time=content["time"],
        git_commit=content["git_commit"],
        mlflow_run=content["mlflow_run"],
        note=None,
    )
