"""How the clone of the behaviour is decided: its class, clip and noise."""

import math
from dataclasses import replace
from typing import Any, Literal

from primorl.base import PipelineError
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine import heads
from primorl.engine.settings import LEAST_UNITS, EarlyStopping, LocalTraining, ServerTraining
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.work.jobs import CloneJob, MechanismNumbers, noise_of_share, solve_noise
from primorl.work.model_rules import (
    count_rows,
    epsilon_of,
    noise_share,
    round_to,
)

_MOST_ROWS = 256  # of a unit and round
_CLONE_Q, _CLONE_ROUNDS = 0.1, 120
_BEGUN_Q, _BEGUN_ROUNDS = 0.3, 40  # where the public split makes the first weights
_SMALLEST_NORM = 1e-6  # of a clip, as in params.yaml
_LARGEST_NORM, _LARGEST_WALK, _WALK_FROM_PUBLIC = 0.2, 5.0, 0.3
"""Of an update, and of what the noise of all rounds adds up to, from random weights and from those
of the public split; see `clipping_norm`."""
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
_HEADS_LOCAL = replace(
    _CLONE_LOCAL,
    learning_rate=heads.RATE,
    batch_size=heads.ROWS,
    max_transitions_per_unit=heads.ROWS,
)
_LOGIT_RATE = 4 * heads.RATE  # the curvature of a softmax is a quarter of a square's, at most
_NOISE_OF_LOGITS, _NORMS_OF_LOGITS = 0.01, (0.05, 1.0)
"""s C, of which C of logits is made, and its range. Nearly every update is clipped, so C is how far
rounds go."""
_NOISE_OF_SQUARES = 0.01
"""s up to which logits have features of degree 2: with more noise, those of degree 1 cloned better.
"""
_HEADS_SERVER = replace(
    _CLONE_SERVER, server_momentum=heads.MOMENTUM, server_averaging=heads.AVERAGING
)
_LOGITS_SERVER = replace(_HEADS_SERVER, server_momentum=0.9)
"""The squares' momentum left a clone of nine doses half way after all rounds."""
_RESIDUALS_SHARE = 0.1


def clone_job(
    params: Params, manifest: Manifest, public: UnitStore, model_identity: str
) -> CloneJob | None:
    """Make the job of the clone; None: none is asked for.

    Raises:
        PipelineError: no noise is enough for its ε, or leaves a clip.
    """
    if not params.clones:
        return None
    of_heads = params.normaliser != "public" and params.dynamics.model == "linear"
    make = _clone_of_heads if of_heads else _clone_of_network
    job = make(params, manifest, public)
    job = replace(job, local=count_rows(job.local, manifest))
    if params.dynamics.variant != "private":
        silent = dict.fromkeys(job.mechanism.queries, 0.0)
        norm = None if params.dynamics.variant == "no_clip" else job.mechanism.clipping_norm
        mechanism = replace(job.mechanism, noise_multiplier=0.0, queries=silent, clipping_norm=norm)
        job = replace(job, mechanism=mechanism)
    return replace(job, scaled_by=model_identity) if job.normaliser == "model" else job


def _clone(params: Params, **own: Any) -> CloneJob:
    """Make a clone's job of what is decided for its class, and of the settings."""
    return CloneJob(
        variant=params.dynamics.variant,
        seed=params.seed,
        draw=params.privacy.draw,
        bounds=params.chosen.bounds,
        log_variance_bounds=params.behaviour.log_variance_bounds,
        scaled_by=None,
        **own,
    )


