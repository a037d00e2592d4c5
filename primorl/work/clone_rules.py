"""How the clone of the behaviour is decided: its class, clip and noise."""

from dataclasses import replace

from primorl.base import PipelineError
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine.settings import LEAST_UNITS, EarlyStopping, LocalTraining, ServerTraining
from primorl.work.jobs import CloneJob, MechanismNumbers, solve_noise
from primorl.work.model_rules import count_rows, epsilon_of, noise_share

_MOST_ROWS = 256  # of a unit and round
_CLONE_Q, _CLONE_ROUNDS = 0.1, 120
_BEGUN_Q, _BEGUN_ROUNDS = 0.3, 40  # where the public split makes the first weights
_SMALLEST_NORM = 1e-6  # of a clip, as in params.yaml
_LARGEST_NORM, _LARGEST_WALK, _WALK_FROM_PUBLIC = 0.2, 5.0, 0.3
"""Of an update, and of what the noise of all rounds adds up to, from random weights (there over 1 +
s) and from those of the public split; see `_with_clip`."""
# One step on all rows of a unit: with several, each unit moves towards its own habits, and their
# mean is too sure.
_CLONE_LOCAL = LocalTraining(
    learning_rate=1.0,
    batch_size=_MOST_ROWS,
    local_epochs=1,
    weight_decay=0.0,
    max_transitions_per_unit=_MOST_ROWS,
    beta_nll=0.0,
)
_CLONE_SERVER = ServerTraining(
    server_momentum=0.9, server_averaging=0.9, early_stopping=EarlyStopping(every=10, patience=None)
)
_NOISE_OF_HIDDEN = 0.03
"""s up to which logits of discrete actions have hidden layers: with more noise, linear ones act
more like people."""


def clone_job(
    params: Params, manifest: Manifest, public: UnitStore, model_identity: str
) -> CloneJob | None:
    """Make the job of the clone; None: none is asked for.

    Its scales are public, or those of the released model, whose identity it then has.

    Raises:
        PipelineError: no noise is enough for its ε, or leaves a clip.
    """
    if not params.clones:
        return None
    begun = params.normaliser == "public" and public.units >= LEAST_UNITS
    q, rounds = (_BEGUN_Q, _BEGUN_ROUNDS) if begun else (_CLONE_Q, _CLONE_ROUNDS)
    delta = params.privacy.delta
    mechanism = MechanismNumbers(
        sampling_probability=q,
        noise_multiplier=solve_noise(epsilon_of(params, "clone"), delta, q, rounds),
        clipping_norm=1.0,
        clipping="flat",
        rounds=rounds,
        delta=delta,
        queries={},
    )
    local = replace(_CLONE_LOCAL, learning_rate=0.1) if begun else _CLONE_LOCAL
    job = CloneJob(
        variant=params.dynamics.variant,
        seed=params.seed,
        draw=params.privacy.draw,
        bounds=params.chosen.bounds,
        hidden=params.behaviour.hidden,
        log_variance_bounds=params.behaviour.log_variance_bounds,
        start="public" if begun else "random",
        normaliser="public" if params.normaliser == "public" else "model",
        scaled_by=None if params.normaliser == "public" else model_identity,
        local=count_rows(local, manifest),
        server=_CLONE_SERVER,
        mechanism=mechanism,
    )
    noise = noise_share(job.build_mechanism(manifest), job.network(manifest))
    if manifest.info.spaces.discrete_actions and noise > _NOISE_OF_HIDDEN and not begun:
        job = replace(job, hidden=())
        noise = noise_share(job.build_mechanism(manifest), job.network(manifest))
    walk = _WALK_FROM_PUBLIC if begun else _LARGEST_WALK / (1 + noise)
    return _with_clip(job, manifest, noise, walk)


def _with_clip(job: CloneJob, manifest: Manifest, noise: float, walk: float) -> CloneJob:
    """Give a clone the clip that its noise leaves room for, or that of its variant.

    C is the largest, up to 0.2, at which the noise of all rounds moves the weights by at most
    ``walk``. T rounds of noise z C √d / (qK), each carried on by the momentum β, end
    z C √(dT) / (qK (1 - β)) = s C T / (1 - β) away from where they began. K is public.

    Args:
        job: with the noise of its rounds.
        manifest: of the data.
        noise: s, see `noise_share`.
        walk: the norm of the noise of all rounds.

    Raises:
        PipelineError: the noise leaves no clip.
    """
    network, norm = job.network(manifest), None
    if job.variant != "no_clip":
        carried = 1 / (1 - job.server.server_momentum)
        largest = walk / (noise * job.mechanism.rounds * carried)
        norm = float(f"{min(_LARGEST_NORM, largest):.4g}")
        if norm < _SMALLEST_NORM:
            remedy = "make it smaller, or raise" if network.hidden else "raise"
            raise PipelineError(
                f"params.yaml: behaviour.hidden: found {list(network.hidden)}, with "
                f"{network.parameters} noised weights, whose noise leaves a clip of {norm:g} with "
                f"{manifest.private_units} units; {remedy} privacy.target_epsilon"
            )
    multiplier = job.mechanism.noise_multiplier if job.variant == "private" else 0.0
    mechanism = replace(job.mechanism, noise_multiplier=multiplier, clipping_norm=norm)
    return replace(job, mechanism=mechanism)
