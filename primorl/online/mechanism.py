"""The private mechanism of one cohort: the only way from users' trajectories to the policy."""

from collections.abc import Iterable

import torch
from torch import Tensor

from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.entropy import Entropy, SystemEntropy
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler

ONE_USER = "user"
"""What one unit of privacy is: everything that one user does in the run."""


def online_plan(
    *,
    users: int,
    unit: str = ONE_USER,
    cohort: int,
    noise_multiplier: float,
    releases: int,
    appearances: int,
    delta: float,
    entropy: Entropy | None = None,
) -> Plan:
    """Plan a run in which every user is in at most ``appearances`` cohorts.

    Formal guarantee: a cohort of ``cohort`` users (m, public) makes ``releases`` noisy sums, in which a user's vector
    has norm at most 1. A user who is replaced by an empty one, who contributes zero, changes no other cohort than her
    own: the policies under which others act are post-processing of releases. So all cohorts together cost her what her
    own do (parallel composition), ``releases · appearances`` Gaussian mechanisms of noise multiplier z. ``appearances``
    bounds how often, in whatever cohorts, she comes.

    Args:
        users: N, users of the run, at most; public.
        unit: what one unit of privacy is.
        cohort: m, what every sum is divided by.
        noise_multiplier: z; 0: no noise and no clip, the non-private twin.
        releases: noisy sums that an update makes of one cohort.
        appearances: the most cohorts that one user is in.
        delta: at which ε is stated.
        entropy: of the noise; None: the operating system's.
    """
    return Plan(
        units=users,
        unit=unit,
        sampler=PoissonSampler(1.0),
        clip=L2Clip(1.0 if noise_multiplier > 0 else float("inf")),
        noise_multiplier=noise_multiplier,
        rounds=releases * appearances,
        delta=delta,
        denominator=cohort,
        entropy=entropy or SystemEntropy(),
    )


class Cohort:
    """One cohort's mechanism: it releases so many noisy means and no more.

    Args:
        plan: of the run.
        releases: that the update may take from this cohort.
    """

    def __init__(self, plan: Plan, releases: int):
        self._plan = plan
        self._left = releases

    @property
    def users(self) -> int:
        """Public size m of a cohort."""
        assert self._plan.denominator is not None
        return int(self._plan.denominator)

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier z of the noisy means; 0 for the non-private twin."""
        return self._plan.noise_multiplier

    def noisy_mean(self, contributions: Tensor | Iterable[Tensor], clipping_norm: float) -> Tensor:
        """(Σ clipped contributions + N(0, (zS)² I)) / m.

        Formal guarantee: whatever a user contributes is scaled to norm at most S; vectors that are not finite become
        zero. The release is S times that of vectors of norm at most 1, so z alone decides on ε, and S may differ from
        release to release as long as it is public or follows from earlier releases.

        Args:
            contributions: one row for each user, float32 or float64 ``[U, n]``, U ≤ m; sensitive. Users who are not
                there contribute zero. Where n is large, the rows may come in pieces ``[u, n]``, so that never more than
                one piece is in memory.
            clipping_norm: S.

        Returns:
            float32 ``[n]``.

        Raises:
            ValueError: more users than m, no piece at all, or more releases than were paid for.
        """
        if self._left < 1:
            raise ValueError("the cohort's releases are used up")
        self._left -= 1
        plan = self._plan
        clip, grid = plan.clip, plan.grid
        assert isinstance(clip, L2Clip)
        scale = clipping_norm if plan.is_private else 1.0
        total, users = None, 0
        for rows in (contributions,) if isinstance(contributions, Tensor) else contributions:
            users += len(rows)
            if users > self.users:
                raise ValueError(f"{users} users in a cohort of {self.users}")
            clipped = clip.finish(rows.detach().to(torch.float64) / scale)
            if grid > 0:  # the sum is then exact, so that nobody's presence moves the rounding of the others
                clipped = clipped.div_(grid).trunc_().mul_(grid)
            own = clipped.sum(0)
            total = own if total is None else total.add_(own)
        if total is None:
            raise ValueError("no contributions: an empty cohort is a piece of no rows, [0, n]")
        (unit,) = plan.release((total,))
        return unit * scale
