"""Audits of the training that params.yaml describes: is its ε refuted? They read the public split alone."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from primorl.base.errors import PipelineError
from primorl.base.paths import MANIFEST, PUBLIC
from primorl.base.reporting import progress_bar
from primorl.config.params import Params
from primorl.data.storage.schema import Manifest
from primorl.engine.one_run_audit import OneRun, audit_one_run
from primorl.paid.accounts import open_public
from primorl.paid.fitting import fitted
from primorl.paid.model import make_plan, training_setup
from primorl.privacy.accounting.rounding import at_least, at_most
from primorl.privacy.audits.bounds import LowerBound
from primorl.privacy.audits.canaries import audit_mechanism, enough_runs
from primorl.tracking.store import Log

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
    plan = dataclasses.replace(
        make_plan(fitted(params, manifest, open_public(params))[0], manifest), queries=()
    )
    canaries = min(canaries, plan.units - 1)
    runs = enough_runs(plan, max(1, canaries)) if runs is None else runs
    with progress_bar(plan.rounds * runs, "audit of the mechanism", "round") as bar:
        return audit_mechanism(
            plan, canaries=canaries, runs=runs, confidence=confidence, on_round=bar.update
        )


def of_one_run(params: Params, canaries: int, confidence: float) -> OneRun:
    """Train once, as ``train_model`` would, on the public split and canaries, all of them taken for private units.

    K is theirs and the rest of the plan that of params.yaml; ε does not depend on K. Public data costs nothing, and the
    model is dropped.

    Raises:
        PipelineError: the plan claims nothing, or no unit is public.
    """
    manifest, public = _claiming(params), open_public(params)
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
    """The manifest of the partitions; refuses a variant that claims nothing that could be refuted."""
    if params.dynamics.variant != "private":
        raise PipelineError(
            f"params.yaml: dynamics.variant: found {params.dynamics.variant}, which claims no ε that an audit could "
            "refute; allowed is private"
        )
    return Manifest.load(MANIFEST)


def report(found: LowerBound | OneRun) -> dict[str, Any]:
    """Return the bounds of an audit, their confidence, and their verdict on the claim, as plain data."""
    content: dict[str, Any] = {}
    if isinstance(found, OneRun):
        content["trained_on"] = (
            "the public split and canaries, taken for private units; the model was dropped"
        )
    content |= dataclasses.asdict(found)
    return content | {
        "bounds": [dataclasses.asdict(bound) for bound in found.bounds],
        "epsilon": found.epsilon,
        "share_of_the_claim": found.epsilon / found.claimed if found.claimed else None,
        "error_of_each_bound": (1 - found.confidence) / len(found.bounds),
        "refutes_the_claim": found.refutes_the_claim,
    }


def log_bounds(log: Log, found: LowerBound | OneRun) -> None:
    """Log the claimed ε and the bounds."""
    audit = "one_run" if isinstance(found, OneRun) else "mechanism"
    if found.claimed is not None:
        log.metric("audit.claimed_epsilon", found.claimed)
    for bound in found.bounds:
        log.metric(f"audit.{audit}.{bound.name}_lower_bound", bound.epsilon)


def draw_bounds(path: Path, claimed: float, bounds: Mapping[str, float], title: str) -> None:
    """Draw lower bounds on ε, by name from top to bottom, beside the claimed ε, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.5 * len(bounds) + 1.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    rows = range(len(bounds))
    colors = ["C3" if value > claimed else "C0" for value in bounds.values()]
    axes.barh(rows, list(bounds.values()), height=0.5, color=colors)
    reach = 1.25 * max(claimed, *bounds.values())
    for row, value in zip(rows, bounds.values(), strict=True):
        axes.annotate(
            at_least(value), (value, row), xytext=(4, 0), textcoords="offset points", va="center"
        )
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
    """Raise the alarm: a `PipelineError` if the claim is refuted."""
    if found.refutes_the_claim:
        name = "one run" if isinstance(found, OneRun) else "mechanism"
        raise PipelineError(
            f"audit ({name}): ε is at least {at_least(found.epsilon)} and {at_most(found.claimed)} is claimed, both at "
            f"δ = {at_most(found.delta)}: the guarantee does not hold; release nothing and look for the bug"
        )
