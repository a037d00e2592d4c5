"""Audits of the training that params.yaml describes: is its ε refuted? They read the public split alone."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from primorl.attacks.one_run import OneRun, audit_one_run
from primorl.config.params import Params
from primorl.privacy.accounting.rounding import at_least, at_most
from primorl.privacy.audits.canaries import LowerBound, audit_mechanism
from primorl.project.errors import PipelineError
from primorl.project.paths import MANIFEST, PUBLIC
from primorl.project.progress import progress_bar
from primorl.setup.training import make_plan, training_setup
from primorl.tracking import Log
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

CONFIDENCE = 0.95
MECHANISM_CANARIES, MECHANISM_RUNS = 256, 64
ONE_RUN_CANARIES = 200


def of_mechanism(params: Params, canaries: int, runs: int) -> LowerBound:
    """Audit the rounds of the plan, on updates made for the audit; reads no data.

    Raises:
        PipelineError: the plan claims nothing, or has fewer units than canaries.
    """
    manifest = _claiming(params)
    plan = dataclasses.replace(make_plan(params, manifest), queries=())
    return audit_mechanism(plan, canaries=min(canaries, plan.units - 1), runs=runs, confidence=CONFIDENCE)


def of_one_run(params: Params, canaries: int) -> OneRun:
    """Train once, as ``train_model`` would, on the public split and canaries, all of them taken for private units.

    K is theirs and the rest of the plan that of params.yaml; ε does not depend on K. Public data costs nothing, and the
    model is dropped.

    Raises:
        PipelineError: the plan claims nothing, or no unit is public.
    """
    manifest, public = _claiming(params), UnitStore.open(PUBLIC)
    if public.units == 0:
        raise PipelineError(
            f"{PUBLIC}: no unit is public (partition.public_fraction), and the one-run audit trains on public units "
            "only; the audit of the mechanism needs none"
        )
    setup = training_setup(params, manifest, public)
    plan = dataclasses.replace(setup.plan, units=public.units + canaries, queries=())
    with progress_bar(plan.rounds, "one-run audit", "round") as bar:
        return audit_one_run(
            dataclasses.replace(setup, plan=plan),
            public,
            public.flat(),
            canaries=canaries,
            confidence=CONFIDENCE,
            on_round=bar.update,
        )


def _claiming(params: Params) -> Manifest:
    """The manifest of the partitions.

    Raises:
        PipelineError: the variant claims nothing that could be refuted.
    """
    if params.dynamics.variant != "private":
        raise PipelineError(
            f"params.yaml: dynamics.variant: found {params.dynamics.variant}, which claims no ε that an audit could "
            "refute; allowed is private"
        )
    return Manifest.load(MANIFEST)


def mechanism_report(found: LowerBound) -> dict[str, Any]:
    """What the audit of the mechanism found, as plain data."""
    return dataclasses.asdict(found) | {"refutes_the_claim": found.refutes_the_claim}


def one_run_report(found: OneRun) -> dict[str, Any]:
    """What the one-run audit found, as plain data."""
    return {
        "trained_on": "the public split and canaries, taken for private units; the model was dropped",
        **dataclasses.asdict(found),
        "refutes_the_claim": found.refutes_the_claim,
    }


def log_mechanism(log: Log, found: LowerBound) -> None:
    """Log the numbers of the audit of the mechanism."""
    _log(log, "mechanism", found.claimed, {"guesses": found.epsilon, "gaussian": found.epsilon_gaussian})


def log_one_run(log: Log, found: OneRun) -> None:
    """Log the numbers of the one-run audit."""
    _log(log, "one_run", found.claimed, {"model": found.model.epsilon, "rounds": found.rounds.epsilon})


def refuse(found: LowerBound | OneRun) -> None:
    """Raise the alarm.

    Raises:
        PipelineError: the claim is refuted.
    """
    if found.refutes_the_claim:
        name, bound = (
            ("one run", found.epsilon)
            if isinstance(found, OneRun)
            else ("mechanism", max(found.epsilon, found.epsilon_gaussian))
        )
        raise PipelineError(
            f"audit ({name}): ε is at least {at_least(bound)} and {at_most(found.claimed)} is claimed, both at δ = "
            f"{at_most(found.delta)}: the guarantee does not hold; release nothing and look for the bug"
        )


def _log(log: Log, audit: str, claimed: float | None, bounds: Mapping[str, float]) -> None:
    if claimed is not None:
        log.metric("audit.claimed_epsilon", claimed)
    for name, value in bounds.items():
        log.metric(f"audit.{audit}.{name}_lower_bound", value)
