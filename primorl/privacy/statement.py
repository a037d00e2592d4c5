"""The privacy statement: the content of ``privacy.json``.

This class is the file's only writer and reader.
"""

from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any, ClassVar, Literal

from primorl.base import records
from primorl.base.records import record

FILE = "privacy.json"
Relation = Literal["zero_out_one", "replace_one"]
RELATION_NAME: Literal["zero_out_one"] = "zero_out_one"

_Multiplier = Annotated[float, records.Within(ge=0)]
_Positive = Annotated[float, records.Within(gt=0)]
_Probability = Annotated[float, records.Within(gt=0, le=1)]
_ROUNDS = ("sampling_probability", "noise_multiplier", "clipping_norm", "rounds")
NO_ROUNDS: dict[str, Any] = {**dict.fromkeys(_ROUNDS), "queries": ()}
"""Keys of a statement that only rounds have."""


@record
class Accountant:
    """The software that computed ε."""

    name: Literal["dp_accounting.pld.PLDAccountant"]
    """Class of the accountant."""
    version: records.Line
    """Version of its package."""


@cache
def our_accountant() -> Accountant:
    """Return the accountant of this installation; who only uses a policy has none."""
    return Accountant(name="dp_accounting.pld.PLDAccountant", version=version("dp-accounting"))


@record
class QueryStatement:
    """One query over all private units, answered once, beside the rounds."""

    what: Annotated[str, records.matching("[a-z][a-z0-9_]*", 40)]
    """Name of the query type, such as `scales` or `first_states`."""
    noise_multiplier: _Multiplier
    """z of the query."""
    sensitivity: Annotated[float, records.Within(gt=0)]
    """L2 sensitivity of the sum."""
    epsilon: records.StatedEpsilon | None
    """ε of this query alone, at `delta`; `null`: no guarantee."""


@record
class MechanismStatement:
    """One of several mechanisms that a release was made from, by itself."""

    what: records.Line
    """Folder of what it released."""
    epsilon: records.StatedEpsilon | None
    """ε of it alone, at `delta`; `null`: no guarantee."""
    event: dict[str, Any]
    """Its accounted event."""
    sampling_probability: _Probability | None
    """q, the probability with which a unit joins a round."""
    noise_multiplier: _Multiplier | None
    """z: the noise of a round has standard deviation z times C."""
    clipping_norm: _Positive | None
    """C; `null`: contributions are not clipped."""
    rounds: records.Count | None
    """T, the rounds that were paid for."""
    queries: tuple[QueryStatement, ...]
    """Queries over all units, beside the rounds."""
    charge: records.Line | None
    """Id of the ledger's charge that paid for it."""


@record
class ProfilePoint:
    """One point of the privacy profile: (ε, δ) holds for each, all at once."""

    epsilon: records.StatedEpsilon
    """ε of the point."""
    delta: records.Portion
    """δ of the point."""


@record
class GroupPoint:
    """Guarantee for one person with several units."""

    units: Annotated[int, records.Within(ge=2)]
    """Number of units of the same person."""
    epsilon: records.StatedEpsilon | None
    """ε of all of them together, at the same `delta`; `null`: no guarantee."""


@record
class AttackPoint:
    """How well an attack can tell whether a unit was in the data."""

    false_positive_rate: records.StatedDelta
    """How often an attack says “in the data” of a unit that was not."""
    true_positive_rate: records.Portion
    """How often, at most, the same attack says so of a unit that was."""


@record
class OnlineProtocol:
    """Protocol of online learning. All later users may see every policy of the run.

    The guarantee is also a joint one: the outputs to all other users, in any coalition, are (ε,
    δ)-private in one user's data, by the billboard lemma (Hsu et al. 2016). The outputs to that
    user depend on the user's own data and are not covered.
    """

    algorithm: records.Line
    """Name of the update."""
    users: records.Count
    """N, different users who were met."""
    cohort: records.Count
    """m, users of one update; a public constant, which sums are divided by."""
    cohorts: records.Count
    """Updates."""
    releases: records.Count
    """Noisy releases made of one cohort."""


@record
class SpentOnDataset:
    """Account of the same units when the statement was written."""

    epsilon: records.StatedEpsilon | None
    """ε of all charges on the same units together, by the adaptive filter: holds however later runs
    were chosen after looking at earlier results. `null`: no guarantee is left.
    """
    delta: records.StatedDelta
    """δ: `privacy.delta`."""
    charges: Annotated[int, records.Within(ge=0)]
    """Number of charges, this one included."""


