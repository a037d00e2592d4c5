"""Plans of an ensemble from flat settings."""

from typing import Any

from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler


def ensemble_plan(
    kind: type[Plan] = Plan,
    *,
    sampling_probability: float,
    clipping_norm: float,
    members: int,
    layers: int,
    clipping: str = "flat",
    **settings: Any,
) -> Plan:
    clip = EnsembleClip(clipping_norm, clipping, members, layers)  # type: ignore[arg-type]
    return kind(sampler=PoissonSampler(sampling_probability), clip=clip, **settings)
