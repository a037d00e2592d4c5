"""What the ledger is asked for: a dataset version, a request to spend on it, and a budget."""

from dataclasses import dataclass

from dp_accounting import dp_event

from primorl.project.errors import PipelineError


class Refused(PipelineError):  # noqa: N818 - of an outcome, not of a fault
    """A request was refused before anything was written. After any other error a charge may have been made."""


class BudgetExceeded(Refused):
    """A run was refused because it would exceed the budget. Nothing was written and nothing is spent."""


@dataclass(frozen=True)
class Budget:
    """What all runs on the same units may spend together: ε, read at δ."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Version:
    """A dataset version as the ledger knows it.

    Two versions *share units* if their members have a digest in common; which versions do is declared public.

    Attributes:
        fingerprint: keyed fingerprint of the content.
        unit: what one unit is.
        units: number of private units.
        members: 16-byte keyed digests of the private units, in any order.
        public: the same of the public units. They are published: never again may one of them be private.
        trajectories_per_person: the most trajectories that one person has, as declared; None: nobody declared it.
        population: keyed digest of the name of who the people are; None: nobody named it.
    """

    fingerprint: str
    unit: str
    units: int
    members: bytes
    public: bytes = b""
    trajectories_per_person: int | None = None
    population: str | None = None


@dataclass(frozen=True)
class Request:
    """What a run asks to do.

    Attributes:
        version: whose budget is spent.
        dataset: name of the dataset.
        stage: who asks.
        identity: equal for two runs exactly if they are the same paid work.
        event: what the run will do.
        delta: at which the run's own ε is read.
        git_commit: of the project, for the record.
        mlflow_run: for the record.
    """

    version: Version
    dataset: str
    stage: str
    identity: str
    event: dp_event.DpEvent
    delta: float
    git_commit: str | None
    mlflow_run: str | None
