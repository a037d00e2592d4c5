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

from primorl.base import PipelineError

_SILENCE = timedelta(hours=24)  # before the first round every process reads its whole shard
_NOTHING = torch.empty(0)


class Message(IntEnum):
    """What the first process asks of the others."""

    STOP = 0
    GRANT = 1  # the ledger has granted the digest that is sent: open the private units
    QUERY = 2  # sum the next query, given so many answers
    ROUNDS = 3  # take all answers to queries: rounds follow
    ROUND = 4  # sum the updates of a fresh cohort from these weights
    LATE = 5  # sum the late query of this number at these weights


class Group:
    """The processes of a training, and this one's place among them: here it is alone."""

    rank, ranks = 0, 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Let the other processes end."""

    def ask(self, request: Message, number: int = 0, released: Tensor = _NOTHING) -> None:
        """Send a request to the other processes, with a vector that is public or released."""

    def total(self, own: Tensor) -> Tensor:
        """Add up the sums of all processes. Sensitive."""
        return own

    def check_coverage(self, units: int, held: Tensor) -> None:
        """Refuse to begin unless every unit, of which this process ``held`` some, is with exactly
        one process.

        Raises:
            PipelineError: a unit is with no process, or with two.
        """


ALONE = Group()


class Processes(Group):
    """The processes that torchrun started; they talk through gloo, on the CPU."""

    def __init__(self) -> None:
        with _name_lost_process():
            dist.init_process_group("gloo", timeout=_SILENCE)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """See `Group`."""
        if kind is None and self.rank == 0:
            self.ask(Message.STOP)
        dist.destroy_process_group()

    def ask(self, request: Message, number: int = 0, released: Tensor = _NOTHING) -> None:
        """See `Group.ask`.

        Raises:
            ValueError: in another process, which may release nothing.
        """
        if self.rank != 0:
            raise ValueError("the first process alone asks and releases")
        with _name_lost_process():
            dist.broadcast(torch.tensor([request, number, len(released)]), 0)
            if len(released):
                dist.broadcast(released.double().cpu().contiguous(), 0)

    def wait(self) -> tuple[Message, int, Tensor]:
        """Wait for the next request of the first process, its number and a released vector."""
        header = torch.empty(3, dtype=torch.int64)
        with _name_lost_process():
            dist.broadcast(header, 0)
            request, number, size = header.tolist()
            released = torch.empty(size, dtype=torch.float64)
            if size:
                dist.broadcast(released, 0)
        return Message(request), number, released

    def total(self, own: Tensor) -> Tensor:
        """Add up the sums of all processes. Sensitive."""
        moved = own.cpu().clone().contiguous()
        with _name_lost_process():
            dist.all_reduce(moved)
        return moved.to(own.device)

    def check_coverage(self, units: int, held: Tensor) -> None:
        """See `Group.check_coverage`."""
        holders = torch.zeros(units, dtype=torch.int64)
        holders[held] = 1
        if not bool((self.total(holders) == 1).all()):
            raise PipelineError(
                "data/partitions: each private unit must be with one process; give all the same"
            )


@contextmanager
def _name_lost_process() -> Iterator[None]:
    """Say in our words that another process is gone; torch's own quote addresses."""
    try:
        yield
    except RuntimeError as lost:
        raise PipelineError(
            "train_model: another process is gone or hangs; the next run resumes the rest"
        ) from lost


def join_answers(answers: Mapping[str, Tensor]) -> Tensor:
    """Join answers to one vector."""
    return torch.cat([_NOTHING, *(answer.flatten() for answer in answers.values())])
