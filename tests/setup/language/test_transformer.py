"""GPT-2's architecture as a policy: padding, the cache and the batch over prompts change no number."""

from typing import Any

import pytest
import torch

from primorl.online.language.answers import beside_the_others
from primorl.online.language.policy import LanguagePolicy
from primorl.online.language.updates import prompt_gradients
from primorl.setup.language.loading import as_policy
from primorl.setup.language.prompts import PromptedUsers
from primorl.setup.language.transformer import draw_answers

pytest.importorskip("transformers", reason="the extra rlhf is not installed")
pytest.importorskip("peft", reason="the extra rlhf is not installed")

from examples import tiny_reviews  # it needs the extra

RANKS = pytest.mark.parametrize("rank", [2, None], ids=["adapter", "all parameters"])
PROMPTS = ["this film", "the story was dull and", "the", "their cast was lovely and the"]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_reviews.untrained(seed=3, width=16)


def moved(policy: LanguagePolicy) -> torch.Tensor:
    """Parameters at which an adapter is no longer zero."""
    return policy.initial() + 0.1 * torch.randn(policy.parameters, generator=torch.Generator().manual_seed(1))


def people(reward: Any = tiny_reviews.sentiment, prompts: list[str] = PROMPTS) -> PromptedUsers:
    return PromptedUsers(prompts, tiny_reviews.tokenizer(), reward, 5, 6, 3, 0)


def test_padding_on_the_left_changes_no_logit(model: Any) -> None:
    policy = as_policy(tiny_reviews.untrained(seed=3, width=16), None)
    tokens = torch.tensor([[4, 9, 2, 12]])
    plain = model(input_ids=tokens).logits
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.int64), tokens], 1)
    present = torch.arange(7)[None] >= 3
    torch.testing.assert_close(policy.module(padded, present, 4), plain, atol=1e-6, rtol=1e-5)
    unmasked = policy.module(padded, torch.ones_like(present), 4)
    assert (unmasked - plain).abs().max() > 1e-4, "the twin that sees the padding"


@RANKS
def test_the_cache_gives_the_probabilities_of_whole_texts(rank: int | None) -> None:
    policy = as_policy(tiny_reviews.untrained(seed=3, width=16), rank)
    met = people().meet(range(4), policy, moved(policy))
    rows = met.tokens.flatten(0, 1), met.present.flatten(0, 1)
    whole = policy.log_probabilities(policy.tensors(moved(policy)), *rows, met.length).view_as(met.log_probabilities)
    there = met.answered
    torch.testing.assert_close(met.log_probabilities[there], whole[there], atol=1e-5, rtol=1e-5)
    other = policy.log_probabilities(policy.tensors(policy.initial()), *rows, met.length).view_as(whole)
    assert (other - whole)[there].abs().max() > 1e-3, "the vector is what answers"


@RANKS
def test_the_batch_has_the_gradients_of_a_loop_over_prompts(rank: int | None) -> None:
    policy = as_policy(tiny_reviews.untrained(seed=3, width=16), rank)
    parameters = moved(policy)
    met = people(lambda texts: torch.arange(len(texts)).sin()).meet(range(4), policy, parameters)
    batch = prompt_gradients(policy, met, beside_the_others(met.rewards))(parameters)
    policy.load(parameters)
    trained = [parameter for parameter in policy.module.parameters() if parameter.requires_grad]
    for user in range(4):
        logits = policy.module(met.tokens[user], met.present[user], met.length + 1)[:, :-1]
        logs = torch.log_softmax(logits, -1).gather(-1, met.tokens[user, :, -met.length :, None])[..., 0]
        totals = (logs * met.answered[user]).sum(1)
        objective = (totals * beside_the_others(met.rewards[user : user + 1])[0]).mean()
        slow = torch.cat([part.flatten() for part in torch.autograd.grad(objective, trained)])
        torch.testing.assert_close(batch[user], slow, atol=1e-5, rtol=1e-4)
        assert slow.norm() > 0.1


def test_an_empty_prompt_changes_nothing_for_the_others() -> None:
    """Not even in the last digit; and whoever asks nothing contributes nothing."""
    policy = as_policy(tiny_reviews.untrained(seed=3, width=16), 2)
    parameters = moved(policy)
    rows = []
    for prompts in (PROMPTS, [PROMPTS[0], "", *PROMPTS[2:]]):
        met = people(prompts=prompts).meet(range(4), policy, parameters)
        rows.append((met, prompt_gradients(policy, met, torch.ones(4, 3))(parameters)))
    (met, gradients), (without, left) = rows
    others = [0, 2, 3]
    assert torch.equal(met.tokens[others], without.tokens[others])
    assert torch.equal(gradients[others], left[others])
    assert gradients[1].any()
    assert not left[1].any()
    assert not without.present[1].any()


def test_an_answer_is_over_at_its_end() -> None:
    policy = as_policy(tiny_reviews.untrained(seed=3, width=16), None)
    prompts, present = torch.randint(1, 20, (200, 2)), torch.ones(200, 2, dtype=torch.bool)
    tokens, there, _ = draw_answers(policy, policy.initial(), prompts, present, 6, 0, torch.Generator().manual_seed(0))
    answers = tokens[:, 2:]
    ended = (answers == 0).long().cumsum(1) - (answers == 0).long()
    assert torch.equal(there[:, 2:], ended == 0)
    assert there[:, 2:].sum(1).unique().tolist() == [1, 2, 3, 4, 5, 6]


def test_a_reward_is_one_number_a_text_and_sees_prompt_and_answer() -> None:
    policy = as_policy(tiny_reviews.untrained(seed=3, width=16), None)
    seen: list[str] = []

    def reward(texts: Any) -> torch.Tensor:
        seen.extend(texts)
        return torch.zeros(len(texts), 1)

    with pytest.raises(ValueError, match=r"shape \(12, 1\), allowed is one number a text"):
        people(reward).meet(range(4), policy, policy.initial())
    assert all(text.startswith("this film") for text in seen[:3])
