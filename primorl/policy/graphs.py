"""One SAC update as one captured CUDA graph."""

from collections.abc import Callable

import torch

from primorl.dynamics.seed_generators import SeedGenerators

WARM_UP = 3
"""Calls that do the work in the plain way, before it is captured."""


class CudaGraphStep:
    """Work on fixed tensors, replayed as one CUDA graph: a small update is then no longer a hundred kernel launches.

    The first calls do the work in the plain way, as capture demands; what is computed is the same.

    Args:
        work: reads and writes the same tensors at every call and never waits for the GPU.
        generators: that ``work`` draws from; each replay goes on in them.
    """

    def __init__(self, work: Callable[[], None], generators: SeedGenerators) -> None:
        self._work = work
        self._generators = generators
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do the work once."""
        self._calls += 1
        if self._calls <= WARM_UP:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._work()
            torch.cuda.current_stream().wait_stream(side)
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            for generator in self._generators.generators:
                self._graph.register_generator_state(generator)
            with torch.cuda.graph(self._graph):
                self._work()
        self._graph.replay()
