"""Private updates of a language model: DP-PG, and DPPG's local steps. One contribution is that of one prompt."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad, vmap

from primorl.online.language.answers import Answers, beside_the_others
from primorl.online.language.policy import LanguagePolicy
from primorl.online.learning import PARAMETERS, Values
from primorl.online.mechanism import Cohort
from primorl.online.returns import within

REFERENCE = "reference"
"""Among the values: the parameters that the KL penalty pulls to, ``[d]``."""

_Gradients = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PromptUpdate:
    """What the updates of a language model share.

    Attributes:
        learning_rate: η.
        clipping_norm: S, of what one prompt contributes.
        kl_weight: β.
        piece: prompts whose contributions are computed, and in memory, at once; changes speed only.
    """

    releases: ClassVar[int] = 1

    learning_rate: float
    clipping_norm: float
    kl_weight: float
    piece: int

    @property
    def void(self) -> str | None:
        """See `Update.void`."""
        return None

    def begin(self, network: LanguagePolicy, parameters: Tensor) -> dict[str, Tensor]:
        """See `Update.begin`."""
        return {PARAMETERS: parameters} | ({REFERENCE: parameters} if self.kl_weight else {})

    def _moved(
        self,
        policy: LanguagePolicy,
        values: Values,
        met: Answers,
        cohort: Cohort,
        contribution: Callable[[_Gradients], Tensor],
    ) -> dict[str, Tensor]:
        """The values after a step along the noisy mean of the contributions of all prompts."""
        pieces = _contributions(policy, values, met, self.kl_weight, self.piece, contribution)
        step = self.learning_rate * cohort.noisy_mean(pieces, self.clipping_norm)
        return {**values, PARAMETERS: values[PARAMETERS] + step}


@dataclass(frozen=True)
class PromptGradient(PromptUpdate):
    """DP-PG (private policy optimisation, Algorithm 2) on prompts: θ ← θ + η (mean of clipped gradients + noise).

    A prompt's objective is (1/R) Σ_i A_i Σ_t π(y_it | x, y_i,<t) / π_0(y_it | x, y_i,<t), whose gradient at the policy
    π_0 that answered is the one of REINFORCE. A_i compares the answers to this prompt with each other
    (`beside_the_others`), by reward minus β log(π_0(y_i | x) / π_ref(y_i | x)). The mean of that log-ratio is the KL
    divergence to the reference π_ref, with which the run began.

    Its attributes are those of `PromptUpdate`.
    """

    name: ClassVar[str] = "dp-pg"

    def updated(
        self, network: LanguagePolicy, values: Values, met: Answers, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        return self._moved(network, values, met, cohort, lambda gradients: gradients(values[PARAMETERS]))


@dataclass(frozen=True)
class PromptSteps(PromptUpdate):
    """DPPG (Algorithms 2 and 3) on prompts: θ ← θ + η (mean of clipped local changes + noise).

    Every prompt takes steps of gradient ascent of its own on the objective of `PromptGradient`. After each, its change
    of θ is clipped to S.

    Attributes, beside those of `PromptUpdate`:
        local_rate: of a local step.
        local_steps: how many.
    """

    name: ClassVar[str] = "dppg"

    local_rate: float
    local_steps: int

    def updated(
        self, network: LanguagePolicy, values: Values, met: Answers, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        now = values[PARAMETERS]
        bound = self.clipping_norm if cohort.noise_multiplier > 0 else math.inf

        def change(gradients: _Gradients) -> Tensor:
            result = torch.zeros_like(now)
            for _ in range(self.local_steps):
                result = within(result + self.local_rate * gradients(now + result), bound)
            return result

        return self._moved(network, values, met, cohort, change)


def _contributions(
    policy: LanguagePolicy,
    values: Values,
    met: Answers,
    kl_weight: float,
    piece: int,
    contribution: Callable[[_Gradients], Tensor],
) -> Iterator[Tensor]:
    """What the prompts contribute, ``[u, d]`` for piece after piece. Sensitive.

    Args:
        policy: shape of the policy.
        values: of the run.
        met: the cohort's answers.
        kl_weight: β.
        piece: prompts at once.
        contribution: of a piece's prompts, made of their gradients.
    """
    yield values[PARAMETERS].new_zeros(0, policy.parameters)  # a cohort of nobody releases noise as well
    for start in range(0, len(met), piece):
        part = met[start : start + piece]
        rewards = part.rewards
        if kl_weight:
            rewards = rewards - kl_weight * _log_ratios(policy, values[REFERENCE], part)
        yield contribution(prompt_gradients(policy, part, beside_the_others(rewards)))


def prompt_gradients(policy: LanguagePolicy, part: Answers, advantages: Tensor) -> _Gradients:
    """Gradients of all prompts' objectives (`PromptGradient`) in one batch, ``[u, d]``. Sensitive.

    Args:
        policy: shape of the policy.
        part: some prompts' answers.
        advantages: A, ``[u, R]``.

    Returns:
        The gradients as a function of parameters, ``[d]``, or ``[u, d]`` for other ones at each prompt.
    """

    def objective(
        parameters: Tensor, tokens: Tensor, present: Tensor, before: Tensor, answered: Tensor, advantages: Tensor
    ) -> Tensor:
        logs = policy.log_probabilities(policy.tensors(parameters), tokens, present, part.length)
        ratios = torch.where(answered, (logs - before).exp(), 0.0).sum(-1)
        return (ratios * advantages).mean()

    own = (part.tokens, part.present, part.log_probabilities, part.answered, advantages)

    def gradients(parameters: Tensor) -> Tensor:
        where = None if parameters.dim() == 1 else 0
        rows: Tensor = vmap(grad(objective), in_dims=(where, 0, 0, 0, 0, 0))(parameters, *own)
        return rows

    return gradients


@torch.no_grad()
def _log_ratios(policy: LanguagePolicy, reference: Tensor, part: Answers) -> Tensor:
    """log(π_0(y | x) / π_ref(y | x)) of every answer, ``[u, R]``."""
    rows = part.tokens.flatten(0, 1), part.present.flatten(0, 1)
    logs = policy.log_probabilities(policy.tensors(reference), *rows, part.length)
    differences = part.log_probabilities - logs.view_as(part.log_probabilities)
    return torch.where(part.answered, differences, 0.0).sum(-1)