def _clone_of_network(params: Params, manifest: Manifest, public: UnitStore) -> CloneJob:
    """Decide for a network, whose clip is what its noise leaves room for.

    Its scales are public, or those of the released model, which is a network, too: long logs have
    policies that polynomials do not express.
    """
    epsilon, delta = epsilon_of(params, "clone"), params.privacy.delta
    scales: Literal["public", "model"] = "public" if params.normaliser == "public" else "model"
    begun = scales == "public" and public.units >= LEAST_UNITS
    q, rounds = (_BEGUN_Q, _BEGUN_ROUNDS) if begun else (_CLONE_Q, _CLONE_ROUNDS)
    noise = solve_noise(epsilon, delta, q, rounds)
    mechanism = MechanismNumbers(
        sampling_probability=q,
        noise_multiplier=noise,
        clipping_norm=1.0,
        clipping="flat",
        rounds=rounds,
        delta=delta,
        queries={},
    )
    job = _clone(
        params,
        model="network",
        degree=None,
        hidden=params.behaviour.hidden,
        taught=(),
        start="public" if begun else "random",
        normaliser=scales,
        local=replace(_CLONE_LOCAL, learning_rate=0.1) if begun else _CLONE_LOCAL,
        server=_CLONE_SERVER,
        mechanism=mechanism,
    )
    network = job.network(manifest)
    walk = _WALK_FROM_PUBLIC if begun else _LARGEST_WALK
    norm = clipping_norm(job.build_mechanism(manifest), network.parameters, walk)
    if norm < _SMALLEST_NORM:
        raise PipelineError(
            f"params.yaml: behaviour.hidden: found {list(network.hidden)}, {network.parameters} "
            f"weights, whose noise leaves a clip of {norm:g} with {manifest.private_units} "
            "units; make it smaller, or raise privacy.target_epsilon"
        )
    return replace(job, mechanism=replace(mechanism, clipping_norm=norm))


def clipping_norm(mechanism: Mechanism, parameters: int, walk: float) -> float:
    """Choose a clone's C: the largest at which the noise of all rounds moves the weights by at most
    ``walk``, up to 0.2.

    T rounds of noise z C √d / (qK), each carried on by the momentum β, end z C √(dT) / (qK (1 - β))
    away from where they began. K, the number of units, is public.

    Args:
        mechanism: of the rounds, with any C.
        parameters: d, of the network.
        walk: the norm of the noise of all rounds.
    """
    carried = 1 / (1 - _CLONE_SERVER.server_momentum)
    of_round = mechanism.noise_multiplier * math.sqrt(parameters) / mechanism.expected_cohort
    of_all = of_round * math.sqrt(mechanism.rounds) * carried
    return float(f"{min(_LARGEST_NORM, walk / of_all):.4g}")


def _clone_of_heads(params: Params, manifest: Manifest, public: UnitStore) -> CloneJob:
    """Decide for linear heads in the scales of the released model, of the largest degree that the
    noise leaves room for.

    Logits of discrete actions gained nothing from cubes, and noise is no share of their variance.
    They have no spread to ask for.
    """
    epsilon, delta = epsilon_of(params, "clone"), params.privacy.delta
    spaces = manifest.info.spaces
    discrete, (least, most) = spaces.discrete_actions, _NORMS_OF_LOGITS
    queries = {}
    if not discrete:
        queries = {heads.RESIDUALS: noise_of_share(epsilon, delta, _RESIDUALS_SHARE)}
    noise = solve_noise(epsilon, delta, 1.0, heads.ROUNDS, tuple(queries.values()))
    job = _clone(
        params,
        model="linear",
        degree=2,
        hidden=(),
        taught=params.behaviour.hidden,
        start="random",
        normaliser="model",
        local=replace(_HEADS_LOCAL, learning_rate=_LOGIT_RATE) if discrete else _HEADS_LOCAL,
        server=_LOGITS_SERVER if discrete else _HEADS_SERVER,
        mechanism=MechanismNumbers(
            sampling_probability=1.0,
            noise_multiplier=noise,
            clipping_norm=heads.NORM,
            clipping="flat",
            rounds=heads.ROUNDS,
            delta=delta,
            queries=queries,
        ),
    )
    if discrete:
        share = noise_share(job.build_mechanism(manifest), job.network(manifest))
        if share > _NOISE_OF_SQUARES:
            job = replace(job, degree=1)
            share = noise_share(job.build_mechanism(manifest), job.network(manifest))
        norm = min(max(_NOISE_OF_LOGITS / max(share, 1e-9), least), most)
        return replace(job, mechanism=replace(job.mechanism, clipping_norm=round_to(norm, 2)))
    for degree in heads.degrees(spaces.observation_size, spaces.one_hot, cubes=True):
        job = replace(job, degree=degree)
        network = job.network(manifest)
        lost = heads.lost_to_noise(job.build_mechanism(manifest), job.server, heads.RATE, network)
        if heads.affords(lost, network):
            break
    return job
