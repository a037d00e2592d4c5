"""The private mechanism of one cohort: the only way from users' trajectories to the policy."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from primorl.model.numerics import to_device
from primorl.online.network import PolicyNetwork
from primorl.privacy.ledger.checkpoint import State
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import Mechanism

ONE_USER = "user"
"""What one unit of privacy is: everything that one user does in the run."""


def online_mechanism(
    *,
    users: int,
    cohort: int,
    noise_multiplier: float,
    releases: int,
    delta: float,
) -> Mechanism:
    """Return the mechanism of a run in which every user is in one cohort.

    Formal guarantee: a cohort of ``cohort`` users (m, public) makes ``releases`` noisy sums, in
    which a user's vector has norm at most 1. Replacing a user by an empty one, with zero
    contributions, changes no other cohort than her own: the policies of other users are
    post-processing of releases. So all cohorts together cost her as much as her own do (parallel
    composition), ``releases`` Gaussian mechanisms of noise multiplier z.

    Args:
        users: N, users of the run, at most; public.
        cohort: m, the divisor of every sum.
        noise_multiplier: z; 0: no noise, the non-private twin, which keeps the clip.
        releases: noisy sums that an update makes of one cohort.
        delta: at which ε is stated.
    """
    return Mechanism(
        units=users,
        unit=ONE_USER,
        sampling_probability=1.0,
        clip=L2Clip(1.0),
        noise_multiplier=noise_multiplier,
        rounds=releases,
        delta=delta,
        denominator=cohort,
    )


class Cohort:
    """One cohort's mechanism: it releases as many noisy means as were paid for, and no more.

    Args:
        mechanism: of the run.
    """

    def __init__(self, mechanism: Mechanism):
        self._mechanism = mechanism
        self._left = mechanism.rounds

    @property
    def users(self) -> int:
        """Public size m of a cohort."""
        return int(self._mechanism.divisor)

    def noisy_mean(self, contributions: Iterable[Tensor], clipping_norm: float) -> Tensor:
        """Release (Σ clipped contributions + N(0, (zS)² I)) / m.

        Formal guarantee: every contribution is scaled to norm at most S; vectors that are not
        finite become zero. The release is S times that of vectors of norm at most 1, so z alone
        decides on ε, and S may differ from release to release as long as it is public or follows
        from earlier releases.

        Args:
            contributions: one row for each user, float32 or float64, in pieces ``[u, n]``, so that
                memory holds few of them; sensitive. Users who are not there contribute zero.
            clipping_norm: S.

        Returns:
            float32 ``[n]``.

        Raises:
            ValueError: more users than m, no piece at all, or more releases than were paid for.
        """
        if self._left < 1:
            raise ValueError("the cohort's releases are used up")
        self._left -= 1
        mechanism = self._mechanism
        clip, grid = mechanism.clip, mechanism.grid
        assert isinstance(clip, L2Clip)
        total, users = None, 0
        for rows in contributions:
            users += len(rows)
            if users > self.users:
                raise ValueError(f"{users} users in a cohort of {self.users}")
            clipped = clip.finish(
                rows.detach().to(torch.float64, copy=True).mul_(1 / clipping_norm)
            )
            # the sum is then exact, so that nobody's presence moves the rounding of the others
            if grid > 0:
                clipped.mul_(1 / grid).trunc_()
            own = clipped.sum(0)
            total = own if total is None else total.add_(own)
        if total is None:
            raise ValueError("no contributions: an empty cohort is a piece of no rows, [0, n]")
        unit = mechanism.release(total.mul_(grid or 1.0))
        return unit * clipping_norm


PARAMETERS = "parameters"
"""Among the values: the policy's parameters, ``[d]``."""

