"""What params.yaml and the manifest make of `train_model`: sizes, plan and queries. Reads no private byte."""

import math
import sys

from primorl.config.params import Params
from primorl.dynamics.ensemble import Architecture
from primorl.dynamics.termination import LEARNED
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.project.errors import PipelineError
from primorl.training.start_query import STARTS, StartQuery
from primorl.training.statistics import MOST_NOISE, NORMALISER, Columns
from primorl.trajectories.storage.manifest import Manifest


def columns(manifest: Manifest) -> Columns:
    """How the dimensions of an observation are treated."""
    spaces = manifest.info.spaces
    return Columns(spaces.observation_size, spaces.one_hot, spaces.discrete_actions)


def make_plan(params: Params, manifest: Manifest, shape: Architecture) -> Plan:
    """The plan that params.yaml and the manifest describe; reads no private byte.

    Raises:
        PipelineError: no noise multiplier reaches the target.
    """
    privacy, variant = params.privacy, params.dynamics.variant
    units = manifest.private_units
    multiplier = 0.0
    queries = _queries(params, manifest)
    if variant == "private":
        multiplier = privacy.noise_multiplier or _solved(params, queries)
    return Plan(
        units=units,
        unit=manifest.info.unit,
        sampler=PoissonSampler(privacy.sampling_probability),
        clip=EnsembleClip(
            math.inf if variant == "no_clip" else privacy.clipping_norm,
            privacy.clipping,
            shape.members,
            len(shape.layers),
        ),
        noise_multiplier=multiplier,
        rounds=privacy.rounds,
        delta=privacy.delta,
        queries=queries,
    )


def _queries(params: Params, manifest: Manifest) -> tuple[GaussianQuery, ...]:
    """What ``privacy.statistics`` asks of the private units; without noise in variants that promise nothing.

    Raises:
        PipelineError: the normaliser's answer would be nothing but noise.
    """
    asked, parts = params.privacy.statistics, columns(manifest)
    multiplier = asked.noise_multiplier if params.dynamics.variant == "private" else 0.0
    queries = []
    if asked.normaliser == "private":
        sensitivity = parts.fractions.sensitivity
        most = MOST_NOISE * manifest.private_units / sensitivity
        if multiplier > most:
            raise PipelineError(
                f"params.yaml: privacy.statistics.noise_multiplier: found {multiplier:g}, which drowns the "
                f"normaliser's answer of {manifest.private_units} units; allowed is up to {most:.3g} for them, or "
                "privacy.statistics.normaliser: bounds"
            )
        queries.append(GaussianQuery.of(NORMALISER, parts.fractions, multiplier))
    if asked.starts:
        queries.append(GaussianQuery.of(STARTS, StartQuery.moments(parts), multiplier))
    return tuple(queries)


def _solved(params: Params, queries: tuple[GaussianQuery, ...]) -> float:
    privacy = params.privacy
    if privacy.target_epsilon is None:
        raise PipelineError("params.yaml: privacy: give target_epsilon or noise_multiplier")
    try:
        return solve_noise_multiplier(
            privacy.target_epsilon,
            privacy.delta,
            privacy.sampling_probability,
            privacy.rounds,
            tuple(query.noise_multiplier for query in queries),
        )
    except ValueError as impossible:
        remedy = "lower sampling_probability or rounds" + (", or raise statistics.noise_multiplier" if queries else "")
        raise PipelineError(
            f"params.yaml: privacy.target_epsilon = {privacy.target_epsilon:g}: {impossible}; raise it, or {remedy}"
        ) from None


def architecture(params: Params, manifest: Manifest) -> Architecture:
    """The ensemble that params.yaml describes, for the data of the manifest."""
    low, high = params.dynamics.log_variance_bounds
    return Architecture(
        observation_size=manifest.info.spaces.observation_size,
        action_size=manifest.info.spaces.action_size,
        members=params.dynamics.ensemble_size,
        hidden=params.dynamics.hidden,
        log_variance_low=low,
        log_variance_high=high,
        learned_termination=manifest.info.termination == LEARNED,
    )


def warn_of_delta(params: Params, manifest: Manifest) -> None:
    """Say so where δ promises nothing."""
    delta, units = params.privacy.delta, manifest.private_units
    if params.dynamics.variant == "private" and delta >= 1 / units:
        print(
            f"warning: params.yaml: privacy.delta = {delta:g} is not below 1/{units}, one over the number of "
            "units: a mechanism that publishes a whole unit would pass; choose a smaller delta",
            file=sys.stderr,
        )
