"""The updates that params.yaml can name, with the settings that it leaves out; these were measured."""

from primorl.config.blocks import Online
from primorl.online.dppg import DPPG
from primorl.online.learning import Update
from primorl.online.natural_gradient import NaturalGradientByDescent, NaturalGradientByStatistics
from primorl.online.network import PolicyNetwork
from primorl.online.rebel import Rebel
from primorl.online.reinforce import PolicyGradient

MOST_FOR_STATISTICS = 64
"""Up to so many parameters, the natural gradient is made of noisy sufficient statistics: their number is quadratic."""


def update_of(asked: Online, network: PolicyNetwork, discount: float) -> Update:
    """The update that ``online.algorithm`` names (docs/online.md has what was measured).

    Args:
        asked: the block ``online``.
        network: shape of the policy.
        discount: γ.
    """
    guarantee, rate, norm = asked.guarantee, asked.learning_rate, asked.clipping_norm
    if asked.algorithm == "dp-pg":
        return PolicyGradient(rate, norm, discount=discount, guarantee=guarantee)
    if asked.algorithm == "dppg":
        return DPPG(
            clipping_norm=norm,
            local_learning_rate=1.0,
            epochs=4,
            minibatches=1,
            decay=0.97,
            learning_rate=rate,
            discount=discount,
            guarantee=guarantee,
            local_steps="gradient",
        )
    if asked.algorithm == "dp-rebel":
        return Rebel(
            temperature=1.0, step_size=rate, steps=4, clipping_norm=norm, discount=discount, guarantee=guarantee
        )
    if network.parameters <= MOST_FOR_STATISTICS:
        return NaturalGradientByStatistics(
            rate, norm, ridge=1e-2, largest_step=10.0, discount=discount, guarantee=guarantee
        )
    return NaturalGradientByDescent(
        rate, norm, steps=4, step_size=1.0, ball=10.0, discount=discount, guarantee=guarantee
    )
