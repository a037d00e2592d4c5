"""Training of what is attacked: a model by the real private engine, and the policy that follows from it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from primorl.attacks.units import Units
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.pessimism import PessimisticModel
from primorl.policy import sac
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.replay import ReplayBuffer
from primorl.policy.settings import SacConfig
from primorl.training.settings import Execution
from primorl.training.setup import TrainingSetup
from primorl.training.training import train

ON_ONE_CORE = Execution(torch.device("cpu"), chunk_bytes=16 << 20)


@dataclass(frozen=True)
class Recipe:
    """Everything about training but the data and chance. The attacker knows it.

    Attributes:
        setup: of the model's training.
        policy: of the policy's.
    """

    setup: TrainingSetup
    policy: SacConfig


@dataclass(frozen=True)
class Release:
    """What is released, and ``error``, the model's squared error on public units in units of their variance."""

    model: GaussianEnsemble
    policy: DeterministicPolicy
    error: float


def release(recipe: Recipe, members: Units, public: Units, on_round: Callable[[], object]) -> Release:
    """Train a model on ``members`` and a policy in it, whose rollouts begin at the public units' first states."""
    setup = recipe.setup
    trained = train(
        setup,
        members,
        public.flat(),
        on_round=lambda started, evaluation: on_round(),  # type: ignore[arg-type]
    )
    model = GaussianEnsemble(setup.ensemble, trained.weights, trained.normaliser, setup.bounds)
    pessimistic = PessimisticModel(model, uncertainty="max_pairwise_difference", penalty=0.0)
    starts = public.inputs[:, 0, : setup.ensemble.observation_size]
    *_, last = sac.train(pessimistic, starts, recipe.policy, ReplayBuffer.batches)
    error = trained.evaluations[-1].error
    return Release(model, last.policies, (error[0] + error[-1]) / 2)
