"""One process of a training: `torchrun --nproc-per-node P -m tests.engine.shard`, or alone.

The first process prints what it released, and whether what it sent was released before.
"""

import json
from dataclasses import replace

import torch
from torch import Tensor
from torch import distributed as dist

from primorl.engine.settings import Execution
from primorl.engine.setup import TrainingSetup
from primorl.engine.shards import Processes, join_answers
from primorl.engine.training import TrainingState, serve, train
from primorl.model.numerics import flatten
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.engine.test_linear import Log, log_of, setup_of
from tests.mechanisms import SeededEntropy

UNITS = 13


def setup(rank: int, ranks: int) -> TrainingSetup:
    """Linear heads with all their queries, without noise, on coins that are the same in every
    process.
    """
    whole = setup_of(UNITS)
    mechanism = replace(whole.mechanism, sampler=PoissonSampler(0.6), entropy=SeededEntropy(5))
    return replace(
        whole, mechanism=mechanism, execution=Execution(torch.device("cpu"), 1 << 20, rank, ranks)
    )


def shard(rank: int, ranks: int) -> Log:
    """The units that a process holds."""
    log = log_of(UNITS)
    return Log(log.inputs[rank::ranks], log.targets[rank::ranks])


def work(group: Processes) -> None:
    """Train, and print the release and what was sent."""
    source, own = shard(group.rank, group.ranks), setup(group.rank, group.ranks)
    group.check_coverage(UNITS, torch.arange(group.rank, UNITS, group.ranks))
    if group.rank:
        serve(group, own, source, None)
        return
    sent: list[Tensor] = []
    broadcast = dist.broadcast

    def spying(tensor: Tensor, src: int) -> None:
        sent.append(tensor.clone())
        broadcast(tensor, src)

    dist.broadcast = spying
    kept: list[TrainingState] = []
    released = train(own, source, None, save_checkpoint=kept.append, group=group)
    dist.broadcast = broadcast
    known = [state.weights.double() for state in kept]
    known += [flatten(own.shrink(own.shape(state.average_weights()))).double() for state in kept]
    known += [join_answers(state.answers) for state in kept]
    vectors = [each for each in sent if each.dtype == torch.float64]
    of_released = all(any(_begins(one, each) for one in known) for each in vectors)
    answers = join_answers(released.answers).tolist()
    found = {"weights": flatten(released.weights).tolist(), "answers": answers}
    print(json.dumps(found | {"sent": len(vectors), "released": of_released}))


def _begins(whole: Tensor, part: Tensor) -> bool:
    return len(part) <= len(whole) and torch.equal(whole[: len(part)], part)


if __name__ == "__main__":
    with Processes() as everybody:
        work(everybody)
