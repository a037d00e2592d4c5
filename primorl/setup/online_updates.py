"""The updates that params.yaml can name, with the settings that it leaves out."""

from primorl.config.blocks import Online
from primorl.online.learning import Update
from primorl.online.updates import DPPG, NaturalGradientByDescent, PolicyGradient, Rebel

_STEPS = 2  # noisy steps of the updates that take several

RELEASES: dict[str, int] = {
    DPPG.name: 1,
    PolicyGradient.name: 1,
    NaturalGradientByDescent.name: _STEPS,
    Rebel.name: _STEPS,
}
"""Releases of one cohort, by the name of the update."""


def update_of(asked: Online, discount: float) -> Update:
    """The update that ``online.algorithm`` names (`dppg` is measured in docs/online-results.md).

    Args:
        asked: the block ``online``.
        discount: γ.
    """
    rate, shared = asked.learning_rate, {"clipping_norm": asked.clipping_norm, "discount": discount}
    if asked.algorithm == "dp-pg":
        return PolicyGradient(learning_rate=rate, **shared)
    if asked.algorithm == "dppg":
        return DPPG(local_learning_rate=1.0, epochs=4, minibatches=1, decay=0.97, learning_rate=rate, **shared)
    if asked.algorithm == "dp-rebel":
        return Rebel(temperature=10.0, step_size=rate, steps=_STEPS, **shared)
    return NaturalGradientByDescent(learning_rate=rate, steps=_STEPS, step_size=0.5, ball=0.5, **shared)
