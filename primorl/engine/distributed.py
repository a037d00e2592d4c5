"""Several processes make every round together: each sums the updates of its own units, the first adds up and releases.

The first process sends released things only (commands, the normaliser, weights) and receives each other process's sum,
so only the first ever holds a sum over more units than its own. It alone draws noise, once a round, after
the sums are added up.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from enum import IntEnum
from typing import Self

import torch
from torch import Tensor
from torch import distributed as dist

from primorl.base.errors import PipelineError
from primorl.engine.linear import ScalesQuery
from primorl.engine.local_update import CohortSource
from primorl.engine.queries import NormaliserQuery, StartQuery
from primorl.engine.rounds import Rounds
from primorl.engine.setup import TrainingSetup
from primorl.model.ensemble import Normaliser, Weights, flat, shaped

SILENCE = timedelta(minutes=30)
"""How long a process waits for another before it takes it for hung. Equal shares of a round differ by less than a
round, so nothing that runs is taken for hung unless its rounds take half an hour; a process that *ends* is noticed at
once, by its closed connections."""
PREPARATION = timedelta(hours=24)
"""The same between meeting and `cover`: each process reads and verifies the private partition, however large."""
_POLL_SECONDS, _POLLS = 0.2, 5
_DIGEST = 32


class ProcessLostError(PipelineError):
    """Another process is gone, or silent for too long."""


class _Do(IntEnum):
    """Commands of the first process to the others."""

    STOP = 0
    OPEN = (
        1  # the ledger has granted what the digest that follows stands for: open the private units
    )
    QUERY = 2  # answer the query of this number with a sum over the own units
    BEGIN = 3  # take the normaliser: rounds follow
    ROUND = 4  # take the weights, answer with the sum of a fresh cohort's updates
    LATE = 5  # take the weights, answer the late query of this number with a sum over the own units


class Group:
    """This process among those that train together, joined by torchrun's environment variables.

    Everything is exchanged through gloo, in the CPU's memory.

    Args:
        silence: see `SILENCE`; once `settle` was called.
        watch: called while this process waits for others; raises `ProcessLostError` where it knows that one has ended.

    Raises:
        ProcessLostError: not all processes came.
    """

    def __init__(
        self, *, silence: timedelta = SILENCE, watch: Callable[[], None] | None = None
    ) -> None:
        self._watch = watch or (lambda: None)
        self._silence = silence
        self._limit = SILENCE.total_seconds()
        self._wait(lambda: dist.init_process_group("gloo", timeout=PREPARATION), "did not come")
        self.process, self.processes = dist.get_rank(), dist.get_world_size()
        self._limit = PREPARATION.total_seconds()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Leave the group. The first process tells the others to stop if nothing failed."""
        try:
            if kind is None and self.process == 0:
                _tell(self, _Do.STOP)
        finally:
            dist.destroy_process_group()

    def send(self, tensor: Tensor) -> None:
        """Send ``tensor``, a released tensor or a command, to every other process. Only the first process may."""
        self.receive(tensor)

    def settle(self) -> None:
        """Wait until every process is ready; from now on the limit of a wait is ``silence``. All processes call it."""
        self.receive(torch.zeros(1, dtype=torch.int64))
        self._limit = self._silence.total_seconds()

    def receive(self, like: Tensor) -> Tensor:
        """Return the first process's tensor, of the shape and type of ``like``, which is overwritten."""
        moved = like.cpu().contiguous()
        self._wait(lambda: dist.broadcast(moved, 0))
        return moved.to(like.device)

    def add(self, own: Tensor) -> Tensor | None:
        """Return the sum over all processes, at the first one, in their order; None at the others. Sensitive."""
        moved = own.cpu().contiguous()
        parts = (
            [torch.empty_like(moved) for _ in range(self.processes)] if self.process == 0 else None
        )
        self._wait(lambda: dist.gather(moved, parts, dst=0))
        if parts is None:
            return None
        total = parts[0]
        for part in parts[1:]:
            total += part
        return total.to(own.device)

    def _wait(self, call: Callable[[], object], failed: str = "is gone, or hangs") -> None:
        """Run a blocking call in a thread of its own, so that a signal, or ``watch``, can end the waiting."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        until = time.monotonic() + self._limit
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            if thread.is_alive():
                self._watch()
                if time.monotonic() > until:
                    raise ProcessLostError(
                        f"a process of the training {failed}: nothing heard for {self._limit:g} s"
                    )
        if errors:
            for _ in range(
                _POLLS
            ):  # whoever ended may still be ending: better told by name than as a connection
                self._watch()
                time.sleep(_POLL_SECONDS)
            if isinstance(
                errors[0], RuntimeError | ValueError
            ):  # torch's own: they quote addresses
                raise ProcessLostError(f"a process of the training {failed}") from errors[0]
            raise errors[0]


class DistributedRounds:
    """`Rounds` of the first process, with the sums of all processes.

    Args:
        group: the processes; this is the first.
        own: the rounds on this process's units.
        normaliser: that of ``own``, for the others.
    """

    def __init__(self, group: Group, own: Rounds, normaliser: Normaliser) -> None:
        self._group, self._own = group, own
        maps = (
            normaliser.input_mean,
            normaliser.input_scale,
            normaliser.target_mean,
            normaliser.target_scale,
        )
        self._maps = maps if normaliser.basis is None else (*maps, normaliser.basis.flatten())

    def __enter__(self) -> Self:
        _tell(self._group, _Do.BEGIN)
        self._group.send(torch.cat(self._maps).float())
        self._own.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._own.__exit__(*exception)

    def sum(self, weights: Weights) -> list[Tensor]:
        """Sum as `Rounds.sum`, over the cohorts of all processes. ``weights`` are released, so they may be sent."""
        _tell(self._group, _Do.ROUND)
        self._group.send(flat(weights))
        own = self._own.sum(weights)
        return list(shaped(_total(self._group, flat(own)), own))

    def late(self, number: int, weights: Weights) -> Tensor:
        """Sum as `Rounds.late`, over the units of all processes."""
        _tell(self._group, _Do.LATE, number)
        self._group.send(flat(weights))
        return _total(self._group, self._own.late(number, weights))


def distributed_total(
    group: Group, number: int, query: NormaliserQuery | StartQuery | ScalesQuery, own: CohortSource
) -> Tensor:
    """Sum a query over the units of all processes; exact, since its terms are whole numbers.

    Args:
        group: the processes; this is the first.
        number: of the query, among those that are asked before the rounds.
        query: to be summed.
        own: this process's units.
    """
    _tell(group, _Do.QUERY, number)
    if isinstance(query, ScalesQuery):
        group.send(query.windows)  # public, or made of a released answer
    return _total(group, query.total(own))


def announce_grant(group: Group, identity: str) -> None:
    """Let the other processes open their private units, now that the ledger has granted this ``identity``."""
    _tell(group, _Do.OPEN)
    group.send(torch.tensor(list(bytes.fromhex(identity)), dtype=torch.uint8))


def wait_for_grant(group: Group) -> str | None:
    """Wait until the ledger has granted something; None if there is nothing to do. Nothing private is open before."""
    if _told(group)[0] != _Do.OPEN:
        return None
    return bytes(group.receive(torch.empty(_DIGEST, dtype=torch.uint8)).tolist()).hex()


def serve(group: Group, setup: TrainingSetup, source: CohortSource) -> None:
    """Follow the first process's commands until `STOP`. Every other process runs this.

    Args:
        group: the processes.
        setup: this process's, from `TrainingSetup.of_process`.
        source: this process's units.

    Raises:
        ProcessLostError: the first process is gone.
    """
    queries = list(setup.queries({}).values())
    command, number = _told(group)
    while command == _Do.QUERY:
        query = queries[number]
        if isinstance(query, ScalesQuery):
            query = replace(query, windows=group.receive(query.windows))
        group.add(query.total(source))
        command, number = _told(group)
    if command != _Do.BEGIN:
        return
    shape, device = setup.architecture, setup.execution.device
    features = shape.features
    inputs = shape.inputs if features is None else features.inputs
    sizes = [inputs, inputs, shape.targets, shape.targets]
    sizes += [] if features is None else [inputs * features.columns]
    maps = torch.split(group.receive(torch.empty(sum(sizes), device=device)), sizes)
    basis = None if features is None else maps[4].view(inputs, features.columns)
    normaliser = Normaliser(
        maps[0], maps[1], maps[2], maps[3], shape.columns > shape.targets, features, basis
    )
    weights = tuple(w.to(device) for w in shape.initial_weights(0))
    with Rounds(setup, source, normaliser) as rounds:
        command, number = _told(group)
        while command != _Do.STOP:
            weights = shaped(group.receive(flat(weights)), weights)
            group.add(
                flat(rounds.sum(weights)) if command == _Do.ROUND else rounds.late(number, weights)
            )
            command, number = _told(group)


def check_coverage(group: Group, units: int, numbers: Tensor) -> None:
    """Refuse to begin unless every unit is held by exactly one process. All call it when their units are open.

    Args:
        group: the processes.
        units: K.
        numbers: which units are in this process's store, int64.

    Raises:
        PipelineError: a unit is with no process, or with two (raised at the first process).
    """
    held = torch.zeros(units, dtype=torch.int32)
    held[numbers] = 1
    holders = group.add(held)
    covered = holders is None or bool((holders == 1).all())
    group.settle()
    if not covered:
        raise PipelineError(
            "the processes do not hold each private unit exactly once; have all of them run the same version of this "
            "project on the same data/partitions"
        )


def _total(group: Group, own: Tensor) -> Tensor:
    total = group.add(own)
    assert total is not None, "the first process asks"
    return total


def _tell(group: Group, command: _Do, number: int = 0) -> None:
    group.send(torch.tensor([command, number]))


def _told(group: Group) -> tuple[int, int]:
    command, number = group.receive(torch.empty(2, dtype=torch.int64)).tolist()
    return command, number
