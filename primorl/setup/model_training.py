"""The training of the dynamics model as paid work: what it is, and when its result is refused."""

from primorl.config.params import Params
from primorl.project.paths import MODEL
from primorl.setup.compute import Place
from primorl.setup.fitting import fitted
from primorl.setup.model_work import STAGE, model_identity
from primorl.setup.paid_training import PrivateStage
from primorl.setup.pooled import train_baseline
from primorl.setup.training import training_setup
from primorl.training.setup import TrainingSetup
from primorl.training.training import Trained
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore


def _setup(params: Params, manifest: Manifest, public: UnitStore, place: Place) -> TrainingSetup:
    """The training with what is to be fitted in place."""
    return training_setup(fitted(params, manifest, public)[0], manifest, public, place)


def _asked(params: Params) -> bool:
    return params.dynamics.variant != "mopo"


def _refusal(trained: Trained) -> str | None:
    """Why weights that are not finite, or whose public loss beats no constant, are refused."""
    if not trained.finite:
        return (
            "params.yaml: dynamics: training diverged (weights that are not finite); lower dynamics.learning_rate or "
            "privacy.clipping_norm"
        )
    loss = trained.public_loss
    if loss is not None and loss.diverged:
        return (
            "params.yaml: dynamics: the trained model is no better than a constant: its public loss is "
            f"{loss.final:.4g}, that of the initial weights {loss.initial:.4g}, of a constant {loss.constant:.4g}; "
            "lower dynamics.learning_rate, raise privacy.sampling_probability or the target ε, or train a smaller "
            "dynamics.hidden"
        )
    return None


MODEL_TRAINING = PrivateStage(
    name=STAGE,
    output=MODEL,
    what="model",
    setup=_setup,
    identity=model_identity,
    asked=_asked,
    pooled=train_baseline,
    refusal=_refusal,
)
