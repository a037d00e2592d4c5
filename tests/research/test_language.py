"""A language model learns from noised means of clipped per-prompt contributions, and of nothing
else.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from primorl.online.learning import PARAMETERS, Cohort, online_mechanism
from research import language
from research.language import Answers, LanguagePolicy, PromptUpdate, Transformer, prompt_gradients
from tests.mechanisms import SeededEntropy

USERS, ANSWERS, PROMPT, ANSWER, WORDS = 12, 3, 3, 4, 7
S, LEFT_OUT = 0.05, 4
GRADIENT = PromptUpdate(learning_rate=1.0, clipping_norm=S, kl_weight=0.0, piece=5)
STEPS = replace(GRADIENT, local_steps=3, local_rate=0.3)


class TinyModel(nn.Module):
    """Logits from a token and the mean of the tokens before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(WORDS, 6).requires_grad_(False)
        self.mixed, self.out = nn.Linear(12, 6), nn.Linear(6, WORDS)

    def forward(self, tokens: Tensor, present: Tensor, kept: int) -> Tensor:
        values = self.table(tokens) * present.unsqueeze(-1)
        means = values.cumsum(-2) / present.cumsum(-1).clamp(min=1).unsqueeze(-1)
        logits: Tensor = self.out(self.mixed(torch.cat([values, means], -1)).tanh())
        return logits[..., -kept:, :]


POLICY = LanguagePolicy(TinyModel())


def answered() -> Answers:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, WORDS, (USERS, ANSWERS, PROMPT + ANSWER), generator=generator)
    lengths = PROMPT + torch.randint(1, 5, (USERS, ANSWERS, 1), generator=generator)
    present = torch.arange(PROMPT + ANSWER) < lengths
    rewards = torch.randn(USERS, ANSWERS, generator=generator)
    rows = tokens.flatten(0, 1), present.flatten(0, 1)
    with torch.no_grad():
        logs = POLICY.log_probabilities(POLICY.initial(), *rows, ANSWER)
    return Answers(tokens, present, rewards, logs.view(USERS, ANSWERS, ANSWER))


def without(met: Answers, user: int) -> Answers:
    emptied = {name: value.clone() for name, value in vars(met).items()}
    for value in emptied.values():
        value[user] = 0
    return Answers(**emptied)


def released(update: PromptUpdate, met: Answers, noise: float) -> Tensor:
    """The release of a cohort (the learning rate is 1), with the same noise in every call."""
    sizes = {"users": 99, "cohort": USERS, "releases": 1}
    mechanism = online_mechanism(
        **sizes, noise_multiplier=noise, delta=1e-5, entropy=SeededEntropy(0)
    )
    begun = update.begin(POLICY, POLICY.initial())
    return update.apply(POLICY, begun, met, Cohort(mechanism, 1), 0)[PARAMETERS] - POLICY.initial()


def test_the_batch_has_the_gradients_of_a_loop_over_prompts() -> None:
    met, theta = answered(), POLICY.initial()
    advantages = language.beside_the_others(met.rewards)
    advantage = language.beside_the_others(torch.tensor([[6.0, 0.0, 3.0]]))
    torch.testing.assert_close(advantage, torch.tensor([[4.5, -4.5, 0.0]]))
    found = prompt_gradients(POLICY, met, advantages)(theta)
    for user in range(USERS):
        own = theta.clone().requires_grad_()
        logs = POLICY.log_probabilities(own, met.tokens[user], met.present[user], ANSWER)
        objective = ((logs * met.answered[user]).sum(1) * advantages[user]).mean()
        (expected,) = torch.autograd.grad(objective, own)
        torch.testing.assert_close(found[user], expected, atol=2e-6, rtol=1e-4)
    assert (found.norm(dim=1) > 0.1).sum() >= 4
    other = theta + 0.1 * torch.randn(len(theta), generator=torch.Generator().manual_seed(2))
    rows = met.tokens.flatten(0, 1), met.present.flatten(0, 1)
    logs = POLICY.log_probabilities(other, *rows, ANSWER).view_as(met.log_probabilities)
    expected = ((met.log_probabilities - logs) * met.answered).sum(-1)
    torch.testing.assert_close(language.log_ratios(POLICY, other, met), expected)


@pytest.mark.parametrize("update", [GRADIENT, STEPS], ids=["gradient", "local steps"])
def test_a_prompt_moves_the_mean_by_its_share_and_nobody_else(update: PromptUpdate) -> None:
    met = answered()
    loud = replace(met, rewards=met.rewards * 1e3)
    moved = released(update, loud, 1.0) - released(update, without(loud, LEFT_OUT), 1.0)
    assert 0.2 * S / USERS < float(moved.norm()) <= S / USERS + 1e-6
    wide = replace(update, clipping_norm=1e6)
    unclipped = released(wide, loud, 0.0) - released(wide, without(loud, LEFT_OUT), 0.0)
    assert float(unclipped.norm()) > 10 * S / USERS, "the twin without the clip"
    gradients = [
        prompt_gradients(POLICY, each, language.beside_the_others(each.rewards))(POLICY.initial())
        for each in (met, without(met, LEFT_OUT))
    ]
    others = [user for user in range(USERS) if user != LEFT_OUT]
    assert torch.equal(gradients[0][others], gradients[1][others]), "not even in the last digit"
    assert not gradients[1][LEFT_OUT].any()
    rewards = met.rewards.clone()
    rewards[LEFT_OUT] = torch.nan
    broken, alone = replace(met, rewards=rewards), without(met, LEFT_OUT)
    assert torch.equal(released(update, broken, 1.0), released(update, alone, 1.0))
    pieces = [released(replace(update, piece=piece), met, 1.0) for piece in (1, USERS)]
    torch.testing.assert_close(*pieces, atol=1e-6, rtol=1e-5)
    nobody = met.of(slice(0))
    assert released(update, nobody, 1.0).norm() > S / USERS, "noise alone"


def test_a_transformer_answers_padded_prompts_as_plain_ones() -> None:
    pytest.importorskip("transformers", reason="the extra rlhf is not installed")
    model, tokenizer, prompts, reward = language.tiny_task(4, 0, steps=3)
    policy = LanguagePolicy(Transformer(model))
    users = language.PromptedUsers([*prompts[:3], ""], tokenizer, reward, (5, 6, 2), 0)
    met = users.meet([0, 1, 2, 3], policy, policy.initial())
    rows = met.tokens.flatten(0, 1), met.present.flatten(0, 1)
    whole = policy.log_probabilities(policy.initial(), *rows, 6).view_as(met.log_probabilities)
    here = met.answered
    torch.testing.assert_close(met.log_probabilities[here], whole[here], atol=1e-5, rtol=1e-5)
    assert not met.present[3].any()
    row = met.tokens[0, 0][met.present[0, 0]][None]
    unpadded = policy.module(row, torch.ones_like(row, dtype=torch.bool), 2)
    torch.testing.assert_close(model(input_ids=row).logits[:, -2:], unpadded, atol=1e-5, rtol=1e-5)
