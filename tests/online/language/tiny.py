"""A causal language model of torch alone, and users who ask it things, for tests of the engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from primorl.online.language.answers import Answers
from primorl.online.language.policy import LanguagePolicy
from primorl.online.network import drawn

WORDS, PROMPT, ANSWER = 7, 3, 4
END = 0


class TinyModel(nn.Module):
    """Logits from a token and the mean of the tokens before it. The table of tokens is frozen, the rest is trained."""

    def __init__(self, width: int = 6):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(WORDS, width).requires_grad_(False)
        self.mixed, self.out = nn.Linear(2 * width, width), nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor, present: Tensor, kept: int) -> Tensor:
        values = self.table(tokens) * present.unsqueeze(-1)
        means = values.cumsum(-2) / present.cumsum(-1).clamp(min=1).unsqueeze(-1)
        logits: Tensor = self.out(self.mixed(torch.cat([values, means], -1)).tanh())
        return logits[..., -kept:, :]


def wanted_words(answers: Tensor) -> Tensor:
    """How often an answer says 3, ``[U, R]`` of ``[U, R, G]``."""
    return (answers == 3).sum(-1).float()


@dataclass(frozen=True)
class TinyUsers:
    """Each asks three random words."""

    answers: int = 2
    reward: Callable[[Tensor], Tensor] = wanted_words

    @torch.no_grad()
    def meet(self, numbers: Sequence[int], network: LanguagePolicy, parameters: Tensor) -> Answers:
        generator = torch.Generator().manual_seed(1 + sum(numbers))
        tokens = torch.randint(1, WORDS, (len(numbers), PROMPT), generator=generator).repeat_interleave(self.answers, 0)
        present, going = torch.ones_like(tokens, dtype=torch.bool), torch.ones(len(tokens), dtype=torch.bool)
        network.load(parameters)
        logs = []
        for _ in range(ANSWER):
            scores = torch.log_softmax(network.module(tokens, present, 1)[:, 0], -1)
            new = torch.where(going, drawn(scores, generator), END).unsqueeze(1)
            logs.append(scores.gather(1, new))
            tokens, present = torch.cat([tokens, new], 1), torch.cat([present, going.unsqueeze(1)], 1)
            going = going & (new[:, 0] != END)
        each = (len(numbers), self.answers, -1)
        rewards = self.reward(tokens[:, PROMPT:].view(each))
        return Answers(tokens.view(each), present.view(each), rewards, torch.cat(logs, 1).view(each))


def without(met: Answers, user: int) -> Answers:
    """The same cohort with an empty prompt in place of one user's."""
    emptied = {name: value.clone() for name, value in vars(met).items()}
    for value in emptied.values():
        value[user] = 0
    return Answers(**emptied)
