"""Cohorts made by hand, their neighbours, and mechanisms that record what enters the noise."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from primorl.online.learning import (
    PARAMETERS,
    Cohort,
    Trajectories,
    Update,
    Values,
    online_mechanism,
)
from primorl.online.network import PolicyNetwork
from primorl.privacy.mechanism.mechanism import Mechanism
from research.networks import random_network

USERS, STEPS, SIZE = 4, 12, 3
OTHERS = [0, 2, 3]  # all but user 1


def network(
    hidden: tuple[int, ...] = (),
    *,
    discrete: bool = True,
    size: int = SIZE,
    actions: int = 2,
    fixed: int = 0,
) -> PolicyNetwork:
    """A small network, behind a fixed layer of so many units if there are any."""
    low = torch.zeros(actions) if discrete else -torch.ones(actions)
    drawn = torch.Generator().manual_seed(7)
    sizes = (1, fixed, size), (1, 1, fixed)
    layers = tuple(torch.randn(each, generator=drawn) for each in sizes)
    seen, ones = fixed or size, torch.ones(actions)
    whole = random_network(hidden, torch.zeros(seen), torch.ones(seen), low, ones, discrete)
    if not fixed:
        return whole
    mean, scale, layers = torch.zeros(size), torch.ones(size), (*layers, *whole.layers)
    return replace(whole, layers=layers, observation_mean=mean, observation_scale=scale)


def met(
    shape: PolicyNetwork, *, users: int = USERS, seed: int = 0, steps: int = STEPS
) -> Trajectories:
    """Random users; some leave before the last step, some have two episodes."""
    generator = torch.Generator().manual_seed(seed)
    observations = torch.randn(users, steps + 1, len(shape.observation_mean), generator=generator)
    if shape.discrete_actions:
        actions = torch.randint(len(shape.action_low), (users, steps), generator=generator)
    else:
        actions = torch.randn(users, steps, len(shape.action_low), generator=generator)
    valid = torch.arange(steps) < torch.randint(
        (steps + 1) // 2, steps + 1, (users, 1), generator=generator
    )
    ends = torch.zeros(users, steps, dtype=torch.bool)
    ends[:, min(3, steps - 1)] = True
    ends[torch.arange(users), valid.sum(1) - 1] = True
    terminated = ends & (torch.rand(users, steps, generator=generator) < 0.5)
    rewards = torch.randn(users, steps, generator=generator)
    before, after = observations[:, :-1], observations[:, 1:]
    everything = before, actions, rewards, after, terminated, ends, valid
    masks = (valid.view(*valid.shape, *[1] * (each.dim() - 2)) for each in everything)
    return Trajectories(*(each * mask for each, mask in zip(everything, masks, strict=True)))


def with_user(data: Trajectories, other: Trajectories | None) -> Trajectories:
    """User 1 replaced by the first of ``other``, or by an empty one."""
    changed = {name: value.clone() for name, value in vars(data).items()}
    for name, value in changed.items():
        value[1] = 0 if other is None else getattr(other, name)[0]
    return Trajectories(**changed)


def hostile(shape: PolicyNetwork) -> list[Trajectories]:
    """Users of whom one tries to spoil the sum."""
    plain = met(shape, users=1, seed=5)
    found = [
        replace(plain, rewards=torch.full_like(plain.rewards, each))
        for each in (torch.nan, torch.inf, 1e30, 1.0)
    ]
    states = torch.full_like(plain.observations, torch.nan), plain.observations * 1e20
    return found + [replace(plain, observations=each) for each in states]


@dataclass(frozen=True)
class RecordedMechanism(Mechanism):
    """Notes what enters the noise, and releases the same numbers whatever it is."""

    sums: list[Tensor] = field(default_factory=list)

    def release(self, total: Tensor) -> Tensor:
        self.sums.append(total.clone())
        generator = torch.Generator().manual_seed(len(self.sums))
        return torch.randn(total.shape, generator=generator) * 0.05


class RecordedCohort(Cohort):
    """Notes what every user contributes, before the clip, one tensor ``[U, n]`` for each
    release.
    """

    def __init__(self, mechanism: Mechanism):
        super().__init__(mechanism)
        self.rows: list[Tensor] = []

    def noisy_mean(self, contributions: Iterable[Tensor], clipping_norm: float) -> Tensor:
        rows = torch.cat([*contributions])
        self.rows.append(rows.clone())
        return super().noisy_mean([rows], clipping_norm)


@dataclass(frozen=True)
class Seen:
    """Contributions before the clip, what entered the noise in units of S, and the values that were
    made.
    """

    rows: list[Tensor]
    sums: list[Tensor]
    values: Values


def begun(shape: PolicyNetwork) -> dict[str, Tensor]:
    """Values as after some cohorts."""
    return {
        PARAMETERS: torch.randn(shape.parameters, generator=torch.Generator().manual_seed(1)) * 0.3
    }


def recorded(
    update: Update, shape: PolicyNetwork, data: Trajectories, values: Values | None = None
) -> Seen:
    """Run an update on a cohort, with releases that are the same for every cohort."""
    mechanism = RecordedMechanism(
        **vars(mechanism_of(1.0, update.releases, max(USERS, data.users)))
    )
    cohort = RecordedCohort(mechanism)
    made = update.apply(shape, values or begun(shape), data, cohort, 3)
    return Seen(cohort.rows, mechanism.sums, made)


def mechanism_of(noise_multiplier: float, releases: int = 1, users: int = USERS) -> Mechanism:
    sizes: dict[str, Any] = {"users": users, "cohort": users, "releases": releases}
    return online_mechanism(**sizes, noise_multiplier=noise_multiplier, delta=1e-5)
