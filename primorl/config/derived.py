"""Values that follow from other keys where they are auto: the kind of model, and what private people are asked."""

from typing import Any

from primorl.config.reading import found_at

MODEL, NORMALISER, STARTS = "dynamics.model", "privacy.statistics.normaliser", "privacy.statistics.starts"
QUERY_NOISE = "privacy.statistics.noise_multiplier"
KEYS = (MODEL, NORMALISER, STARTS, QUERY_NOISE)
ORIGIN = "who is public"
_AUTO, _DEGREE = "auto", "dynamics.degree"


def decide_derived(content: dict[str, Any], origins: dict[str, str], to_fit: str) -> None:
    """Put values in the place of ``auto``, in ``content``.

    Where nobody is public, or those who consented, who may differ from the others, heads are linear, unless
    ``dynamics.hidden`` asks for a network. Of linear heads the private people tell scales, and first states where no
    environment does. Networks begin with a public split that a hash drew, which tells both for nothing.

    Args:
        content: of ``params.yaml``, every other key decided.
        origins: of the decided keys.
        to_fit: the origin of a key that is fitted later.
    """
    nobody = found_at(content, "partition.public_fraction") == 0
    linear = (
        (nobody or found_at(content, "partition.public") is not None)
        and origins.get("dynamics.hidden") == to_fit
        and origins.get("dynamics.start") == to_fit
    )
    mopo = found_at(content, "dynamics.variant") == "mopo"
    kind = found_at(content, MODEL)
    kind = ("linear" if linear and not mopo else "network") if kind == _AUTO else kind
    alone = found_at(content, "chosen.environment") is None
    values = {
        MODEL: kind,
        NORMALISER: "private" if kind == "linear" else "bounds" if nobody else "public",
        STARTS: (nobody or kind == "linear") and not mopo and alone,
        QUERY_NOISE: None,
    }
    for key, value in values.items():
        block, _, last = key.rpartition(".")
        place = found_at(content, block)
        if isinstance(place, dict) and place.get(last) == _AUTO:
            place[last] = value
    if kind == "network" and origins.get(_DEGREE) == to_fit:
        origins[_DEGREE] = ORIGIN  # networks have no features
