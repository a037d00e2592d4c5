"""Learning from users who arrive: cohort after cohort, one private update each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from primorl.online.mechanism import Cohort, OnlinePlan
from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories, Users

PARAMETERS = "parameters"
"""Among the values: the policy's parameters, ``[d]``."""

Values = Mapping[str, Tensor]


class Update(Protocol):
    """One private update. Its settings are its fields."""

    name: ClassVar[str]

    @property
    def releases(self) -> int:
        """How many noisy means, or choices, it takes from one cohort."""

    @property
    def void(self) -> str | None:
        """Why the plan's statement does not hold for what it makes; None: it holds."""

    def begin(self, network: PolicyNetwork, parameters: Tensor) -> dict[str, Tensor]:
        """The values before the first cohort, `PARAMETERS` among them: public, or released before."""

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """The values after a cohort: made of the values before and of what ``cohort`` releases, of nothing else.

        Args:
            network: shape of the policy.
            values: of the cohorts before; released.
            met: what the cohort's users did; sensitive.
            cohort: the mechanism.
            number: of the cohort, from 0.
        """


@dataclass(frozen=True)
class OnlineState:
    """What is carried from cohort to cohort. All of it is released, so it may be written down.

    Attributes:
        values: tensors by name, see `Update`.
        cohorts: how many the run has.
        started: cohorts that began, or may have begun. Their users are used up.
        done: cohorts whose updates are in ``values``.
    """

    values: Values
    cohorts: int
    started: int = 0
    done: int = 0

    lost: ClassVar[bool] = False
    """A cohort that was interrupted is left out; the run goes on with the next users."""

    @property
    def finished(self) -> bool:
        """Whether all cohorts were used."""
        return self.started == self.cohorts

    @property
    def parameters(self) -> Tensor:
        """The policy's, ``[d]``."""
        return self.values[PARAMETERS]

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds as tensors."""
        return dict(self.values)

    def facts(self) -> dict[str, Any]:
        """Everything else, as strict JSON."""
        return {name: value for name, value in vars(self).items() if name != "values"}

    @classmethod
    def restore(cls, tensors: Values, facts: dict[str, Any]) -> "OnlineState":
        """Rebuild the state from a checkpoint's `tensors` and `facts`."""
        return cls(tensors, **facts)


def learn(
    update: Update,
    network: PolicyNetwork,
    plan: OnlinePlan,
    users: Users,
    cohorts: Sequence[Sequence[int]],
    state: OnlineState,
    *,
    save_checkpoint: Callable[[OnlineState], None] = lambda state: None,
    on_update: Callable[[OnlineState], object] = lambda state: None,
    device: torch.device | None = None,
) -> OnlineState:
    """Meet the cohorts one after the other and update the policy after each, or do what an interrupted run left.

    The one-pass algorithm of He (private policy optimisation, Algorithm 1) and Algorithm 2 of Rio et al. (DPPG): m
    users' trajectories under the current policy, one private update, and their data is discarded.

    A cohort counts as used from the moment it is announced to ``save_checkpoint``, before its users are met. A run that
    was killed goes on with the next cohort, so that nobody is used twice.

    Args:
        update: makes the private update.
        network: shape of the policy.
        plan: of the run (`online_plan`, `ChoicePlan`).
        users: who can be met.
        cohorts: numbers of the users of every cohort.
        state: where the run stands; ``OnlineState(update.begin(network, parameters), len(cohorts))`` at first.
        save_checkpoint: must have stored the state durably when it returns.
        on_update: called after every update with the released state.
        device: where updates are computed; None: the CPU.

    Returns:
        The finished state.

    Raises:
        ValueError: the state is of another number of cohorts, or a user is in more cohorts than the plan allows.
    """
    if state.cohorts != len(cohorts):
        raise ValueError(f"the state is of {state.cohorts} cohorts, found {len(cohorts)}")
    here = device or torch.device("cpu")
    network = network.to(here)
    now = state
    while not now.finished:
        number = now.started
        now = replace(now, started=number + 1)
        save_checkpoint(now)
        values = {name: value.to(here) for name, value in now.values.items()}
        met = users.meet(cohorts[number], network, values[PARAMETERS]).to(here)
        updated = update.updated(network, values, met, Cohort(plan, update.releases), number)
        now = replace(now, values={name: value.cpu() for name, value in updated.items()}, done=now.done + 1)
        on_update(now)
    save_checkpoint(now)
    return now
