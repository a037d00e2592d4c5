"""A private evaluation in a tiny project: answers written by hand, with a real plan and real
charges.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from primorl.base.files import file_sha256
from primorl.base.paths import MANIFEST, MODEL, PARTITIONS, POLICY, PRIVATE_EVALUATION, SUMMARY
from primorl.config import params
from primorl.data.storage.schema import Manifest
from primorl.evaluate.private.results import (
    MEAN_RETURN,
    Answer,
    Check,
    Histogram,
    PrivateEvaluation,
    Verdict,
)
from primorl.evaluate.summary import Summary, stated
from primorl.paid.accounts import dataset_version, project_ledger
from primorl.paid.partitions import assumptions
from primorl.privacy.ledger.charges import spent_on_dataset
from primorl.privacy.ledger.history import Request
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.privacy.statement import Statement

BIAS = "returns beyond the bounds are clipped"
SHARES = Histogram(
    estimator="behaviour", what="return", edges=(-20.0, -10.0, 0.0), shares=(0.75, 0.25)
)


def answer(
    of: str, value: float, statement: Statement | None, *, by: str, what: str = MEAN_RETURN
) -> Answer:
    shared: dict[str, Any] = {"estimator": by, "of": of, "what": what, "value": value, "bias": BIAS}
    if statement is None:
        return Answer(ci95=None, covers="nothing", epsilon=None, delta=None, **shared)
    ends = (value - 1.5, value + 1.5)
    return Answer(
        ci95=ends,
        covers="sampling and noise",
        epsilon=statement.epsilon,
        delta=statement.delta,
        **shared,
    )


def evaluate_privately() -> PrivateEvaluation:
    """Charge for two estimators on the project in the working directory; write answers and the
    summary's part.
    """
    chosen, manifest = params.load(Path("params.yaml")), Manifest.load(MANIFEST)
    version = dataset_version(manifest, PARTITIONS)
    plan = Plan(
        units=manifest.private_units,
        unit=manifest.info.unit,
        sampler=PoissonSampler(1.0),
        clip=L2Clip(1.0),
        noise_multiplier=12.0,
        rounds=1,
        delta=chosen.privacy.delta,
    )
    bare = plan.statement(
        dataset_fingerprint=manifest.info.dataset_fingerprint,
        public_assumptions=assumptions(manifest),
    )
    with closing(project_ledger(chosen)) as ledger:
        charges = {
            name: ledger.reserve(
                Request(
                    version,
                    chosen.dataset,
                    f"evaluate_private: {name}",
                    name,
                    plan.event,
                    plan.delta,
                    None,
                    None,
                ),
                None,
            ).id
            for name in ("behaviour", "model_check")
        }
        spent = spent_on_dataset(ledger, version, chosen.privacy.budget.delta)
        statements = {name: bare.with_payment(charge, spent) for name, charge in charges.items()}
        paid = statements["behaviour"]
        record = PrivateEvaluation(
            dataset=chosen.dataset,
            unit=plan.unit,
            units=plan.units,
            discount=0.99,
            horizon=manifest.info.horizon,
            estimates=(
                answer("behaviour", -12.25, paid, by="behaviour"),
                answer("model", 0.5, paid, by="model_check", what="reward error, 5 steps ahead"),
                answer("policy", -9.5, None, by="model"),
            ),
            histograms=(SHARES,),
            verdict=Verdict(check=Check(believe="yes", ratio=0.1, wrong=(), horizons=(1, 5))),
            statements=statements,
            total=spent,
            model_sha256=file_sha256(MODEL / "model.safetensors"),
            policy_sha256=file_sha256(POLICY / "policy.safetensors"),
            clone_sha256=None,
        )
        for name, charge in charges.items():
            ledger.commit(charge, record.made(name))
    rewrite(record)
    return record


def rewrite(record: PrivateEvaluation) -> None:
    """Write the answers, and what the summary repeats of them."""
    record.write(PRIVATE_EVALUATION)
    replace(Summary.read(SUMMARY), **stated(Statement.read(MODEL), record)).write(SUMMARY)