_KEPT, _VALUE = "kept", "values."  # in checkpoints

Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class Trajectories:
    """The steps of U users under one released policy. Sensitive: discard right after the update.

    A user may have several episodes, one after the other. T, the number of steps that a user may
    take, is public, and all tensors have it as their second size, for any users: so the computation
    for one user does not depend on the others, not even in its last digit.

    Attributes:
        observations: before each step, in the environment's units, float32 ``[U, T, S]``.
        actions: numbers of discrete actions, int64 ``[U, T]``; or draws of `PolicyNetwork.sample`
            for a box, before it was squashed into the bounds, float32 ``[U, T, A]``.
        rewards: float32 ``[U, T]``.
        next_observations: after each step, float32 ``[U, T, S]``.
        terminated: the episode ended by itself with this step, bool ``[U, T]``.
        ends: last step of an episode, whether it terminated or was cut off, bool ``[U, T]``.
        valid: a step that the user took, bool ``[U, T]``; the others are padding, which is zero.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminated: Tensor
    ends: Tensor
    valid: Tensor

    @property
    def users(self) -> int:
        """U."""
        return len(self.rewards)

    @property
    def steps(self) -> int:
        """T."""
        return self.rewards.shape[1]

    def of(self, users: slice) -> "Trajectories":
        """Return the same of some of the users."""
        return Trajectories(**{name: value[users] for name, value in vars(self).items()})

    def fill(self, users: int) -> "Trajectories":
        """Return the same with empty users behind, up to so many."""
        return Trajectories(**{name: fill(value, users) for name, value in vars(self).items()})

    def to(self, device: torch.device) -> "Trajectories":
        """Return the same on a device."""
        return to_device(self, device)


def fill(values: Tensor, users: int) -> Tensor:
    """Add rows of zeros to ``[U, ..]`` up to so many; the same tensor if it has them."""
    missing = users - len(values)
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])]) if missing else values


class SimulatedUsers:
    """Every user is an environment of her own, which is reset when she arrives.

    All of a cohort step together.

    Args:
        environments: that they act in; see `GymBatch` of primorl.simulators.
        steps: T, which a user takes at most.
        episodes: episodes of one user at most; None: as many as fit into her steps.
        seed: of the environments and of the actions, together with the numbers of the users.
    """

    def __init__(self, environments: Any, steps: int, episodes: int | None, seed: int):
        self.batch = environments
        self._steps, self._episodes, self._seed = steps, episodes, seed

    def meet(
        self, numbers: Sequence[int], network: PolicyNetwork, parameters: Tensor
    ) -> Trajectories:
        """Let users act under a policy and return their trajectories, U = len(numbers).

        Args:
            numbers: of the users, in the order of their arrival from 0. Each is met once.
            network: shape of the policy.
            parameters: of the policy, float32 ``[d]``: public or released.
        """
        count, T = len(numbers), self._steps
        drawn = np.random.SeedSequence([self._seed, *numbers]).generate_state(1, np.uint64)
        seed = int(drawn[0] >> 1)
        generator = torch.Generator().manual_seed(seed)
        network, parameters = network.to(torch.device("cpu")), parameters.cpu()
        observations = torch.from_numpy(self.first_observations(count, seed))
        present = torch.ones(count, dtype=torch.bool)
        left = torch.full((count,), self._episodes or T + 1)
        kept: list[tuple[Tensor, ...]] = []
        for step in range(T):
            chosen = network.sample(parameters, observations, generator)
            found = self.batch.step(network.squash(chosen).numpy())
            after, rewards, terminated, truncated = map(torch.from_numpy, found)
            over = terminated | truncated
            last = over | (step == T - 1)
            kept.append((observations, chosen, rewards.float(), after, terminated, last, present))
            left = left - (over & present).long()
            present = present & (left > 0)
            if not present.any():
                break
            # With several episodes each, at every step: else one user's end would move the starts
            # that others draw.
            restart = self._episodes != 1 or bool(over.any())
            observations = torch.from_numpy(self.batch.restart(over.numpy())) if restart else after
        return _pad(kept, T)

    def first_observations(self, count: int, seed: int) -> Any:
        """Reset every user's environment; observations ``[count, S]``."""
        return self.batch.reset(count, seed)


def _pad(kept: Sequence[tuple[Tensor, ...]], steps: int) -> Trajectories:
    """Steps of all users ``[U, ..]`` as ``[U, T, ..]``; steps after a user has left are zero."""
    valid = torch.stack([step[-1] for step in kept], 1)
    tensors = []
    for values in zip(*kept, strict=True):
        stacked = torch.stack(values, 1)
        stacked = stacked * valid.view(*valid.shape, *[1] * (stacked.dim() - 2)).to(stacked.dtype)
        whole = stacked.new_zeros(len(stacked), steps, *stacked.shape[2:])
        whole[:, : len(kept)] = stacked
        tensors.append(whole)
    return Trajectories(*tensors)


