"""What the training of the model and that of the clone share as paid work. Loading this module needs no torch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from primorl.config.params import Params
from primorl.setup.partitions import Partitions
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import UnitStore

if TYPE_CHECKING:
    from primorl.setup.compute import Place
    from primorl.tracking import StageRun
    from primorl.training.setup import TrainingSetup
    from primorl.training.training import Trained


@dataclass(frozen=True)
class PrivateStage:
    """A stage that pays for one private training: what it trains, and the rules of its payment.

    Attributes:
        name: of the stage, as the ledger, errors and processes name it.
        output: folder of what it trains.
        what: it trains, as errors name it.
        setup: from params.yaml, the manifest and the public split; refuses what can be refused without private data.
        identity: a digest of everything that determines the result but chance and code. Equal digests are one piece of
            paid work.
        asked: whether the settings ask for a private training: all processes agree on it without the ledger.
        pooled: trains the non-private baseline, for variant mopo; None: that variant does not reach this stage.
        refusal: why a finished training is not to be used, one line that names the remedy; None: it is.
    """

    name: str
    output: Path
    what: str
    setup: "Callable[[Params, Manifest, UnitStore, Place], TrainingSetup]"
    identity: Callable[[Params, Partitions], str]
    asked: Callable[[Params], bool]
    pooled: "Callable[[Params, TrainingSetup, Partitions, StageRun], Trained] | None"
    refusal: "Callable[[Trained], str | None]"


def from_public(setup: "TrainingSetup", public: UnitStore) -> "TrainingSetup":
    """Begin the rounds with weights that the public split makes; see `primorl.training.pooled`."""
    from primorl.training.pooled import public_start

    normaliser = setup.make_normaliser(setup.public_of(public.flat()), {})
    source, beta = setup.source_of(public), setup.local.beta_nll
    return replace(setup, start=public_start(setup.architecture, normaliser, source, setup.seed, beta))