@record
class Statement(records.FileRecord):
    """Guarantee of a release, and its assumptions (``privacy.json``).

    Every mechanism has the keys up to ``void``. ``clipping`` and ``termination`` describe the
    dynamics model, and are null for other mechanisms. A result of several releases has null for the
    keys of rounds: its event is the composed one, and ``mechanisms`` lists each by itself. The
    ledger adds ``charge`` and ``spent_on_dataset``.

    Raises:
        ValueError: private, yet a number that a guarantee needs is null.
    """

    FILE_NAME: ClassVar[str] = FILE
    REMEDY: ClassVar[str] = "run `dvc checkout` or `dvc repro`"

    private: bool
    """Whether the release has an (ε, δ) guarantee."""
    epsilon: records.StatedEpsilon | None
    """ε of this release, by the PLD accountant, for all `rounds`; `null`: no guarantee."""
    delta: records.StatedDelta | None
    """δ at which ε is read; it must be below one over `units`."""
    unit: records.Line
    """What one unit of privacy is: one trajectory, or everything of one value of a column."""
    neighboring_relation: Literal["zero_out_one"]
    """How neighbouring datasets differ: everything that one unit contributes is replaced by zeros.
    K stays.
    """
    accountant: Accountant
    """Name and version of the accountant."""
    epsilon_rdp: records.StatedEpsilon | None
    """ε by the RDP accountant, which the paper used; an upper bound as well."""
    event: dict[str, Any]
    """The accounted event, as `dp_accounting` would rebuild it."""
    sampling_probability: _Probability | None
    """q, the probability with which a unit joins a round."""
    noise_multiplier: _Multiplier | None
    """z: the noise of a round has standard deviation z times C."""
    clipping_norm: _Positive | None
    """C: L2 norm that one unit's contribution is clipped to; `null`: contributions are not clipped.
    """
    rounds: records.Count | None
    """T, the rounds that were paid for; fewer may have been run."""
    queries: tuple[QueryStatement, ...]
    """Queries over all units, beside the rounds."""
    units: records.Count
    """K, the number of private units; a public constant."""
    public_assumptions: tuple[records.Line, ...]
    """What the guarantee takes as public."""
    dataset_fingerprint: records.Hexadecimal
    """Keyed fingerprint (HMAC-SHA256) of the dataset version."""
    void: tuple[records.Line, ...]
    """Reasons not to rely on the statement; empty for a sound release."""
    clipping: records.Line | None = None
    """How contributions are clipped: `flat` or `per_layer`."""
    termination: records.Line | None = None
    """How the dynamics model ends episodes: `none`, `learned` (inside the noised vector) or the
    name of a declared rule, which is then a public assumption.
    """
    public_units: Annotated[int, records.Within(ge=0)] | None = None
    """Units that are declared public, and so are not protected."""
    epsilon_replace_one: records.StatedEpsilon | None = None
    """ε at `delta` if neighbouring datasets differ by another unit in the place of one (2C apart).
    """
    profile: tuple[ProfilePoint, ...] = ()
    """Privacy profile by the PLD accountant: (ε, δ) pairs that hold together."""
    groups: tuple[GroupPoint, ...] = ()
    """ε at `delta` of one person with several units, by the accountant."""
    attacks: tuple[AttackPoint, ...] = ()
    """The best that any membership attack can do, from the whole privacy profile."""
    trajectories_per_person: records.Count | None = None
    """The most trajectories of one person, as declared; `null`: not declared."""
    charge: records.Line | None = None
    """Id of the ledger's charge that paid for the release."""
    mechanisms: tuple[MechanismStatement, ...] = ()
    """The mechanisms whose releases this was made from, where there are several; `epsilon` is of
    all together.
    """
    online: OnlineProtocol | None = None
    """How users were met who came after training; `null`: nobody was."""
    spent_on_dataset: SpentOnDataset | None = None
    """What the ledger had recorded for the same units."""

    def __post_init__(self) -> None:
        of_rounds = [key for key in _ROUNDS if getattr(self, key) is not None]
        needed = ("epsilon", "delta", *(() if self.mechanisms else _ROUNDS))
        if self.private and (missing := [key for key in needed if getattr(self, key) is None]):
            raise ValueError(f"private: true, yet {', '.join(missing)} is null")
        if self.mechanisms and (stray := of_rounds + ["queries"] * bool(self.queries)):
            raise ValueError(f"mechanisms: several have no {', '.join(stray)}, yet it is given")

    @property
    def sound(self) -> bool:
        """Whether the statement may be relied on: it is private and nothing is void."""
        return self.private and not self.void

    def with_payment(self, charge: str, spent: SpentOnDataset) -> "Statement":
        """Return the same statement with the ledger's part."""
        return replace(self, charge=charge, spent_on_dataset=spent)
