"""``metrics/private_evaluation.json``: the answers, their intervals and their cost."""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from primorl.base import PipelineError, records
from primorl.base.files import file_sha256
from primorl.base.records import record
from primorl.privacy.statement import SpentOnDataset, Statement

MEAN_RETURN = "mean return"
"""`Answer.what` of the value of a policy."""
AS_DRAWN = "mean return, actions drawn as the people's are"
"""`Answer.what` of the value of the clone as a stochastic policy: what the model makes of today's
practice.
"""
BEYOND = "share of steps beyond the clone's"
"""`Answer.what` of how many more of the policy's steps than of the clone's lie where the clone
hardly ever is.
"""
Estimator = Annotated[str, records.matching("[a-z][a-z0-9_]*", 40)]
Of = Literal["behaviour", "clone", "policy", "random"]


@record
class Answer:
    """One number from an estimator."""

    estimator: Estimator
    """Name of the estimator."""
    of: Of
    """Whose: of those who made the log, of their clone, of the policy, of a baseline."""
    what: records.Line
    """What the number is; `mean return` for a value."""
    value: float
    """The number."""
    ci95: tuple[float, float] | None
    """Its 95% interval; `null`: the estimator has none."""
    covers: records.Line
    """What the interval covers."""
    bias: records.Line
    """Errors that the interval does not cover."""
    epsilon: records.StatedEpsilon | None
    """ε of the estimator's charge; `null`: it costs nothing."""
    delta: records.StatedDelta | None
    """δ of the same; `null`: it costs nothing."""
    members: tuple[float, ...] | None = None
    """The same number by each member of the released model."""

    @classmethod
    def unpaid(
        cls,
        estimator: str,
        of: Of,
        what: str,
        value: float,
        ci95: tuple[float, float] | None,
        covers: str,
        bias: str,
        members: tuple[float, ...] | None = None,
    ) -> Self:
        """Make an answer whose cost is not known yet, or that costs nothing."""
        about: dict[str, Any] = {"covers": covers, "bias": bias, "epsilon": None, "delta": None}
        return cls(
            estimator=estimator, of=of, what=what, value=value, ci95=ci95, members=members, **about
        )

    @property
    def finite(self) -> bool:
        """Whether its numbers are finite, as those of a file must be."""
        return all(map(math.isfinite, (self.value, *(self.ci95 or ()), *(self.members or ()))))


def find_answer(answers: Iterable[Answer], of: str, what: str) -> Answer | None:
    """Return the first answer of its kind; None: there is none."""
    return next((each for each in answers if (each.of, each.what) == (of, what)), None)


@record
class Veto:
    """A free sign, or a warning from before the charge, that bars a trial."""

    kind: Literal["not_finite", "beyond_bounds", "random_as_good", "warned"]
    """`not_finite`: the model predicts something that is not a finite number, and values that
    follow from it are left out; `beyond_bounds`: it says a return that nobody can have;
    `random_as_good`: each member says that random actions are worth at least as much as practice;
    `warned`: a warning of `primorl plan`.
    """
    reason: records.Line
    """The sign with its numbers, in a clause."""

    @property
    def disbelieves(self) -> bool:
        """Whether no value in the model is to be believed."""
        return self.kind != "warned"


@record
class Verdict:
    """What speaks against the released model, or bars a trial of a policy that was made in it."""

    vetoes: tuple[Veto, ...] = ()
    """Signs and warnings that bar a trial."""

    @property
    def believed(self) -> bool:
        """Whether values in the model may be shown and compared."""
        return not any(veto.disbelieves for veto in self.vetoes)


@record
class ActionUse:
    """How much today's practice, its clone and the policy use an action: the share of rows with a
    discrete one, or the mean of a dimension.
    """

    name: records.Line
    """Name of the action or the dimension."""
    today: float | None
    """The people's, by a charged query of the model; `null`: it was not asked."""
    clone: float
    """The clone's, in the released model."""
    policy: float
    """The policy's, likewise."""
    clone_range: tuple[float, float] | None = None
    """From the 10% to the 90% quantile; `null`: actions are discrete."""
    policy_range: tuple[float, float] | None = None
    """The policy's, likewise."""


@record
class Contrast:
    """Where the policy acts most unlike the clone, in the states that the clone comes to."""

    action: records.Line
    """Name of the action or the dimension."""
    column: records.Line | None
    """Column of the observation; `null`: everywhere."""
    above: bool
    """Whether its values lie above `threshold`, or at most there."""
    threshold: float
    """Median of the column."""
    clone: float
    """Share or mean of the action there, of the clone."""
    policy: float
    """Of the policy."""


