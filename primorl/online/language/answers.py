"""What a language model answered to the prompts of one cohort, and how good its answers were."""

from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.online.trajectories import OnDevice


@dataclass(frozen=True)
class Answers(OnDevice):
    """R answers to each of U prompts under one released policy. Sensitive: discard right after the update.

    A prompt has P tokens, padded on the left; an answer has G, padded on the right; L = P + G. P, G and R are public
    and the same for all, so what is computed of one prompt does not depend on the others, not even in its last digit.

    Attributes:
        tokens: prompts and answers, int64 ``[U, R, L]``.
        present: tokens that are not padding, bool ``[U, R, L]``. The padding of an answer is present only if its
            prompt is; a user who is not there has no token at all.
        rewards: of whole answers, float32 ``[U, R]``.
        log_probabilities: of the answers' tokens under the policy that gave them, float32 ``[U, R, G]``.
    """

    tokens: Tensor
    present: Tensor
    rewards: Tensor
    log_probabilities: Tensor

    @property
    def length(self) -> int:
        """G."""
        return self.log_probabilities.shape[-1]

    @property
    def answered(self) -> Tensor:
        """Tokens of the answers, bool ``[U, R, G]``."""
        return self.present[..., -self.length :]

    def __len__(self) -> int:
        """U."""
        return len(self.rewards)

    def __getitem__(self, rows: slice) -> "Answers":
        """Some of the prompts."""
        return Answers(**{name: value[rows] for name, value in vars(self).items()})

    def to(self, device: torch.device) -> "Answers":
        """The same on a device."""
        return Answers(**{name: value.to(device) for name, value in vars(self).items()})


def beside_the_others(rewards: Tensor) -> Tensor:
    """Each answer's reward minus the mean reward of the other answers to the same prompt, ``[U, R]``.

    With two answers that is the difference of the pair, with either sign. No other prompt is looked at.

    Raises:
        ValueError: a prompt has one answer only.
    """
    answers = rewards.shape[1]
    if answers < 2:
        raise ValueError("answers of a prompt: found 1, allowed are 2 or more, which are compared with each other")
    return (rewards - rewards.mean(1, keepdim=True)) * (answers / (answers - 1))
