"""Training what is attacked: a model by the real private engine, and the policy that follows from it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from primorl.attacks.population import bounds
from primorl.attacks.units import Units
from primorl.dynamics.ensemble import Architecture, GaussianEnsemble, Normaliser
from primorl.dynamics.pessimism import PessimisticModel
from primorl.policy import sac
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.replay import ReplayBuffer
from primorl.policy.settings import SacConfig
from primorl.privacy.mechanism.plan import Plan
from primorl.training.local_update import LocalTraining
from primorl.training.rounds import Execution
from primorl.training.training import Look, ServerTraining, train

ON_ONE_CORE = Execution(torch.device("cpu"), chunk_bytes=16 << 20)


@dataclass(frozen=True)
class Recipe:
    """Everything about training but the data and chance; the attacker knows it."""

    plan: Plan
    shape: Architecture
    local: LocalTraining
    server: ServerTraining
    policy: SacConfig
    seed: int


@dataclass(frozen=True)
class Release:
    """What leaves the house, and ``error``, the model's squared error on public units in units of their variance."""

    model: GaussianEnsemble
    policy: DeterministicPolicy
    error: float


def release(recipe: Recipe, members: Units, public: Units, on_round: Callable[[], object]) -> Release:
    """Train a model on ``members`` and a policy in it, whose rollouts begin at the public units' first states."""
    shape = recipe.shape

    def report(done: int, look: Look | None) -> None:
        on_round()

    normaliser = Normaliser.from_public(*public.flat())
    trained = train(
        recipe.plan,
        shape,
        members,
        public.flat(),
        normaliser=normaliser,
        local=recipe.local,
        server=recipe.server,
        max_transitions=None,
        seed=recipe.seed,
        execution=ON_ONE_CORE,
        on_round=report,
    )
    model = GaussianEnsemble(shape, trained.weights, normaliser, bounds())
    pessimistic = PessimisticModel(model, uncertainty="max_pairwise_difference", penalty=0.0)
    starts = public.inputs[:, 0, : shape.observation_size]
    *_, last = sac.train(pessimistic, starts, recipe.policy, ReplayBuffer.batches)
    error = trained.looks[-1].error
    return Release(model, last.policies, (error[0] + error[-1]) / 2)
