"""The updates that params.yaml can name, with the settings that it leaves out."""

from primorl.config.blocks import Online
from primorl.online.dppg import DPPG
from primorl.online.learning import Update
from primorl.online.policy_optimisation import NaturalGradientByDescent, PolicyGradient, Rebel

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
    rate, norm = asked.learning_rate, asked.clipping_norm
    if asked.algorithm == "dp-pg":
        return PolicyGradient(rate, norm, discount=discount)
    if asked.algorithm == "dppg":
        return DPPG(
            clipping_norm=norm,
            local_learning_rate=1.0,
            epochs=4,
            minibatches=1,
            decay=0.97,
            learning_rate=rate,
            discount=discount,
            local_steps="gradient",
        )
    if asked.algorithm == "dp-rebel":
        return Rebel(temperature=10.0, step_size=rate, steps=_STEPS, clipping_norm=norm, discount=discount)
    return NaturalGradientByDescent(rate, norm, steps=_STEPS, step_size=0.5, ball=0.5, discount=discount)
