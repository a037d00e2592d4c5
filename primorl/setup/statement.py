"""``privacy.json`` of a model: what is promised, and what that takes for granted."""

from dataclasses import replace

from primorl.config.params import Params
from primorl.dynamics.termination import NONE, RULES
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import Statement
from primorl.tracking import StageRun
from primorl.trajectories.storage.manifest import PUBLIC_BY, Manifest


def privacy_statement(plan: Plan | None, manifest: Manifest, params: Params) -> Statement:
    """The statement of a model, before payment; without a plan (variant mopo) it guarantees nothing."""
    fingerprint, termination = manifest.info.dataset_fingerprint, manifest.info.termination
    if plan is not None:
        statement = plan.statement(
            dataset_fingerprint=fingerprint, public_assumptions=assumptions(manifest), termination=termination
        )
    else:
        statement = Statement.no_guarantee(
            unit=manifest.info.unit,
            units=manifest.private_units,
            dataset_fingerprint=fingerprint,
            reason="variant mopo: trained on raw private transitions, and its policy's rollouts start from them",
        )
    return replace(
        statement,
        termination=termination,
        public_units=manifest.public_units,
        trajectories_per_person=manifest.info.trajectories_per_person,
        settings_origin={key: params.origins[key] for key in params.suggested()},
    )


def assumptions(manifest: Manifest) -> list[str]:
    """What the guarantee takes for granted: nothing here may be read off private rows."""
    info = manifest.info
    simulated = info.environment is not None
    assumptions = [
        f"the number of private units, {manifest.private_units}",
        f"every unit of the public split ({manifest.public_units} units, {PUBLIC_BY[manifest.public_by]})"
        if manifest.public_units
        else "no unit: there is no public split",
        "observation and action sizes, "
        + ("the environment and its declared spaces" if simulated else "the declared columns, categories and bounds"),
        "the declared bounds of observations and rewards",
        "the wall time of the run",
        "which versions of the data share units, and how many charges there were on them",
    ]
    if info.horizon is not None:
        by_whom = "as declared or by the environment" if simulated else "as declared"
        assumptions.append(f"episodes of at most {info.horizon} steps, {by_whom}")
    if info.trajectories_per_person is not None:
        assumptions.append(f"at most {info.trajectories_per_person} trajectories of one person, as declared")
    if info.termination == NONE:
        assumptions.append("that no episode terminates")
    elif info.termination in RULES:
        assumptions.append(f"when an episode ends: the declared rule {info.termination}")
    return assumptions


def log_statement(run: StageRun, statement: Statement) -> None:
    """Tag the run with the statement. ε is that of the reservation, also where training stopped early.

    It is no metric here: the pipeline's run has that, so that a search by ε lists every result once.
    """
    for key in ("private", "epsilon", "delta", "noise_multiplier", "unit", "dataset_fingerprint"):
        run.tag(key, str(getattr(statement, key)))
