"""How the clone of the behaviour is decided: its class, clip and noise."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from primorl.base import PipelineError
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine.heads import PERSISTENCE, SHARES
from primorl.engine.settings import LEAST_UNITS, EarlyStopping, LocalTraining, ServerTraining
from primorl.privacy.accounting.figures import estimate_noise_multiplier
from primorl.work.jobs import CloneJob, MechanismNumbers, noise_of_share, solve_noise
from primorl.work.model_rules import count_rows, epsilon_of, noise_share

_MOST_ROWS = 256  # of a unit and round
_NOISE_OF_HIDDEN = 0.03
"""s, about, up to which logits of discrete actions have hidden layers: with more noise, linear ones
act more like people."""
_FULL_SHARE = 0.5
"""Of the horizon, from which on a unit's rows count in full: a model must know how often
trajectories end, a clone need not, and the fewer units count in full, the more noise."""
_SMALLEST_NORM = 1e-6  # of a clip, as in params.yaml


@dataclass(frozen=True)
class _Rounds:
    """The rounds of a clone.

    Attributes:
        q: with which a unit joins a round.
        rounds: T.
        learning_rate: of the one step on all rows of a unit. With several steps, each unit would
            move towards its own habits, and their mean is too sure.
        momentum: β, of the server.
        averaging: of the released iterates.
        walk: the norm of what the noise of all rounds adds up to; over 1 + s from random weights.
        norm: the largest C.
    """

    q: float
    rounds: int
    learning_rate: float
    momentum: float
    averaging: float
    walk: float
    norm: float


_OF_NETWORK = _Rounds(0.1, 120, 1.0, 0.9, 0.9, walk=5.0, norm=0.2)
# Linear logits are convex: the loss draws them back from where the noise takes them, so that they
# may walk farther.
_OF_LOGITS = _Rounds(0.1, 240, 5.0, 0.5, 0.98, walk=12.0, norm=0.5)
_FROM_PUBLIC = _Rounds(0.3, 40, 0.1, 0.9, 0.9, walk=0.3, norm=0.2)


def clone_job(
    params: Params, manifest: Manifest, public: UnitStore, model_identity: str
) -> CloneJob:
    """Make the job of the clone.

    Its scales are public, or those of the released model, whose identity it then has.

    Raises:
        PipelineError: no noise is enough for its ε, or leaves a clip.
    """
    begun = params.normaliser == "public" and public.units >= LEAST_UNITS
    rounds = _FROM_PUBLIC if begun else _OF_NETWORK
    if manifest.info.spaces.discrete_actions and not begun:
        network = _job_of(rounds, params, manifest, model_identity, estimate_noise_multiplier)
        if _noise_of(network, manifest) > _NOISE_OF_HIDDEN:
            rounds = _OF_LOGITS
    job = _job_of(rounds, params, manifest, model_identity, solve_noise)
    noise = _noise_of(job, manifest)
    walk = rounds.walk if begun else rounds.walk / (1 + noise)
    return _with_clip(job, manifest, noise, walk, rounds.norm)


def _noise_of(job: CloneJob, manifest: Manifest) -> float:
    return noise_share(job.build_mechanism(manifest), job.network(manifest))


def _job_of(
    rounds: _Rounds,
    params: Params,
    manifest: Manifest,
    model_identity: str,
    solve: Callable[..., float],
) -> CloneJob:
    """Make the job of these rounds, with C = 1 and the noise that its ε asks for."""
    delta, public = params.privacy.delta, params.normaliser == "public"
    epsilon = epsilon_of(params, "clone")
    asked = noise_of_share(epsilon, delta, SHARES[PERSISTENCE])
    mechanism = MechanismNumbers(
        sampling_probability=rounds.q,
        noise_multiplier=solve(epsilon, delta, rounds.q, rounds.rounds, (asked,)),
        clipping_norm=1.0,
        clipping="flat",
        rounds=rounds.rounds,
        delta=delta,
        queries={PERSISTENCE: asked},
    )
    local = LocalTraining(
        learning_rate=rounds.learning_rate,
        batch_size=_MOST_ROWS,
        local_epochs=1,
        weight_decay=0.0,
        max_transitions_per_unit=_MOST_ROWS,
        beta_nll=0.0,
    )
    return CloneJob(
        variant=params.dynamics.variant,
        seed=params.seed,
        draw=params.privacy.draw,
        bounds=params.chosen.bounds,
        hidden=() if rounds is _OF_LOGITS else params.behaviour.hidden,
        log_variance_bounds=params.behaviour.log_variance_bounds,
        start="public" if rounds is _FROM_PUBLIC else "random",
        normaliser="public" if public else "model",
        scaled_by=None if public else model_identity,
        local=count_rows(local, manifest, _FULL_SHARE),
        server=ServerTraining(
            server_momentum=rounds.momentum,
            server_averaging=rounds.averaging,
            early_stopping=EarlyStopping(every=10, patience=None),
        ),
        mechanism=mechanism,
    )


def _with_clip(
    job: CloneJob, manifest: Manifest, noise: float, walk: float, most: float
) -> CloneJob:
    """Give a clone the clip that its noise leaves room for, or that of its variant.

    C is the largest, up to ``most``, at which the noise of all rounds moves the weights by at most
    ``walk``. T rounds of noise z C √d / (qK), each carried on by the momentum β, end
    z C √(dT) / (qK (1 - β)) = s C T / (1 - β) away from where they began. K is public.

    Args:
        job: with the noise of its rounds.
        manifest: of the data.
        noise: s, see `noise_share`.
        walk: the norm of the noise of all rounds.
        most: the largest C.

    Raises:
        PipelineError: the noise leaves no clip.
    """
    network, norm = job.network(manifest), None
    if job.variant != "no_clip":
        carried = 1 / (1 - job.server.server_momentum)
        largest = walk / (noise * job.mechanism.rounds * carried)
        norm = float(f"{min(most, largest):.4g}")
        if norm < _SMALLEST_NORM:
            remedy = "make it smaller, or raise" if network.hidden else "raise"
            raise PipelineError(
                f"params.yaml: behaviour.hidden: found {list(network.hidden)}, with "
                f"{network.parameters} noised weights, whose noise leaves a clip of {norm:g} with "
                f"{manifest.private_units} units; {remedy} privacy.target_epsilon"
            )
    mechanism = replace(job.mechanism, clipping_norm=norm)
    if job.variant != "private":
        mechanism = replace(mechanism, noise_multiplier=0.0, queries={PERSISTENCE: 0.0})
    return replace(job, mechanism=mechanism)
