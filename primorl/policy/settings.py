"""Settings of SAC. The block ``policy`` of ``params.yaml`` inherits them; loading this module needs no torch."""

import math
from dataclasses import dataclass

from primorl.project.values import BufferSize, Finite, HiddenSizes, LearningRate, Positive, Probability, Share, Steps


@dataclass(frozen=True, kw_only=True)
class SacConfig:
    """Settings of SAC (Haarnoja et al. 2018; PriMORL, Algorithm 4).

    Attributes:
        hidden: units of each hidden layer, of actor and critics alike.
        learning_rate: Adam's, of actor, critics and log α.
        discount: γ.
        target_rate: τ in target ← target + τ (critic - target).
        target_entropy: H̄ of actions in a box, scaled to [-1, 1].
        discrete_target_entropy: H̄ of discrete actions, as a share of the largest possible entropy, log A.
        reward_scale: multiplies every reward before the critics see it.
        batch_size: transitions an update.
        epochs: how often training reports.
        updates_per_epoch: updates between two reports.
        rollout_every: updates between two batches of rollouts.
        rollout_batch: rollouts in a batch, of each seed.
        horizon: H, steps of a rollout.
        buffer_size: transitions kept, of each seed.

    Raises:
        ValueError: the buffer is smaller than one batch of rollouts.
    """

    hidden: HiddenSizes
    learning_rate: LearningRate
    discount: Share
    target_rate: Probability
    target_entropy: Finite
    discrete_target_entropy: Share
    reward_scale: Positive
    batch_size: Steps
    epochs: Steps
    updates_per_epoch: Steps
    rollout_every: Steps
    rollout_batch: Steps
    horizon: Steps
    buffer_size: BufferSize

    def __post_init__(self) -> None:
        if self.buffer_size < self.rollout_batch * self.horizon:
            raise ValueError("buffer_size must hold one batch of rollouts: at least rollout_batch * horizon")

    def entropy_of(self, discrete_actions: int | None) -> float:
        """H̄, for so many discrete actions; None: for actions in a box."""
        if discrete_actions is None:
            return self.target_entropy
        return self.discrete_target_entropy * math.log(discrete_actions)
