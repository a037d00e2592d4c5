"""A language model learns from noised means of clipped per-prompt contributions, and of nothing else."""

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.online.language.answers import Answers, beside_the_others
from primorl.online.language.policy import LanguagePolicy
from primorl.online.language.updates import REFERENCE, PromptGradient, PromptSteps, prompt_gradients
from primorl.online.learning import PARAMETERS, OnlineState, Update, learn
from primorl.online.mechanism import Cohort, online_plan
from primorl.privacy.mechanism.entropy import SeededEntropy
from tests.online.language.tiny import TinyModel, TinyUsers, without

M, S = 12, 0.05
LEFT_OUT = 4
GRADIENT = PromptGradient(learning_rate=1.0, clipping_norm=S, kl_weight=0.0, piece=5)
STEPS = PromptSteps(learning_rate=1.0, clipping_norm=S, kl_weight=0.0, piece=5, local_rate=0.3, local_steps=3)
UPDATES = pytest.mark.parametrize("update", [GRADIENT, STEPS], ids=lambda update: update.name)


@pytest.fixture
def policy() -> LanguagePolicy:
    return LanguagePolicy(TinyModel())


@pytest.fixture
def met(policy: LanguagePolicy) -> Answers:
    found = TinyUsers(answers=3).meet(range(M), policy, policy.initial())
    found.rewards[LEFT_OUT] = torch.tensor([2.0, 0.0, 1.0])
    return found


def cohort(noise_multiplier: float, users: int = M) -> Cohort:
    """The same noise in every call."""
    entropy = SeededEntropy(0)
    return Cohort(
        online_plan(
            users=1000,
            cohort=users,
            noise_multiplier=noise_multiplier,
            releases=1,
            appearances=1,
            delta=1e-5,
            entropy=entropy,
        ),
        1,
    )


def step(update: Update[LanguagePolicy, Answers], policy: LanguagePolicy, met: Answers, noise: float) -> Tensor:
    """The release of a cohort (the learning rate is 1)."""
    values = update.begin(policy, policy.initial())
    return update.updated(policy, values, met, cohort(noise), 0)[PARAMETERS] - policy.initial()


def slow_gradients(policy: LanguagePolicy, met: Answers, reference: Tensor, kl_weight: float) -> Iterator[Tensor]:
    """REINFORCE on one prompt after the other, token by token."""
    trained = [parameter for parameter in policy.module.parameters() if parameter.requires_grad]
    before = LanguagePolicy(copy.deepcopy(policy.module))
    before.load(reference)
    for tokens, present, rewards in zip(met.tokens, met.present, met.rewards, strict=True):
        kept, penalised = [], []
        for row, there, reward in zip(tokens, present, rewards, strict=True):
            logs = {}
            for name, model in (("reference", before), ("now", policy)):
                logits = model.module(row.unsqueeze(0), there.unsqueeze(0), len(row))[0]
                scores = torch.log_softmax(logits, -1)
                places = [at for at in range(len(row) - met.length, len(row)) if there[at]]
                logs[name] = sum((scores[at - 1, row[at]] for at in places), torch.zeros(()))
            kept.append(logs["now"])
            penalised.append(reward - kl_weight * (logs["now"].detach() - logs["reference"].detach()))
        others = [sum(penalised[:i] + penalised[i + 1 :]) / (len(penalised) - 1) for i in range(len(penalised))]
        objective = sum((a - b) * log for a, b, log in zip(penalised, others, kept, strict=True)) / len(kept)
        yield torch.cat([part.flatten() for part in torch.autograd.grad(objective, trained)])


@pytest.mark.parametrize("kl_weight", [0.0, 0.7])
def test_the_batch_has_the_gradients_of_a_loop_over_prompts(
    policy: LanguagePolicy, met: Answers, kl_weight: float
) -> None:
    reference = policy.initial() + 0.1 * torch.randn(policy.parameters, generator=torch.Generator().manual_seed(2))
    slow = torch.stack(list(slow_gradients(policy, met, reference, kl_weight)))
    values = {PARAMETERS: policy.initial(), REFERENCE: reference}
    update = replace(GRADIENT, kl_weight=kl_weight)
    ours = update.updated(policy, values, met, cohort(0.0), 0)[PARAMETERS] - policy.initial()
    torch.testing.assert_close(ours, slow.mean(0), atol=2e-6, rtol=1e-4)
    if not kl_weight:
        rows = prompt_gradients(policy, met, beside_the_others(met.rewards))(policy.initial())
        torch.testing.assert_close(rows, slow, atol=2e-6, rtol=1e-4)
    assert (slow.norm(dim=1) > 0.1).sum() >= 4


@UPDATES
def test_a_prompt_that_is_left_out_moves_the_mean_by_no_more_than_its_share(
    policy: LanguagePolicy, met: Answers, update: Update[LanguagePolicy, Answers]
) -> None:
    loud = replace(met, rewards=met.rewards * 1e3)
    moved = step(update, policy, loud, 1.0) - step(update, policy, without(loud, LEFT_OUT), 1.0)
    assert 0.2 * S / M < float(moved.norm()) <= S / M + 1e-6  # float32, at noise of 4e-3


