"""The kernel as CUDA graphs: one launch for all local steps, where thousands of small ones would leave a GPU waiting.

A graph is of fixed sizes. Cohorts are of random ones, so a chunk is filled up with units and steps without rows, which
move nothing, to one of a few sizes (`primorl.training.chunks`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Weights
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.training.chunks import filled_up
from primorl.training.local_update import LocalBatches, Workspace, sum_of_updates
from primorl.training.networks import Network
from primorl.training.settings import LocalTraining

_MOST_GRAPHS = 8  # each keeps its rows; units of very uneven lengths could ask for many more


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    start: Weights
    batches: LocalBatches
    total: list[Tensor]


class SumOfUpdates:
    """`sum_of_updates` of one training; on a GPU captured once for each size and replayed.

    Args:
        shape: sizes of the network.
        local: the local steps.
        clip: applied after every step.
        grid: what updates are multiples of.
    """

    def __init__(self, shape: Network, local: LocalTraining, clip: EnsembleClip, grid: float = 0.0) -> None:
        self._shape, self._local, self._clip, self._grid = shape, local, clip, grid
        self._graphs: dict[tuple[int, ...], _Graph] = {}
        # All graphs compute in the same memory: one runs at a time, and what it gives is copied before the next.
        self._pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None
        self._workspace = Workspace()

    def __call__(self, start: Weights, batches: LocalBatches) -> list[Tensor]:
        """See `sum_of_updates`."""
        if batches.inputs.device.type != "cuda":
            return self._plainly(start, batches, self._workspace)
        if 0 in batches.weights.shape:
            return self._plainly(start, batches)
        batches = filled_up(batches)
        sizes = tuple(batches.weights.shape)
        if sizes not in self._graphs:
            if len(self._graphs) == _MOST_GRAPHS:
                return self._plainly(start, batches)
            self._graphs[sizes] = self._graph_of(start, batches)
        graph = self._graphs[sizes]
        for held, now in zip(graph.start, start, strict=True):
            held.copy_(now)
        for held, now in zip(vars(graph.batches).values(), vars(batches).values(), strict=True):
            held.copy_(now)
        graph.graph.replay()
        return [part.clone() for part in graph.total]  # the next replay overwrites the graph's own

    def _plainly(self, start: Weights, batches: LocalBatches, workspace: Workspace | None = None) -> list[Tensor]:
        """``workspace`` is for CPUs alone: were one to grow, graphs would go on in the memory that it gave up."""
        return sum_of_updates(start, batches, self._shape, self._local, self._clip, workspace, self._grid)

    def _graph_of(self, start: Weights, batches: LocalBatches) -> _Graph:
        held = tuple(w.clone() for w in start)
        rows = LocalBatches(**{name: value.clone() for name, value in vars(batches).items()})
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries set themselves up at their first call, which cannot be captured
            self._plainly(held, rows)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Another thread may be reading the next chunk.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            total = self._plainly(held, rows)
        return _Graph(graph, held, rows, total)
