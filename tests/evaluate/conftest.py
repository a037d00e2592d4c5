import torch

from primorl.policy.exported import DeterministicPolicy


def random_policy(
    policies: int, observation_size: int, action_limit: float, seed: int = 0
) -> DeterministicPolicy:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    layers = (
        normal(policies, 8, observation_size),
        *(normal(policies, 1, size) for size in (8, 8, 1)),
    )
    mean = torch.zeros(observation_size)
    scale = torch.ones(observation_size)
    limit = torch.tensor([action_limit])
    return DeterministicPolicy(layers, mean, scale, -limit, limit)
