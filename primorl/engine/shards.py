"""Several processes make every round together, started by torchrun: each sums over its own units,
the first releases.

Process r of P holds units r, r + P, r + 2P …, and its own coins decide which of them join a round.
The first process pays, says what is to be summed, draws the noise and writes; what it sends are
weights and answers that were released. Sums are whole multiples of a power of two, so one
`all_reduce` adds them exactly, in whatever order. Every process sees the sum before the noise, so
all of them and the network between them lie inside the trust boundary (docs/distributed.md).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum
from typing import Self

import torch
from torch import Tensor
from torch import distributed as dist

from primorl.base.errors import PipelineError
from primorl.engine.local_update import CohortSource
from primorl.engine.rounds import Rounds
from primorl.engine.setup import TrainingSetup
from primorl.model.ensemble import Normaliser, Weights
from primorl.model.numerics import flat, shaped

_SILENCE = timedelta(hours=24)  # before the first round every process reads its whole shard
_NOTHING = torch.empty(0)


@contextmanager
def _translated() -> Iterator[None]:
    """Say in our words that another process is gone; torch's own quote addresses."""
    try:
        yield
    except RuntimeError as lost:
        raise PipelineError(
            "train_model: another process of the training is gone, or hangs; a round that had "
            "begun is spent, and the next run resumes the others that were paid for, with any "
            "number of processes"
        ) from lost


class Request(IntEnum):
    """What the first process asks of the others."""

    STOP = 0
    GRANT = 1  # the ledger has granted the digest that is sent: open the private units
    QUERY = 2  # sum the next query, given so many answers
    ROUNDS = 3  # take all answers to queries: rounds follow
    ROUND = 4  # sum the updates of a fresh cohort from these weights
    LATE = 5  # sum the late query of this number at these weights


class Group:
    """The processes that torchrun started, and this one's place among them.

    They talk through gloo, on the CPU.
    """

    def __init__(self) -> None:
        with _translated():
            dist.init_process_group("gloo", timeout=_SILENCE)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None and self.rank == 0:
            self.ask(Request.STOP)
        dist.destroy_process_group()

    def ask(self, request: Request, number: int = 0, released: Tensor = _NOTHING) -> None:
        """Send a request of the first process, with a vector that is public or released.

        Raises:
            ValueError: in another process, which may release nothing.
        """
        if self.rank != 0:
            raise ValueError("the first process alone asks and releases")
        with _translated():
            dist.broadcast(torch.tensor([request, number, len(released)]), 0)
            if len(released):
                dist.broadcast(released.double().cpu().contiguous(), 0)

    def wait(self) -> tuple[Request, int, Tensor]:
        """Wait for the next request of the first process: what, its number, and the vector."""
        header = torch.empty(3, dtype=torch.int64)
        with _translated():
            dist.broadcast(header, 0)
            request, number, size = header.tolist()
            released = torch.empty(size, dtype=torch.float64)
            if size:
                dist.broadcast(released, 0)
        return Request(request), number, released

    def total(self, own: Tensor) -> Tensor:
        """Add up the sums of all processes. Sensitive."""
        moved = own.cpu().clone().contiguous()
        with _translated():
            dist.all_reduce(moved)
        return moved.to(own.device)

    def check_coverage(self, units: int, held: Tensor) -> None:
        """Refuse to begin unless every unit, of which this process ``held`` some, is with exactly
        one process.

        Raises:
            PipelineError: a unit is with no process, or with two.
        """
        holders = torch.zeros(units, dtype=torch.int64)
        holders[held] = 1
        if not bool((self.total(holders) == 1).all()):
            raise PipelineError(
                "data/partitions: the processes do not hold each private unit exactly once; give "
                "all of them the same data/partitions"
            )


class ShardedRounds(Rounds):
    """`Rounds` of the first process, with the sums of all processes."""

    def __init__(
        self, group: Group, setup: TrainingSetup, source: CohortSource, normaliser: Normaliser
    ) -> None:
        super().__init__(setup, source, normaliser)
        self.group = group

    def sum(self, weights: Weights) -> list[Tensor]:
        """See `Rounds.sum`."""
        self.group.ask(Request.ROUND, released=flat(weights))
        own = super().sum(weights)
        return list(shaped(self.group.total(flat(own)), own))

    def late(self, number: int, weights: Weights) -> Tensor:
        """See `Rounds.late`."""
        self.group.ask(Request.LATE, number, flat(weights))
        return self.group.total(super().late(number, weights))


def joined(answers: Mapping[str, Tensor]) -> Tensor:
    """Return answers as one vector."""
    return torch.cat([_NOTHING, *(answer.flatten() for answer in answers.values())])


def serve(
    group: Group,
    setup: TrainingSetup,
    source: CohortSource,
    public: tuple[Tensor, Tensor] | None,
) -> None:
    """Answer the requests of the first process until it stops. Every other process runs this.

    Args:
        group: the processes.
        setup: of the training.
        source: this process's units.
        public: of the public split, as `train` takes it.
    """
    queries, rounds = setup.queries({}), None
    sizes = {name: query.contribution.size for name, query in queries.items()}
    weights = setup.first_weights()
    request, number, released = group.wait()
    while request != Request.STOP:
        if request in (Request.QUERY, Request.ROUNDS):
            known = list(sizes)[:number]
            parts = torch.split(released, [sizes[name] for name in known])
            answers = dict(zip(known, parts, strict=True))
        if request == Request.QUERY:
            query = list(setup.queries(answers).values())[number]
            group.total(query.total(source))
        elif request == Request.ROUNDS:
            normaliser = setup.make_normaliser(public, answers).to(setup.execution.device)
            rounds = Rounds(setup, source, normaliser)
        elif rounds is not None:
            now = shaped(released.float().to(setup.execution.device), weights)
            own = flat(rounds.sum(now)) if request == Request.ROUND else rounds.late(number, now)
            group.total(own)
        request, number, released = group.wait()
