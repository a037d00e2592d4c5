"""What `benchmarks.speed.gpu` checks before it times anything; on a CPU the same checks, with nothing captured."""

from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.speed import sac
from benchmarks.speed.fixed_round import BATCH, FixedRound
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.graphs import WARM_UP, CudaGraphStep
from primorl.policy.replay import ReplayColumns
from primorl.policy.sac import Sac
from primorl.training.chunks import filled_up
from primorl.training.cohort import local_batches
from primorl.training.cuda_graph import SumOfUpdates
from primorl.training.local_update import LocalBatches, sum_of_updates, updates_of_units
from tests.policy.reference import Reference, gradient
from tests.training.reference import reference_sum

_UPDATES = WARM_UP + 7  # one captures, and replays; six more replay
_CLOSE = 1e-3  # of the length: another order of summing is far below, another draw of noise far above


def check_sums(one: FixedRound, other: FixedRound) -> float:
    """Sums of two sizes in turn, plain, captured and replayed with other rows and weights, against the slow loop's.

    Args:
        one: first and last.
        other: in between; it differs in cohort and length alone.

    Returns:
        How far the sum of the others moves, at most, when one unit is left out, as a share of C: the captured sums'
        difference less the unit's own update. A chunk of another size may be summed in another order.

    Raises:
        AssertionError: they differ.
    """
    captured, drift = SumOfUpdates(one.shape, one.local, one.plan.clip), 0.0
    for turn, size in enumerate((one, other, one)):
        batches = fresh_batches(size)
        initial = size.shape.initial_weights(turn)
        weights = tuple(w.to(size.device) for w in initial)
        slow = reference_sum(initial, chosen(batches, "cpu"), size.shape, size.local, size.clipping_norm, "flat")
        plain = sum_of_updates(weights, batches, size.shape, size.local, size.plan.clip)
        whole = captured(weights, filled_up(batches))
        for found in (plain, whole):
            for ours, theirs in zip(found, slow, strict=True):
                torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=1e-4 * float(theirs.abs().max()))
        own = updates_of_units(weights, batches, size.shape, size.local, size.plan.clip)
        for unit in range(size.cohort):
            others = torch.arange(size.cohort) != unit
            rest = captured(weights, filled_up(chosen(batches, size.device, others)))
            moved = [a - b - update[unit] for a, b, update in zip(whole, rest, own, strict=True)]
            drift = max(drift, length(moved) / size.clipping_norm)
    return drift


def fresh_batches(size: FixedRound) -> LocalBatches:
    """Of all units, in a fresh order."""
    return local_batches(
        size.source(),
        torch.arange(size.cohort),
        size.normaliser,
        batch_size=BATCH,
        epochs=1,
        max_transitions=None,
        entropy=size.plan.entropy,
    )


def chosen(batches: LocalBatches, device: str, units: Tensor | None = None) -> LocalBatches:
    """The batches on ``device``; of some units only, by a mask ``[U]``."""
    parts = (part.to(device) for part in (batches.inputs, batches.targets, batches.weights))
    return LocalBatches(*(part if units is None else part[:, units.to(device)] for part in parts))


def check_updates(observations: int, actions: int, hidden: int, device: torch.device) -> None:
    """SAC's updates, captured, against the same done plainly; and the plain ones' gradients against autograd's.

    Raises:
        AssertionError: they differ, or nothing was captured on a GPU.
    """
    sizes = (observations, actions, hidden, device)
    close(updated(*sizes, captured=True), updated(*sizes, captured=False), "a captured update")
    ours, autograds = gradients(*sizes)
    close(ours, autograds, "a gradient")


def close(found: Tensor, true: Tensor, what: str) -> None:
    """Raise AssertionError where two vectors are further apart than a share of the second one's length."""
    apart = length([found - true]) / length([true])
    assert apart < _CLOSE, f"{what} is off by {apart:.1e} of its length"


def length(parts: list[Tensor]) -> float:
    """Of all parts as one vector."""
    return float(torch.cat([part.flatten().double() for part in parts]).norm())


def updated(
    observations: int, actions: int, hidden: int, device: torch.device, *, captured: bool, seed: int = 0
) -> Tensor:
    """How far some updates move all parameters, from one seed's noise."""
    columns = ReplayColumns(observations, actions)
    made = fresh(columns, hidden, device, seed)
    if not captured:
        made._step = made._plain_step
    before = parameters(made)
    for number in range(_UPDATES):
        made.update(rows_of(columns, device, number))
    if captured and device.type == "cuda":
        assert isinstance(made._step, CudaGraphStep), "nothing was captured"
        assert made._step._graph is not None, "nothing was captured"
    return parameters(made) - before


def gradients(observations: int, actions: int, hidden: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of critics and actor in one update on ``device``: those written by hand, and autograd's."""
    columns = ReplayColumns(observations, actions)
    made = fresh(columns, hidden, device, seed=0)
    made._step = made._plain_step
    with torch.device(device):  # where its networks are made
        reference = Reference(made, sac.config(hidden, actions), columns)
    rows = rows_of(columns, device, 0)
    noise = torch.randn(2, sac.BATCH, actions, generator=torch.Generator(device).manual_seed(0), device=device)
    made.update(rows)
    reference.update(rows[0], *noise)
    critics = [part[i].flatten() for i in range(2) for part in made.critic.gradient_layers]
    ours = [*critics, *(part[0].flatten() for part in made.actor.gradient_layers)]
    autograds = [*reference.critic_gradients, *map(gradient, reference.actor.parameters())]
    return torch.cat(ours), torch.cat([part.flatten() for part in autograds])


def fresh(columns: ReplayColumns, hidden: int, device: torch.device, seed: int) -> Sac:
    """Its targets are no longer its critics, so that one cannot be taken for the other."""
    config = sac.config(hidden, columns.action_size)
    made = Sac(config, columns, SeedGenerators.of([seed], device))
    made.target.vector.add_(0.01)
    return made


def parameters(made: Sac) -> Tensor:
    """A copy of all of them."""
    return torch.cat((made.actor.vector, made.critic.vector, made.target.vector, made.log_alpha))


def rows_of(columns: ReplayColumns, device: torch.device, number: int) -> Tensor:
    """A batch of transitions, some of which end an episode."""
    generator = torch.Generator().manual_seed(number)
    rows = torch.randn(1, sac.BATCH, columns.width, generator=generator)
    rows[..., columns.action] = rows[..., columns.action].tanh()
    rows[..., columns.continues] = (torch.rand(1, sac.BATCH, generator=generator) < 0.8).float()
    return rows.to(device)


def actor_and_critic(observations: int, actions: int, hidden: int) -> tuple[list[tuple[int, int]], ...]:
    """The layers (inputs, outputs) of either."""
    ends = ((observations, 2 * actions), (observations + actions, 1))
    return tuple(list(pairwise((first, hidden, hidden, last))) for first, last in ends)
