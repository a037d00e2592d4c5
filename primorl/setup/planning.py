"""From params.yaml, the manifest and the public split to the mechanism of a private training. Reads no private byte.

Everything that can be refused without private data is refused here, before the ledger is asked. Loading this module
needs no torch, so that what a training costs is known at once.
"""

import math
import sys

from primorl.config.params import Params
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.termination import LEARNED, NONE, RULES
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.project.errors import PipelineError
from primorl.setup.declared import check_declared, needs_public, observation_bounds, observation_columns
from primorl.training.settings import LEAST_UNITS
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import UnitStore


def architecture(params: Params, manifest: Manifest) -> Architecture:
    """Size the ensemble that params.yaml describes, for the data of the manifest."""
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


def make_plan(params: Params, manifest: Manifest) -> Plan:
    """Plan the mechanism that params.yaml and the manifest describe.

    Raises:
        ValueError: something is still to be fitted to the data.
        PipelineError: no noise multiplier reaches the target, or the noise of a query leaves nothing of its answer.
    """
    if unfitted := [key for key in sorted(params.unfitted) if key.startswith(("privacy.", "dynamics."))]:
        raise ValueError(f"fit these first, see primorl.setup.fitting: {unfitted}")
    privacy, variant = params.privacy, params.dynamics.variant
    shape = architecture(params, manifest)
    queries = _queries(params, manifest)
    multiplier = 0.0
    if variant == "private":
        multiplier = privacy.noise_multiplier or _solved(params, queries)
    return Plan(
        units=manifest.private_units,
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
    """What ``privacy.statistics`` asks of the private units; variants without a guarantee add no noise.

    Raises:
        PipelineError: the noise would leave nothing of the normaliser's answer.
    """
    asked = params.privacy.statistics
    if asked.normaliser != "private" and not asked.starts:
        return ()
    # They register the queries, and import torch.
    from primorl.training.queries import MOST_NOISE, NORMALISER, STARTS

    columns = observation_columns(manifest)
    multiplier = asked.noise_multiplier if params.dynamics.variant == "private" else 0.0
    queries = []
    if asked.normaliser == "private":
        most = MOST_NOISE * manifest.private_units / columns.fractions.sensitivity
        if multiplier > most:
            raise PipelineError(
                f"params.yaml: privacy.statistics.noise_multiplier: found {multiplier:g}, which leaves nothing of the "
                f"normaliser's answer for {manifest.private_units} units; allowed is up to {most:.3g} for them, or "
                "privacy.statistics.normaliser: bounds"
            )
        queries.append(GaussianQuery.of(NORMALISER, columns.fractions, multiplier))
    if asked.starts:
        queries.append(GaussianQuery.of(STARTS, columns.moments, multiplier))
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
            f"params.yaml: privacy.target_epsilon = {privacy.target_epsilon:.12g}: {impossible}; raise it, or {remedy}"
        ) from None


def check_choices(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse choices that fit neither each other nor the data; warn where δ promises nothing.

    Raises:
        PipelineError: names the first such choice.
    """
    check_declared(params, manifest, public)
    patience = params.dynamics.early_stopping.patience
    if patience is not None and not manifest.public_units:
        raise needs_public("params.yaml: dynamics.early_stopping.patience", patience, "null: all rounds are run")
    _check_starts(params, manifest)
    if manifest.info.environment is None:
        manifest.declared_horizon()
    _check_termination(params, manifest, public)
    _check_start_of_weights(params, public)
    observation_bounds(params, manifest, public)
    delta, units = params.privacy.delta, manifest.private_units
    if params.dynamics.variant == "private" and delta >= 1 / units:
        print(
            f"warning: params.yaml: privacy.delta = {delta:g} is not below 1/{units}, one over the number of "
            "units: a mechanism that publishes a whole unit would pass; choose a smaller delta",
            file=sys.stderr,
        )


def _check_start_of_weights(params: Params, public: UnitStore) -> None:
    """Refuse weights from a public split that is too small, or whose normaliser is not known beforehand."""
    if params.dynamics.start != "public":
        return
    if public.units < LEAST_UNITS:
        raise PipelineError(
            f"params.yaml: dynamics.start: found public, which needs {LEAST_UNITS} public units, and there are "
            f"{public.units} (partition.public_fraction); allowed: random"
        )
    if params.privacy.statistics.normaliser == "private":
        raise PipelineError(
            "params.yaml: dynamics.start: found public, with privacy.statistics.normaliser: private, whose answer is "
            "not known before the rounds; allowed: random, or another normaliser"
        )


def _check_starts(params: Params, manifest: Manifest) -> None:
    """Refuse a model in which no policy could start: without an environment, public states or released ones."""
    if manifest.info.environment is not None or manifest.public_units:
        return
    nowhere = (
        f"datasets/{params.dataset}.yaml says environment: null, and no unit is public (partition.public_fraction): "
        "policies have nowhere to start"
    )
    if params.dynamics.variant == "mopo":
        raise PipelineError(
            f"params.yaml: dynamics.variant: found mopo, which releases no first states, and {nowhere}; allowed are "
            "the other variants with privacy.statistics.starts: true, or public units"
        )
    if not params.privacy.statistics.starts:
        raise PipelineError(
            f"params.yaml: privacy.statistics.starts: found false, and {nowhere}; allowed is true (charged), with "
            "policy.starts: released, or public units"
        )


def _check_termination(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse a termination rule that is unknown, or of another task, or contradicted by the public split."""
    chosen, size = manifest.info.termination, public.observation_size
    key = f"datasets/{params.dataset}.yaml: termination"
    fitting = sorted(name for name, rule in RULES.items() if rule.observation_size == size)
    allowed = ", ".join((NONE, LEARNED, *fitting))
    if chosen not in (NONE, LEARNED, *RULES):
        raise PipelineError(f"{key}: found {chosen!r}; allowed for observations of size {size} are {allowed}")
    if chosen in RULES and chosen not in fitting:
        raise PipelineError(
            f"{key}: found {chosen!r}, a rule for observations of size {RULES[chosen].observation_size}; allowed for "
            f"those of size {size} are {allowed}"
        )
    if chosen == NONE and public.terminates:
        raise PipelineError(
            f"{key}: found none, but episodes of data/partitions/public terminate; allowed is {LEARNED} or a rule of "
            f"the task (for observations of size {size}: {', '.join(fitting) or 'there is none'})"
        )
