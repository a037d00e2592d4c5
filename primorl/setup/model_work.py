"""The training of the dynamics model as paid work: its identity, its setup, and the non-private baseline.

Loading this module needs no torch.
"""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from primorl.config.params import Params, plain
from primorl.project.paths import MODEL
from primorl.project.progress import progress_bar
from primorl.setup.accounts import digest, plan_identity
from primorl.setup.declared import model_bounds, observation_columns
from primorl.setup.fitting import TRAINING_KEYS, fitted
from primorl.setup.paid_work import PrivateStage, from_public
from primorl.setup.partitions import Partitions
from primorl.setup.planning import architecture, check_choices, make_plan
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import UnitStore

if TYPE_CHECKING:
    from primorl.setup.compute import Place
    from primorl.tracking import StageRun
    from primorl.training.public_evaluation import PublicEvaluation
    from primorl.training.setup import TrainingSetup
    from primorl.training.training import Trained

STAGE = "train_model"


def model_identity(params: Params, partitions: Partitions) -> str:
    """Digest everything that determines a model but chance and code. Equal digests are one piece of paid work.

    Code is left out: an edited comment or an upgrade must not charge the same people again. δ is left out too: it reads
    the same release's ε elsewhere on its curve. `privacy.draw` is in it: another number pays for another draw.

    For fitted settings the digest holds the inputs of the fit, not its results: so another version of the fit does not
    charge the same people again.
    """
    statistics = params.privacy.statistics
    uses_bounds = statistics.normaliser != "public" or statistics.starts
    content: dict[str, Any] = {
        "data": partitions.identity,
        "seed": params.seed,
        "bounds": plain(params.chosen.bounds) if uses_bounds else None,
    }
    unfitted = params.unfitted & TRAINING_KEYS
    if unfitted:
        asked = {f"dynamics.{key}": value for key, value in _asked_of_dynamics(params).items()}
        asked |= _asked_of_privacy(params)
        content["asked"] = {key: value for key, value in asked.items() if key not in unfitted}
        content["fitted"] = sorted(unfitted)
    else:
        plan = make_plan(params, partitions.manifest)
        content["architecture"] = vars(architecture(params, partitions.manifest))
        content["dynamics"] = _asked_of_dynamics(params)
        content["plan"] = None if params.dynamics.variant == "mopo" else plan_identity(plan)
        content["normaliser"] = statistics.normaliser
        content["draw"] = params.privacy.draw
    return digest(content)


def _asked_of_privacy(params: Params) -> dict[str, Any]:
    """What params.yaml says of the mechanism, by key, where the mechanism depends on it.

    δ decides about the noise where an ε is given, and about nothing where the noise is.
    """
    privacy, statistics = params.privacy, params.privacy.statistics
    of_noise = ("noise_multiplier",) if privacy.target_epsilon is None else ("target_epsilon", "delta")
    keys = (*of_noise, "sampling_probability", "rounds", "clipping_norm", "clipping", "draw")
    queries = ["noise_multiplier"] if statistics.normaliser == "private" or statistics.starts else []
    said = {f"privacy.{key}": getattr(privacy, key) for key in keys}
    return said | {f"privacy.statistics.{key}": getattr(statistics, key) for key in ("normaliser", "starts", *queries)}


def _asked_of_dynamics(params: Params) -> dict[str, Any]:
    """What params.yaml says of the ensemble and its training.

    Keys that came later are left out where they say what was meant before: the same work keeps its identity.
    """
    said = {key: value for key, value in plain(params.dynamics).items() if key not in ("mopo", "train_anyway")}
    for key, before in (("start", "random"), ("beta_nll", 0.0)):
        if said[key] == before:
            del said[key]
    return said


def training_setup(
    params: Params, manifest: Manifest, public: UnitStore, place: "Place | None" = None, *, start: bool = True
) -> "TrainingSetup":
    """Set up the training that params.yaml describes, on the data that the manifest describes. Reads no private byte.

    For variant ``mopo`` the plan adds no noise and is not used: that baseline trains without a mechanism.

    Args:
        params: every choice.
        manifest: of the partitions.
        public: the public split; it may be empty.
        place: which of several processes this is; None: the only one.
        start: whether weights are made of the public split, where ``dynamics.start`` asks for it.

    Raises:
        PipelineError: the choices fit neither each other nor the data, or no noise multiplier reaches the target ε.
    """
    from primorl.setup.compute import ALONE, chosen_device, execution
    from primorl.training.setup import TrainingSetup

    place = place or ALONE
    check_choices(params, manifest, public)
    device = chosen_device(params.compute, place)
    setup = TrainingSetup(
        plan=make_plan(params, manifest),
        architecture=architecture(params, manifest),
        bounds=model_bounds(params, manifest, public),
        columns=observation_columns(manifest),
        normaliser=params.privacy.statistics.normaliser,
        local=params.dynamics,
        server=params.dynamics,
        seed=params.seed,
        execution=execution(params.compute, device),
    ).of_process(place.process, place.processes)
    return from_public(setup, public) if start and params.dynamics.start == "public" else setup


def _fitted_setup(params: Params, manifest: Manifest, public: UnitStore, place: "Place") -> "TrainingSetup":
    return training_setup(fitted(params, manifest, public)[0], manifest, public, place)


def _train_baseline(params: Params, setup: "TrainingSetup", partitions: Partitions, run: "StageRun") -> "Trained":
    """NOT PRIVATE. Train the MOPO baseline's model on the pooled private rows.

    Its charge, without a guarantee, is already in the ledger. Where ``privacy.statistics.normaliser`` is ``private``,
    the raw private rows make the normaliser.
    """
    from primorl.setup.paid_training import log_evaluation
    from primorl.training.pooled import train_pooled

    rows = partitions.open_private(sys.maxsize)
    assert isinstance(rows, UnitStore)
    public = partitions.public.flat() if partitions.public.units else None
    if setup.normaliser == "private":
        normaliser = replace(setup, normaliser="public").make_normaliser(rows.flat(), {})
    else:
        normaliser = setup.make_normaliser(public, {})
    with progress_bar(params.dynamics.mopo.max_epochs, "train_model (mopo, not private)", "epoch") as bar:

        def on_epoch(evaluation: "PublicEvaluation | None") -> None:
            bar.update()
            if evaluation is not None:
                log_evaluation(run, setup.architecture, evaluation)

        return train_pooled(
            setup.ensemble,
            rows.flat(),
            public,
            normaliser=normaliser,
            pooled=params.dynamics.mopo,
            seed=setup.seed,
            device=setup.execution.device,
            on_epoch=on_epoch,
        )


def _refusal(trained: "Trained") -> str | None:
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
    setup=_fitted_setup,
    identity=model_identity,
    asked=lambda params: params.dynamics.variant != "mopo",
    pooled=_train_baseline,
    refusal=_refusal,
)
