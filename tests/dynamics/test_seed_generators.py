"""Random numbers of several seeds: each seed's are its own."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from primorl.dynamics.seed_generators import SeedGenerators

CPU = torch.device("cpu")
DRAWS: dict[str, Callable[[SeedGenerators, int], Tensor]] = {
    "randn": lambda generators, rows: generators.randn(rows, 3),
    "rand": lambda generators, rows: generators.rand(rows),
    "randint": lambda generators, rows: generators.randint(1000, rows, 2),
    "exponential": lambda generators, rows: generators.exponential(rows, 3),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_a_seed_gets_what_it_gets_alone_whoever_is_beside_it(kind: str) -> None:
    draw = DRAWS[kind]
    together = SeedGenerators.of([7, 8, 9], CPU)
    generators = [SeedGenerators.of([seed], CPU) for seed in (7, 8, 9)]
    for _ in range(2):
        parts = draw(together, 12).chunk(3)
        for part, alone in zip(parts, generators, strict=True):
            assert torch.equal(part, draw(alone, 4))
        assert not torch.equal(parts[0], parts[1])


def test_one_generator_for_all_would_be_noticed() -> None:
    """The twin: what the second seed gets would then depend on the first."""
    shared = torch.Generator().manual_seed(8)
    second = SeedGenerators([shared, shared]).randn(8).chunk(2)[1]
    assert not torch.equal(second, SeedGenerators.of([8], CPU).randn(4))