@UPDATES
def test_without_the_clip_it_moves_the_mean_further(
    policy: LanguagePolicy, met: Answers, update: Update[LanguagePolicy, Answers]
) -> None:
    """The twin that must fail."""
    loud = replace(met, rewards=met.rewards * 1e3)
    moved = step(update, policy, loud, 0.0) - step(update, policy, without(loud, LEFT_OUT), 0.0)
    assert float(moved.norm()) > 10 * S / M


def test_the_others_do_not_see_who_is_left_out(policy: LanguagePolicy, met: Answers) -> None:
    """Not even in the last digit."""
    theta = policy.initial()
    loud = replace(met, rewards=met.rewards.clone())
    loud.rewards[LEFT_OUT] = 1e20
    rows = [
        prompt_gradients(policy, one, beside_the_others(one.rewards))(theta)
        for one in (met, without(met, LEFT_OUT), loud)
    ]
    others = [i for i in range(M) if i != LEFT_OUT]
    assert torch.equal(rows[0][others], rows[1][others])
    assert torch.equal(rows[0][others], rows[2][others])
    assert not rows[1][LEFT_OUT].any()
    assert rows[0][LEFT_OUT].any()


@UPDATES
@pytest.mark.parametrize("broken", ["rewards", "log_probabilities"])
def test_a_prompt_whose_numbers_are_not_finite_counts_as_empty(
    policy: LanguagePolicy, met: Answers, update: Update[LanguagePolicy, Answers], broken: str
) -> None:
    for noise, value in ((1.0, float("nan")), (0.0, float("-inf"))):
        poisoned = {name: tensor.clone() for name, tensor in vars(met).items()}
        poisoned[broken][LEFT_OUT] = value
        found = step(update, policy, Answers(**poisoned), noise)
        assert torch.equal(found, step(update, policy, without(met, LEFT_OUT), noise))


def test_pieces_change_nothing_but_speed(policy: LanguagePolicy, met: Answers) -> None:
    whole, single = (step(replace(STEPS, piece=piece), policy, met, 1.0) for piece in (M, 1))
    torch.testing.assert_close(whole, single, atol=1e-6, rtol=1e-5)


def test_pieces_of_more_users_than_the_cohort_has_are_refused() -> None:
    with pytest.raises(ValueError, match="4 users in a cohort of 3"):
        cohort(1.0, users=3).noisy_mean(iter([torch.zeros(2, 5), torch.zeros(2, 5)]), S)
    with pytest.raises(ValueError, match="no contributions"):
        cohort(1.0).noisy_mean(iter([]), S)


def test_a_cohort_of_nobody_releases_noise(policy: LanguagePolicy, met: Answers) -> None:
    assert step(GRADIENT, policy, met[:0], 1.0).norm() > S / M


def test_a_local_step_of_one_is_the_clipped_gradient(policy: LanguagePolicy, met: Answers) -> None:
    one = step(replace(STEPS, local_steps=1, local_rate=1.0), policy, met, 1.0)
    torch.testing.assert_close(one, step(GRADIENT, policy, met, 1.0), atol=1e-6, rtol=1e-5)


def test_local_steps_go_where_the_change_so_far_has_led(policy: LanguagePolicy, met: Answers) -> None:
    gradients = prompt_gradients(policy, met, beside_the_others(met.rewards))
    theta = policy.initial()
    own = theta.expand(M, -1)
    for _ in range(STEPS.local_steps):
        own = own + STEPS.local_rate * torch.stack([gradients(row)[i] for i, row in enumerate(own)])
    torch.testing.assert_close(step(STEPS, policy, met, 0.0), (own - theta).mean(0), atol=1e-6, rtol=1e-4)


def test_answers_are_compared_with_the_other_answers_to_the_same_prompt() -> None:
    pairs = beside_the_others(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    assert torch.equal(pairs, torch.tensor([[2.0, -2.0], [0.0, 0.0]]))
    torch.testing.assert_close(beside_the_others(torch.tensor([[6.0, 0.0, 3.0]])), torch.tensor([[4.5, -4.5, 0.0]]))
    with pytest.raises(ValueError, match="found 1, allowed are 2 or more"):
        beside_the_others(torch.zeros(4, 1))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_private_run_learns_what_is_rewarded(policy: LanguagePolicy, sign: float) -> None:
    """The twin is rewarded for the opposite, and must learn that."""
    people, many = TinyUsers(reward=lambda answers: sign * (answers == 3).sum(-1).float()), 256
    plan = online_plan(users=10 * many, cohort=many, noise_multiplier=1.0, releases=1, appearances=1, delta=1e-5)
    update = replace(GRADIENT, learning_rate=2.0, clipping_norm=1.0, piece=many)
    cohorts = [range(at, at + many) for at in range(0, 10 * many, many)]
    begun = update.begin(policy, policy.initial())
    start = OnlineState(begun, len(cohorts))
    learned = learn(update, policy, plan, people, cohorts, start)
    before, after = (
        TinyUsers().meet(range(512), policy, parameters).rewards.mean()
        for parameters in (begun[PARAMETERS], learned.parameters)
    )
    assert sign * (after - before) > 0.15
