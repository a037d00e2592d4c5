"""Audits of the training that params.yaml describes: is its ε refuted? They read the public split alone."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from primorl.config.params import Params
from primorl.privacy.accounting.rounding import at_least, at_most
from primorl.privacy.audits.bounds import Bound, LowerBound
from primorl.privacy.audits.canaries import audit_mechanism, enough_runs
from primorl.project.errors import PipelineError
from primorl.project.paths import MANIFEST, PUBLIC
from primorl.project.progress import progress_bar
from primorl.setup.fitting import fitted
from primorl.setup.model_work import training_setup
from primorl.setup.planning import make_plan
from primorl.tracking.store import Log
from primorl.training.one_run_audit import OneRun, audit_one_run
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import UnitStore

CONFIDENCE = 0.99
"""Of all bounds of one report together. Audits are repeated, and a false alarm would stop a release: so not 95%."""
MECHANISM_CANARIES = 2048
ONE_RUN_CANARIES = 200


def of_mechanism(params: Params, canaries: int, runs: int | None, confidence: float) -> LowerBound:
    """Audit the rounds of the plan, on updates made for the audit; reads no data.

    Args:
        params: the settings.
        canaries: in one run; fewer where the plan has no more units.
        runs: of all rounds; None: as many as see 131,072 canaries.
        confidence: of all bounds together.

    Raises:
        PipelineError: the plan claims nothing, or has fewer units than canaries.
    """
    manifest = _claiming(params)
    plan = dataclasses.replace(make_plan(fitted(params, manifest, UnitStore.open(PUBLIC))[0], manifest), queries=())
    canaries = min(canaries, plan.units - 1)
    runs = enough_runs(plan, max(1, canaries)) if runs is None else runs
    with progress_bar(plan.rounds * runs, "audit of the mechanism", "round") as bar:
        return audit_mechanism(plan, canaries=canaries, runs=runs, confidence=confidence, on_round=bar.update)


def of_one_run(params: Params, canaries: int, confidence: float) -> OneRun:
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
    setup = training_setup(fitted(params, manifest, public)[0], manifest, public)
    plan = dataclasses.replace(setup.plan, units=public.units + canaries, queries=())
    with progress_bar(plan.rounds, "one-run audit", "round") as bar:
        return audit_one_run(
            dataclasses.replace(setup, plan=plan),
            public,
            public.flat(),
            canaries=canaries,
            confidence=confidence,
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
    return dataclasses.asdict(found) | _verdict(found)


def one_run_report(found: OneRun) -> dict[str, Any]:
    """What the one-run audit found, as plain data."""
    return {
        "trained_on": "the public split and canaries, taken for private units; the model was dropped",
        **dataclasses.asdict(found),
        "bounds": [dataclasses.asdict(bound) for bound in found.bounds],
        **_verdict(found),
    }


def log_mechanism(log: Log, found: LowerBound) -> None:
    """Log the numbers of the audit of the mechanism."""
    _log(log, "mechanism", found.claimed, found.bounds)


def log_one_run(log: Log, found: OneRun) -> None:
    """Log the numbers of the one-run audit."""
    _log(log, "one_run", found.claimed, found.bounds)


def draw_bounds(path: Path, claimed: float, bounds: Mapping[str, float], title: str) -> None:
    """Draw lower bounds on ε beside the claimed ε, as a PNG.

    Args:
        path: the file to write.
        claimed: what the plan states.
        bounds: by name, top to bottom.
        title: above it all.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.5 * len(bounds) + 1.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    rows = range(len(bounds))
    colors = ["C3" if value > claimed else "C0" for value in bounds.values()]
    axes.barh(rows, list(bounds.values()), height=0.5, color=colors)
    reach = 1.25 * max(claimed, *bounds.values())
    for row, value in zip(rows, bounds.values(), strict=True):
        axes.annotate(at_least(value), (value, row), xytext=(4, 0), textcoords="offset points", va="center")
    axes.axvline(claimed, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        f"claimed {at_most(claimed)}", (claimed, 1), xytext=(4, -4), textcoords=("offset points", "offset points"),
        xycoords=("data", "axes fraction"), va="bottom",
    )  # fmt: skip
    axes.set_yticks(rows, bounds.keys())
    axes.invert_yaxis()
    axes.set(xlabel="ε", xlim=(0, reach))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=11, pad=18)
    figure.savefig(path, format="png", metadata={"Software": None})


def refuse(found: LowerBound | OneRun) -> None:
    """Raise the alarm.

    Raises:
        PipelineError: the claim is refuted.
    """
    if found.refutes_the_claim:
        name = "one run" if isinstance(found, OneRun) else "mechanism"
        raise PipelineError(
            f"audit ({name}): ε is at least {at_least(found.epsilon)} and {at_most(found.claimed)} is claimed, both at "
            f"δ = {at_most(found.delta)}: the guarantee does not hold; release nothing and look for the bug"
        )


def _verdict(found: LowerBound | OneRun) -> dict[str, Any]:
    """How sure the bounds are, and what they say of the claim."""
    share = found.epsilon / found.claimed if found.claimed else None
    return {
        "epsilon": found.epsilon,
        "share_of_the_claim": share,
        "error_of_each_bound": (1 - found.confidence) / len(found.bounds),
        "refutes_the_claim": found.refutes_the_claim,
    }


def _log(log: Log, audit: str, claimed: float | None, bounds: Sequence[Bound]) -> None:
    if claimed is not None:
        log.metric("audit.claimed_epsilon", claimed)
    for bound in bounds:
        log.metric(f"audit.{audit}.{bound.name}_lower_bound", bound.epsilon)
