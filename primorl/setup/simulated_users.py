"""Users of an online run whom an environment simulates."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from primorl.online.learning import Trajectories
from primorl.online.network import PolicyNetwork
from primorl.simulators.batches import EnvironmentBatch


class SimulatedUsers:
    """Every user is an environment of her own, which is reset when she arrives. All of a cohort step together.

    Args:
        environments: what they are reset in.
        steps: T, which a user takes at most.
        episodes: episodes of one user at most; None: as many as fit into her steps.
        seed: of the environments and of the actions, together with the numbers of the users.
    """

    def __init__(self, environments: EnvironmentBatch, steps: int, episodes: int | None, seed: int):
        self.batch = environments
        self._steps, self._episodes, self._seed = steps, episodes, seed

    def meet(self, numbers: Sequence[int], network: PolicyNetwork, parameters: Tensor) -> Trajectories:
        """See `Users.meet`."""
        count, T = len(numbers), self._steps
        seed = int(np.random.SeedSequence([self._seed, *numbers]).generate_state(1, np.uint64)[0] >> 1)
        generator = torch.Generator().manual_seed(seed)
        network, parameters = network.to(torch.device("cpu")), parameters.cpu()
        observations = torch.from_numpy(self.batch.reset(count, seed))
        present = torch.ones(count, dtype=torch.bool)
        left = torch.full((count,), self._episodes or T + 1)
        kept: list[tuple[Tensor, ...]] = []
        for step in range(T):
            drawn = network.sample(parameters, observations, generator)
            after, rewards, terminated, truncated = (
                torch.from_numpy(array) for array in self.batch.step(network.squashed(drawn).numpy())
            )
            over = terminated | truncated
            kept.append((observations, drawn, rewards, after, terminated, over | (step == T - 1), present))
            left = left - (over & present).long()
            present = present & (left > 0)
            if not present.any():
                break
            # With several episodes each, at every step: else one user's end would move the starts that others draw.
            restart = self._episodes != 1 or bool(over.any())
            observations = torch.from_numpy(self.batch.restart(over.numpy())) if restart else after
        return _padded(kept, T)


def _padded(kept: Sequence[tuple[Tensor, ...]], steps: int) -> Trajectories:
    """Steps of all users ``[U, ..]`` as ``[U, T, ..]``; what a user who has left does there is zero."""
    valid = torch.stack([step[-1] for step in kept], 1)
    tensors = []
    for values in zip(*kept, strict=True):
        stacked = torch.stack(values, 1)
        stacked = stacked * valid.view(*valid.shape, *[1] * (stacked.dim() - 2)).to(stacked.dtype)
        whole = stacked.new_zeros(len(stacked), steps, *stacked.shape[2:])
        whole[:, : len(kept)] = stacked
        tensors.append(whole)
    return Trajectories(*tensors)
