"""What `train_model` refuses before anything is charged: choices that fit neither each other nor the data."""

import math

from primorl.config.params import Params
from primorl.dynamics.termination import LEARNED, NONE, RULES
from primorl.project.errors import PipelineError
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore


def refuse_what_needs_public_units(params: Params, manifest: Manifest) -> None:
    """Name the first choice that asks the public split for something, where there is none.

    Raises:
        PipelineError: there is such a choice, or actions would be standardised by bounds that are infinite.
    """
    declared, chosen = params.chosen.bounds, params.privacy.statistics.normaliser
    bounds, patience = f"datasets/{params.dataset}.yaml: bounds", params.dynamics.early_stopping.patience
    sides = (*manifest.info.spaces.action_low, *manifest.info.spaces.action_high)
    if chosen != "public" and not all(map(math.isfinite, sides)):
        raise PipelineError(
            f"params.yaml: privacy.statistics.normaliser: found {chosen}, which standardises actions by their declared "
            f"bounds, and those of dataset {params.dataset} are infinite; declare them, or use public"
        )
    for key, found, needs_public, allowed in (
        (
            "params.yaml: privacy.statistics.normaliser",
            chosen,
            chosen == "public",
            "bounds (the declared ones), private (charged)",
        ),
        ("params.yaml: dynamics.early_stopping.patience", patience, patience is not None, "null: all rounds are run"),
        (f"{bounds}.observation", declared.observation, declared.observation == "public", "space, {low, high}"),
        (f"{bounds}.reward", declared.reward, declared.reward == "public", "[low, high]"),
    ):
        if needs_public and not manifest.public_units:
            raise PipelineError(
                f"{key}: found {found}, which needs public units, and there are none "
                f"(partition.public_fraction); allowed: {allowed}"
            )


def refuse_policies_without_a_start(params: Params, manifest: Manifest) -> None:
    """Refuse a model in which no policy could be judged: with no environment, public states or released ones.

    Raises:
        PipelineError: first states come from nowhere.
    """
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


def check_termination(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse a rule that nobody declared, or that is of another task, and data that contradict the choice.

    Only the public split is looked at; ``ingest`` looks at all rows.

    Raises:
        PipelineError: it is so.
    """
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
    if chosen == NONE and bool(public.terminated().any()):
        raise PipelineError(
            f"{key}: found none, but episodes of data/partitions/public terminate; allowed is {LEARNED} or a rule of "
            f"the task (for observations of size {size}: {', '.join(fitting) or 'there is none'})"
        )
