"""Memory, random numbers and the optimiser that all networks share."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
D = TypeVar("D", bound=Any)
relu_backward = torch.ops.aten.threshold_backward.grad_input
_CPU = torch.device("cpu")
_GAP = 16  # numbers behind each pair: a cache line, so that an alignment stays what it is
_USUAL: Any = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}


class Workspace:
    """Memory that one chunk after another is trained in: a system hands out fresh pages slowly, for
    a tenth of a round.

    Sensitive: it holds the last chunk's updates until the next one overwrites them.
    """

    def __init__(self, device: torch.device = _CPU) -> None:
        self._device = device
        self._held: dict[tuple[str, int, torch.dtype], Tensor] = {}

    def take(
        self, name: str, layer: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return a tensor of ``shape`` with arbitrary content."""
        size, key = math.prod(shape), (name, layer, dtype)
        if key not in self._held or self._held[key].numel() < size:
            self._held[key] = torch.empty(size, device=self._device, dtype=dtype)
        return self._held[key][:size].view(shape)

    def apart(self, name: str, layer: int, pairs: int, rows: int, columns: int) -> Tensor:
        """Return ``[pairs, rows, columns]`` with a gap behind every pair, so that no element-wise
        operation runs across pairs.

        Such an operation takes as many numbers at once as the processor's registers hold, and those
        that are left at the end of a row of numbers by other instructions, with other last bits.
        Where it may run across pairs, the end falls into one pair or another, depending on how many
        there are. Behind a gap, every pair has its own end.
        """
        size = rows * columns
        stride = size + _GAP
        return self.take(name, layer, (pairs * stride,)).as_strided(
            (pairs, rows, columns), (stride, columns, 1)
        )


class Adam:
    """Adam (Kingma and Ba 2015) on a few tensors, which it moves in place, with the usual β = (0.9,
    0.999), ε = 1e-8.

    The kernel of ``torch.optim.AdamW(fused=True)``: called directly, since that class's bookkeeping
    takes longer than a small network's arithmetic, and loads PyTorch's compiler, which takes as
    long to load as PyTorch.

    Args:
        tensors: to move.
        gradients: of each, in which they are found at every step.
        learning_rate: step size.
        weight_decay: decoupled (Loshchilov and Hutter 2019).
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        gradients: Sequence[Tensor],
        learning_rate: float,
        weight_decay: float = 0.0,
    ) -> None:
        self._learning_rate = learning_rate
        # a tensor, so that a step that was recorded on a GPU follows it, too
        self._rate = torch.tensor(learning_rate, device=tensors[0].device)
        self._settings = _USUAL | {"lr": self._rate, "weight_decay": weight_decay}
        self._steps = [torch.zeros((), device=tensor.device) for tensor in tensors]
        first, second = ([torch.zeros_like(tensor) for tensor in tensors] for _ in range(2))
        self._state: Any = list(tensors), list(gradients), first, second, [], self._steps

    def slow_down(self, share: float) -> None:
        """Make steps of this share of the learning rate from here on."""
        self._rate.fill_(share * self._learning_rate)

    @torch.no_grad()
    def step(self) -> None:
        """Move every tensor along its gradient."""
        torch._foreach_add_(self._steps, 1)
        torch._fused_adamw_(*self._state, **self._settings)


class SeedGenerators:
    """One generator for each of G seeds, all on one device; of n rows, the first n/G are the first
    seed's, and so on.

    So a seed's numbers do not depend on which others are there.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self.generators = tuple(generators)
        self.device = generators[0].device

    @classmethod
    def of(cls, seeds: Sequence[int], device: torch.device) -> "SeedGenerators":
        """Return a generator on ``device`` for each seed."""
        return cls([torch.Generator(device).manual_seed(seed) for seed in seeds])

    def randn(self, rows: int, *shape: int) -> Tensor:
        """Standard normal, ``[rows, ...]``."""
        return self._draw(torch.randn, rows, shape)

    def rand(self, rows: int, *shape: int) -> Tensor:
        """Draw uniformly in [0, 1), ``[rows, ...]``."""
        return self._draw(torch.rand, rows, shape)

    def randint(self, high: int, rows: int, *shape: int) -> Tensor:
        """Draw uniformly in 0 … high - 1, int64 ``[rows, ...]``."""
        return self._draw(partial(torch.randint, high), rows, shape)

    def exponential(self, rows: int, *shape: int) -> Tensor:
        """Draw exponential numbers with rate 1, ``[rows, ...]``."""
        return self._draw(_exponential, rows, shape)

    def _draw(self, draw: Callable[..., Tensor], rows: int, shape: tuple[int, ...]) -> Tensor:
        size = (rows // len(self.generators), *shape)
        parts = [
            draw(size, generator=generator, device=self.device) for generator in self.generators
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _exponential(
    size: tuple[int, ...], *, generator: torch.Generator, device: torch.device
) -> Tensor:
    return torch.empty(size, device=device).exponential_(generator=generator)


def to_device(value: D, device: torch.device) -> D:
    """Return a dataclass with its tensors on a device."""
    tensors = {name: each for name, each in vars(value).items() if isinstance(each, Tensor)}
    return replace(value, **{name: each.to(device) for name, each in tensors.items()})


def flatten(weights: Sequence[Tensor]) -> Tensor:
    """Join tensors to one vector."""
    return torch.cat([part.detach().flatten() for part in weights])


def unflatten(vector: Tensor, shapes: Sequence[tuple[int, ...]]) -> tuple[Tensor, ...]:
    """Cut a vector that `flatten` made into tensors of these shapes, views of ``vector``."""
    parts = torch.split(vector, [math.prod(shape) for shape in shapes])
    return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))


def start_pool(threads: int) -> ThreadPoolExecutor:
    """Start a pool of threads that run tensor operations without further threads: where two share
    an operation, the place where torch splits it changes last bits.
    """
    all_started = Barrier(threads)

    def use_one_thread() -> None:
        # the first call copies the process's number; products before it would ignore that
        torch.get_num_threads()
        torch.set_num_threads(1)

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, "chunk", use_one_thread)
    for started in [pool.submit(all_started.wait) for _ in range(threads)]:
        started.result()
    torch.set_num_threads(before)  # for threads that start later
    return pool


def map_in_threads(
    pool: ThreadPoolExecutor, threads: int, function: Callable[[T], Tensor], items: Iterable[T]
) -> Iterator[Tensor]:
    """Yield the results for ``items`` in their order; the next item is made here while ``threads``
    others are worked on.
    """
    running: deque[Future[Tensor]] = deque()
    for item in items:
        running.append(pool.submit(function, item))
        if len(running) == threads:
            yield running.popleft().result()
    yield from (each.result() for each in running)
