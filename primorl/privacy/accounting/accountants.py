"""dp-accounting's accountants, with the events that this project composes and they do not know."""

import math
from functools import lru_cache
from typing import Any

import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event, pld, rdp

from primorl.privacy.accounting.groups import mixture_rdp
from primorl.privacy.accounting.pure import PureDpEvent, pure_rdp


class PldWithPure(pld.PLDAccountant):  # type: ignore[misc]  # the package has no types
    """dp-accounting's PLD, which also composes `PureDpEvent`.

    Where a unit is replaced by another, it is zeroed out and the other one put in its place: 2ε.
    """

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Any:
        if not isinstance(event, PureDpEvent):
            return super()._maybe_compose(event, count, do_compose)
        if do_compose:
            epsilon = float(event.epsilon)
            if self.neighboring_relation is dp_accounting.NeighboringRelation.REPLACE_ONE:
                epsilon *= 2
            likely = -math.log1p(math.exp(-epsilon))
            rare = likely - epsilon
            one = pld.privacy_loss_distribution.from_two_probability_mass_functions(
                {0: rare, 1: likely},
                {0: likely, 1: rare},
                pessimistic_estimate=True,
                value_discretization_interval=self._value_discretization_interval,
                symmetric=True,
            )
            self._pld: Any = self._pld.compose(one.self_compose(count))
        return None


class RdpWithGroups(rdp.RdpAccountant):  # type: ignore[misc]
    """dp-accounting's RDP, which also composes `PureDpEvent` and the mixtures of `groups.grouped`."""

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Any:
        if isinstance(event, PureDpEvent):
            own = pure_rdp(event.epsilon, self._orders)
        elif isinstance(event, dp_event.MixtureOfGaussiansDpEvent):
            own = mixture_rdp(event, self._orders)
        elif do_compose and _is_sampled_gaussian(event):
            own = _sampled_gaussian_rdp(event, tuple(self._orders))
        else:
            return super()._maybe_compose(event, count, do_compose)
        if do_compose:
            self._rdp += count * own
        return None


def _is_sampled_gaussian(event: dp_event.DpEvent) -> bool:
    return isinstance(event, dp_event.PoissonSampledDpEvent) and isinstance(event.event, dp_event.GaussianDpEvent)


@lru_cache(maxsize=256)
def _sampled_gaussian_rdp(event: dp_event.DpEvent, orders: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """dp-accounting's divergences of one round, which take milliseconds and are asked for again and again."""
    found: npt.NDArray[np.float64] = np.asarray(rdp.RdpAccountant(orders).compose(event).rdp)
    found.flags.writeable = False
    return found
