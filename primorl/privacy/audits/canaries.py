"""White-box audit of the mechanism: does it leak more than the plan states?

Canary units contribute vectors of norm exactly C, orthogonal to each other and to all others. A fair coin decides
whether each canary is in the data. An adversary that sees the released rounds, and knows everything but the coins,
guesses them; the success of the guesses bounds ε from below (`primorl.privacy.audits.bounds`). The audit runs the
plan's own parts: `Plan.cohort`, `Clip.clip_pieces` and `Plan.release`, so it works for every plan.

The audit does not cover the code outside the plan (local steps, chunks, files that a stage writes): `tests/engine` and
the one-run audit do. Nor does it see weaknesses that hardly change ε (fixed partitions in place of Poisson cohorts, the
realised cohort size in the denominator): the tests compare `Observations` with their stated law instead.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.privacy.audits.bounds import LowerBound, Observations, lower_bound
from primorl.privacy.mechanism.plan import Plan

# Raw contributions are this many times C in every piece, so that after a correct clip they reach its bound.
_EXCESS = 10.0
# Coordinates of every piece that hold the contributions of ordinary units.
_SPARE = 16
_FEWEST = 128  # canaries of all runs together; fewer are too few to choose a statistic
_ENOUGH = 131_072  # at which an ε of 0.5 is proved to four fifths
_MOST_SEEN = 40_000_000  # numbers kept, canaries times rounds


def enough_runs(plan: Plan, canaries: int) -> int:
    """Compute the runs after which 131,072 canaries were seen, or as many as fit in memory (160 MB)."""
    return max(1, -(-min(_ENOUGH, _MOST_SEEN // plan.rounds) // canaries))


def audit_mechanism(
    plan: Plan,
    *,
    canaries: int,
    runs: int,
    confidence: float,
    on_round: Callable[[], object] = lambda: None,
) -> LowerBound:
    """Bound the true ε of ``plan`` from below; ``canaries`` of the K units are canaries.

    Each of the ``runs`` has all T rounds and fresh coins: twice the runs tighten the bounds as twice the canaries do.
    ``on_round`` is called after every round; ``confidence`` is that of all bounds together.

    Raises:
        PipelineError: the plan claims nothing, has too few units, or releases numbers that are not finite although
            every hostile update should have been zeroed.
    """
    spent = plan.spent()
    if spent is None:
        raise PipelineError(
            "audit: the plan adds no noise and claims no guarantee: there is nothing to refute"
        )
    seen = observe(plan, canaries=canaries, runs=runs, on_round=on_round)
    return lower_bound(plan, seen, spent.epsilon_pld, confidence)


def observe(
    plan: Plan, *, canaries: int, runs: int, on_round: Callable[[], object] = lambda: None
) -> Observations:
    """Run the plan's rounds ``runs`` times on data full of canaries.

    A canary that is out keeps its place among the K, which are declared public, and adds nothing to the sum: the
    release is that of a dataset without it. Its update alternates in sign from round to round and
    from block to block, as an update may: noise used twice then cancels where the canary does not.

    Raises:
        PipelineError: as `audit_mechanism`.
    """
    if not 2 <= canaries < plan.units:
        raise PipelineError(
            f"audit: found {canaries} canaries among {plan.units} units, allowed are 2 to {plan.units - 1}; "
            "choose fewer canaries"
        )
    if canaries * runs < _FEWEST:
        raise PipelineError(
            f"audit: found {canaries * runs} canaries in all runs, allowed are {_FEWEST} or more"
        )
    pieces = plan.clip.pieces
    blocks, width = math.prod(pieces), canaries + _SPARE
    signs = _checkerboard(pieces)
    tables = [_clipped(plan, signs * sign) for sign in (1, -1)]
    # Kind of each unit: canaries are numbered from 0 and spread over the units, first and last among them; behind them
    # come the kinds of ordinary units, and last the number of a canary that is out.
    ordinary = len(tables[0]) - 1
    absent = canaries + ordinary
    who = absent - 1 - np.arange(plan.units) % ordinary
    slots = np.arange(canaries) * (plan.units - 1) // (canaries - 1)
    included = np.random.default_rng().random((runs, canaries)) < 0.5
    by_round = np.empty((runs, canaries, plan.rounds), np.float32)
    by_block = np.zeros((runs, canaries, blocks))
    for run in range(runs):
        who[slots] = np.where(included[run], np.arange(canaries), absent)
        for t in range(plan.rounds):
            joined = torch.from_numpy(
                np.bincount(who[plan.cohort().numpy()], minlength=absent + 1)
            ).double()
            total = _sum(tables[t % 2], joined[:canaries], joined[canaries:absent])
            released = torch.stack(plan.release(total.view(*pieces, width).unbind(0)))[
                ..., :canaries
            ].double()
            sign = 1 if t % 2 == 0 else -1
            seen = (released * signs.unsqueeze(-1) * sign).view(blocks, canaries).numpy()
            seen *= plan.divisor / (plan.clipping_norm / math.sqrt(blocks))
            by_round[run, :, t] = seen.mean(0)
            by_block[run] += seen.T
            on_round()
    if not np.isfinite(by_round).all():
        raise PipelineError(
            "audit: a release is not finite: the update of a unit that is NaN reached the sum, and shows who was there"
        )
    return Observations(
        included.reshape(-1),
        by_round.reshape(-1, plan.rounds),
        by_block.reshape(runs * canaries, blocks),
    )


def _checkerboard(pieces: tuple[int, ...]) -> Tensor:
    """Make signs for the pieces of a contribution, such that neighbours differ along every dimension."""
    signs = torch.ones(())
    for size in pieces:
        signs = signs.unsqueeze(-1) * torch.where(torch.arange(size) % 2 == 1, -1.0, 1.0)
    return signs


def _clipped(plan: Plan, signs: Tensor) -> Tensor:
    """Clip contributions of a canary and of some ordinary units, one a row: ``[P, blocks, 1 + spare]``.

    The first coordinate of every piece is the canary's own. The ordinary units use the spare coordinates: random ones,
    far above, about and below the bound; one that contributes zero; and one that contributes NaN.
    """
    pieces, blocks = plan.clip.pieces, signs.numel()
    scales = torch.tensor([_EXCESS, 1.0, 1.0, 0.1, 0.01, 0.0, math.nan])
    contributions = torch.zeros(1 + len(scales), blocks, 1 + _SPARE)
    contributions[0, :, 0] = _EXCESS * plan.clipping_norm * signs.flatten()
    spare = torch.randn(len(scales), blocks, _SPARE) * plan.clipping_norm
    contributions[1:, :, 1:] = spare * scales.view(-1, 1, 1)
    contributions[-1] = math.nan  # in every coordinate, as local training spreads it
    clipped = plan.clip.clip_pieces(contributions.view(len(contributions), *pieces, 1 + _SPARE))
    return clipped.reshape(len(contributions), blocks, 1 + _SPARE).double()


def _sum(table: Tensor, joined: Tensor, ordinary: Tensor) -> Tensor:
    """Sum a cohort's contributions, ``[blocks, canaries + spare]``: canary i in coordinate i of every piece.

    ``table`` is `_clipped`'s; ``joined`` and ``ordinary`` say how often each canary and each kind of unit joined.
    """
    others = torch.einsum("k,kbs->bs", ordinary, table[1:])
    own = (
        table[0, :, :1] * joined + others[:, :1]
    )  # ordinary units have nothing there, unless NaN passed the clip
    return torch.cat((own, others[:, 1:]), dim=1)