class Update(Protocol):
    """One private update. Its settings are its fields."""

    name: ClassVar[str]

    @property
    def releases(self) -> int:
        """Count the noisy means that it takes from one cohort."""

    def apply(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> Values:
        """Compute the values after a cohort from the values before and from the cohort's releases,
        nothing else.

        Args:
            network: shape of the policy.
            values: of the cohorts before; released.
            met: trajectories of the cohort; sensitive.
            cohort: the mechanism.
            number: of the cohort, from 0.
        """


@dataclass(frozen=True)
class OnlineState(State):
    """State of a run between two cohorts; one that was interrupted is left out.

    Attributes:
        values: tensors by name, see `Update`.
        cohorts: how many the run has.
        about: a digest of the offline policy that the run begins with.
        every: after so many cohorts, and after the last one, the parameters are kept for the curve.
        started: cohorts that began, or may have begun. Their users are used up.
        done: cohorts with updates in ``values``.
        kept: parameters after cohorts ``kept_after``; the first are those of the start.
        kept_after: numbers of cohorts.
    """

    values: Values
    cohorts: int
    every: int
    started: int = 0
    done: int = 0
    kept: tuple[Tensor, ...] = ()
    kept_after: tuple[int, ...] = ()
    about: str = ""

    OTHER: ClassVar[str] = "another offline policy"

    @property
    def finished(self) -> bool:
        """Tell whether all cohorts were used."""
        return self.started == self.cohorts

    @property
    def parameters(self) -> Tensor:
        """The policy's parameters, ``[d]``."""
        return self.values[PARAMETERS]

    @classmethod
    def begin(cls, values: Values, cohorts: int, every: int, about: str = "") -> "OnlineState":
        """Begin before the first cohort."""
        first = values[PARAMETERS]
        return cls(values, cohorts, every, kept=(first,), kept_after=(0,), about=about)

    def after(self, values: Values) -> "OnlineState":
        """Take the values after the cohort that was started last."""
        now = replace(self, values=values, done=self.done + 1)
        return now._keep() if now.finished or now.started % self.every == 0 else now

    def end(self) -> "OnlineState":
        """Keep the last parameters, also where the last cohort was interrupted."""
        return self if self.kept_after[-1] == self.cohorts else self._keep()

    def _keep(self) -> "OnlineState":
        kept, after = (*self.kept, self.parameters), (*self.kept_after, self.started)
        return replace(self, kept=kept, kept_after=after)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint holds."""
        values = {f"{_VALUE}{name}": value for name, value in self.values.items()}
        return values | {_KEPT: torch.stack(self.kept)}

    def facts(self) -> dict[str, Any]:
        """Return everything else, as strict JSON."""
        facts = {
            name: value for name, value in vars(self).items() if name not in ("values", "kept")
        }
        return facts | {"kept_after": list(self.kept_after)}

    @classmethod
    def restore(cls, tensors: Values, facts: dict[str, Any]) -> "OnlineState":
        """Rebuild the state from a checkpoint's `tensors` and `facts`."""
        values = {
            name.removeprefix(_VALUE): value for name, value in tensors.items() if name != _KEPT
        }
        facts = facts | {"kept_after": tuple(facts["kept_after"])}
        return cls(values, kept=tuple(tensors[_KEPT]), **facts)


def learn(
    update: Update,
    network: PolicyNetwork,
    mechanism: Mechanism,
    users: SimulatedUsers,
    cohorts: Sequence[Sequence[int]],
    state: OnlineState,
    *,
    save_checkpoint: Callable[[OnlineState], None] = lambda state: None,
    on_update: Callable[[OnlineState], object] = lambda state: None,
) -> OnlineState:
    """Meet the cohorts one after the other and update the policy after each, or go on where an
    interrupted run ended.

    The one-pass algorithm of He (private policy optimisation, Algorithm 1) and Algorithm 2 of Rio
    et al. (DPPG): m users' trajectories under the current policy, one private update, and their
    data is discarded.

    A cohort counts as used from the moment it is announced to ``save_checkpoint``, before its users
    are met. A run that was killed goes on with the next cohort, so that no user is used twice.

    Args:
        update: makes the private update.
        network: shape of the policy, on the device where updates are computed.
        mechanism: of the run (`online_mechanism`).
        users: that can be met.
        cohorts: numbers of the users of every cohort.
        state: where the run stands; at first that of `OnlineState.begin`.
        save_checkpoint: must have stored the state durably when it returns.
        on_update: called after every update with the released state.

    Raises:
        ValueError: the state is of another number of cohorts, a user is in two of them, or the
            update takes more releases than the mechanism pays for.
    """
    if state.cohorts != len(cohorts):
        raise ValueError(f"the state is of {state.cohorts} cohorts, found {len(cohorts)}")
    if len({number for cohort in cohorts for number in cohort}) < sum(map(len, cohorts)):
        raise ValueError("a user is met once, and a number is in two cohorts")
    if update.releases > mechanism.rounds:
        raise ValueError(
            f"the update takes {update.releases} releases, the mechanism pays for "
            f"{mechanism.rounds}"
        )
    now, here = state, network.device
    while not now.finished:
        number = now.started
        now = replace(now, started=number + 1)
        save_checkpoint(now)
        values = {name: value.to(here) for name, value in now.values.items()}
        met = users.meet(cohorts[number], network, values[PARAMETERS]).to(here)
        updated = update.apply(network, values, met, Cohort(mechanism), number)
        now = now.after({name: value.cpu() for name, value in updated.items()})
        on_update(now)
    now = now.end()
    save_checkpoint(now)
    return now