@record
class Outcome:
    """How often trajectories end in a named way, in the released model."""

    name: records.Line
    """As ``bounds.outcomes`` has it."""
    reward: float
    """What the end earns."""
    clone: float
    """Share of the trajectories of a clone of today's practice."""
    policy: float
    """Of the policy's, likewise."""


RARE_END = 0.05
"""Share of trajectories from which on an end is told from none, where nobody is public: how long
people's trajectories are tells no less (`primorl.stages.policy.find_ends`)."""


@record
class Conduct:
    """What the policy does beside today's practice (`compare_actions`)."""

    discrete: bool
    """Whether actions are discrete."""
    actions: tuple[ActionUse, ...]
    """The actions, or their dimensions."""
    today_error: float | None
    """Standard error of the shares in `today` by the public noise; `null`: unknown."""
    contrast: Contrast | None
    """Where they differ most in the action that changes most; `null`: nowhere by more than 5%."""
    clone_ended: float | None
    """Share of the clone's rollouts that end by themselves; `null`: the model has no ends."""
    policy_ended: float | None
    """Of the policy's, likewise."""
    outcomes: tuple[Outcome, ...] = ()
    """The named ends, that of the least reward first."""
    always_ends: bool = False
    """Whether every trajectory of the people ends in one of them."""

    def find_rare_ends(self) -> str:
        """Say how many trajectories end so rarely in the model that it may not have learned it;
        empty: none is so rare.
        """
        ends = {f"as “{each.name}”": each.clone for each in self.outcomes}
        if self.clone_ended is not None:
            ends["at all"] = self.clone_ended
        rare = ((how, share) for how, share in ends.items() if share < RARE_END)
        return ", ".join(f"{share:.1%} end {how}" for how, share in rare)


@record
class PrivateEvaluation(records.FileRecord):
    """The answers of all estimators, their privacy statement, and the total
    (``metrics/private_evaluation.json``).
    """

    FORMAT: ClassVar[int] = 3
    REMEDY: ClassVar[str] = "run `dvc repro evaluate_private`"

    dataset: records.Line
    """Name in params.yaml."""
    unit: records.Line
    """What one unit of privacy is."""
    units: records.Count
    """K, the number of private units; public."""
    discount: Annotated[float, records.Within(ge=1, le=1)]
    """γ of the values: they are not discounted."""
    horizon: records.Count | None
    """Steps of a trajectory at most."""
    estimates: tuple[Answer, ...] = ()
    """The answers; empty where nothing was asked."""
    verdict: Verdict | None = None
    """What speaks against the model; `null`, as what follows: nothing was asked."""
    statements: dict[records.Line, Statement] = field(default_factory=dict)
    """Privacy statement of each estimator that was charged, by its name."""
    total: SpentOnDataset | None = None
    """Everything charged on the same units so far."""
    model_sha256: records.Hexadecimal | None = None
    """SHA-256 of the model's file."""
    policy_sha256: records.Hexadecimal | None = None
    """SHA-256 of the policy's file."""
    clone_sha256: records.Hexadecimal | None = None
    """SHA-256 of the clone's file; `null`: none was made."""
    conduct: Conduct | None = None
    """What the policy does; `null`: no clone was made, or nothing was asked."""
    return_bounds: tuple[float, float] | None = None
    """Between which returns are taken to lie, by declared bounds or those of the public split;
    `null`: nothing was asked.
    """

    @property
    def asked(self) -> bool:
        """Whether anything was asked."""
        return self.total is not None

    def values(self) -> tuple[Answer, ...]:
        """Return the estimates of a value: today's, the policy's and others' in the model."""
        return tuple(answer for answer in self.estimates if answer.what in (MEAN_RETURN, AS_DRAWN))

    def answer(self, of: str, what: str) -> Answer | None:
        """Return the answer of its kind; None: there is none."""
        return find_answer(self.estimates, of, what)

    def hash_answers(self) -> dict[str, str]:
        """Hash (SHA-256) the answers, the free ones too, with their statement and subject, as the
        ledger records them with the charge.
        """
        content = {key: part for key, part in self.to_json().items() if key != "total"}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return {"private_evaluation": digest}

    def refuse_other_files(self, path: Path, model: Path, policy: Path, clone: Path) -> None:
        """Check that the answers are about the model, the policy and the clone in these folders, if
        anything was asked.

        ``path`` is this record's, for the message. A clone that was not made has no policy.

        Raises:
            PipelineError: they are about others.
        """
        if not self.asked:
            return
        files = {
            "model_sha256": model / "model.safetensors",
            "policy_sha256": policy / "policy.safetensors",
            "clone_sha256": clone / "policy.safetensors",
        }
        for key, file in files.items():
            if getattr(self, key) != (file_sha256(file) if file.exists() else None):
                raise PipelineError(
                    f"{path}: {key}: the answers are not about {file}, which is here; run `dvc "
                    "repro`"
                )
