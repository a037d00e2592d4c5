"""Users of an online run who each give a language model one prompt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from primorl.online.language.answers import Answers
from primorl.online.language.policy import LanguagePolicy
from primorl.setup.language.transformer import draw_answers

Reward = Callable[[Sequence[str]], Tensor]
"""Scores n texts, prompt and answer together: float ``[n]``. One text's score must not depend on the others."""


@dataclass(frozen=True)
class PromptedUsers:
    """User i asks prompt i, gets some answers to it, and a reward scores each.

    Attributes:
        prompts: the beginning of a text for each user. A user with an empty one is not there.
        tokenizer: of the model; from ``transformers``.
        reward: of answers.
        prompt_length: P; a longer prompt loses its end.
        answer_length: G.
        answers: R, to each prompt.
        seed: of the answers, together with the numbers of the users.
    """

    prompts: Sequence[str]
    tokenizer: Any
    reward: Reward
    prompt_length: int
    answer_length: int
    answers: int
    seed: int

    def meet(self, numbers: Sequence[int], network: LanguagePolicy, parameters: Tensor) -> Answers:
        """See `Users.meet`.

        Raises:
            ValueError: the reward is not one number a text.
        """
        seed = int(np.random.SeedSequence([self.seed, *numbers]).generate_state(1, np.uint64)[0] >> 1)
        tokens, present, logs = draw_answers(
            network,
            parameters,
            *self._tokens([self.prompts[number] for number in numbers], parameters.device),
            self.answer_length,
            self.tokenizer.eos_token_id,
            torch.Generator().manual_seed(seed),
        )
        rewards = self.reward(self.texts(tokens, present))
        if rewards.shape != (len(tokens),):
            raise ValueError(f"the reward has shape {tuple(rewards.shape)}, allowed is one number a text: [n]")
        scored = torch.where(present.any(1), rewards.to(logs), 0.0)
        each = (len(numbers), self.answers)
        return Answers(tokens.view(*each, -1), present.view(*each, -1), scored.view(each), logs.view(*each, -1))

    def texts(self, tokens: Tensor, present: Tensor) -> list[str]:
        """Prompts and answers as text, without padding."""
        kept = [row[there].tolist() for row, there in zip(tokens.cpu(), present.cpu(), strict=True)]
        texts: list[str] = self.tokenizer.batch_decode(kept, skip_special_tokens=True)
        return texts

    def _tokens(self, prompts: Sequence[str], device: torch.device) -> tuple[Tensor, Tensor]:
        """Every prompt R times, padded on the left: int64 and bool ``[U R, P]``."""
        encoded = self.tokenizer(
            list(prompts),
            truncation=True,
            max_length=self.prompt_length,
            padding="max_length",
            padding_side="left",
            return_tensors="pt",
        )
        each = (encoded[name].to(device).repeat_interleave(self.answers, 0) for name in ("input_ids", "attention_mask"))
        tokens, present = each
        return tokens.long(), present.bool()


def mean_reward(users: PromptedUsers, policy: LanguagePolicy, parameters: Tensor) -> float:
    """Mean reward of the answers to all prompts. The prompts must be public."""
    return float(users.meet(range(len(users.prompts)), policy, parameters).rewards.mean())
