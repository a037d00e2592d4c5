"""Teach a language model to answer in a better mood, privately: every prompt is one user's, and is used once.

python -m examples.sentiment                                    # offline: invented reviews and a tiny model
python -m examples.sentiment --model lvwerra/gpt2-imdb --prompts stanfordnlp/imdb --reward lvwerra/distilbert-imdb
    --rank 4 --cohort 256 --piece 8 --prompt-length 8 --answer-length 24        # GPT-2; downloads about 1 GB once

Prints the mean reward on held-out prompts, which count as public, before and after. Writes the trained weights and
privacy.json.
"""

import argparse
import hmac
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from primorl.online.language.policy import LanguagePolicy
from primorl.online.language.updates import PromptGradient
from primorl.online.learning import OnlineState, learn
from primorl.online.mechanism import online_plan
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.project.errors import PipelineError
from primorl.setup.language.loading import as_policy, load_policy, load_prompts, load_reward, save
from primorl.setup.language.prompts import PromptedUsers, Reward, mean_reward

PUBLIC = ["the number of users", "the cohorts' size", "the model before", "the reward model", "the tokenizer"]


class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The text as it is written, and the defaults."""


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed is a whole number from 1")
    return int(text)


def positive(text: str) -> float:
    """A number above 0."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed is a number above 0")
    return number


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    parser.add_argument("--model", help="name or folder of a causal language model; default: a tiny one, made here")
    parser.add_argument("--prompts", help="name or folder of texts; default: invented reviews")
    parser.add_argument("--reward", help="name or folder of a sentiment classifier; default: words are counted")
    parser.add_argument("--epsilon", type=positive, default=8.0, help="ε of the run, at δ = 1e-5; inf: not private")
    parser.add_argument("--cohorts", type=count, default=20, help="updates")
    parser.add_argument("--cohort", type=count, default=512, help="prompts a cohort")
    parser.add_argument("--piece", type=count, default=256, help="prompts whose gradients are in memory at once")
    parser.add_argument("--rank", type=int, default=0, help="of a low-rank adapter; 0: train all parameters")
    parser.add_argument("--prompt-length", type=count, default=3, help="tokens of a text that are its prompt")
    parser.add_argument("--answer-length", type=count, default=8, help="tokens of an answer, at most")
    parser.add_argument("--answers", type=count, default=2, help="to each prompt; they are compared with each other")
    parser.add_argument("--learning-rate", type=positive, default=0.3, help="of an update")
    parser.add_argument("--clipping-norm", type=positive, default=1.0, help="of what one prompt contributes")
    parser.add_argument("--kl-weight", type=float, default=0.01, help="of the divergence from the model before")
    parser.add_argument("--held-out", type=count, default=512, help="public prompts that judge the model")
    parser.add_argument("--seed", type=int, default=0, help="of the model, prompts and answers; never of the noise")
    parser.add_argument("--out", type=Path, default=Path("models/language"), help="folder of the weights")
    try:
        run(parser.parse_args())
    except PipelineError as refused:
        sys.exit(f"error: {refused}")


def run(options: argparse.Namespace) -> None:
    """Learn from the prompts, and print and write what came of it."""
    needed = options.cohorts * options.cohort
    policy, tokenizer, prompts, reward = _task(options, needed + options.held_out)
    if len(prompts) < needed + options.held_out:
        raise PipelineError(
            f"--cohorts, --cohort: {needed} users and {options.held_out} held-out prompts are asked for, "
            f"found {len(prompts)} prompts"
        )
    lengths = options.prompt_length, options.answer_length, options.answers, options.seed
    users = PromptedUsers(prompts[:needed], tokenizer, reward, *lengths)
    public = PromptedUsers(prompts[needed : needed + options.held_out], tokenizer, reward, *lengths)
    delta = 1e-5
    noise = solve_noise_multiplier(options.epsilon, delta, 1.0, 1) if options.epsilon < float("inf") else 0.0
    update = PromptGradient(options.learning_rate, options.clipping_norm, options.kl_weight, options.piece)
    plan = online_plan(
        users=needed,
        cohort=options.cohort,
        noise_multiplier=noise,
        releases=update.releases,
        appearances=1,
        delta=delta,
    )
    before = policy.initial()
    print(f"{len(before)} trained parameters, {needed} prompts in {options.cohorts} cohorts, noise multiplier {noise}")
    print(f"reward before: {mean_reward(public, policy, before):.3f}")
    cohorts = [range(at, at + options.cohort) for at in range(0, needed, options.cohort)]
    started = time.perf_counter()
    learned = learn(update, policy, plan, users, cohorts, OnlineState(update.begin(policy, before), len(cohorts)))
    spent = (time.perf_counter() - started) / len(cohorts)
    print(f"reward after: {mean_reward(public, policy, learned.parameters):.3f}  ({spent:.2f} s a cohort)")
    # This example keeps no ledger, so nobody has to recognise the data again: the key is thrown away.
    fingerprint = hmac.digest(secrets.token_bytes(32), "\n".join(users.prompts).encode(), "sha256").hex()
    save(
        options.out,
        policy,
        learned.parameters,
        plan.statement(dataset_fingerprint=fingerprint, public_assumptions=[*PUBLIC, "each user has one prompt"]),
    )
    print(f"weights and privacy.json: {options.out}")


def _task(options: argparse.Namespace, texts: int) -> tuple[LanguagePolicy, Any, list[str], Reward]:
    """Model, tokenizer, prompts and reward: by name, or tiny ones."""
    rank = options.rank or None
    named = [options.model, options.prompts, options.reward]
    if all(named):
        policy, tokenizer = load_policy(options.model, rank)
        prompts = load_prompts(options.prompts)
        reward: Reward = load_reward(options.reward, length=2 * (options.prompt_length + options.answer_length))
        return policy, tokenizer, prompts, reward
    if any(named):
        raise PipelineError("--model, --prompts, --reward: name all three, or none of them for the tiny task")
    try:
        from examples import tiny_reviews
    except ImportError as missing:
        raise PipelineError(
            f"the package {missing.name} is not installed; `pip install 'primorl[rlhf]'` installs it"
        ) from None
    model = tiny_reviews.trained(options.seed)
    prompts = tiny_reviews.reviews(texts, options.seed + 1)
    return as_policy(model, rank), tiny_reviews.tokenizer(), prompts, tiny_reviews.sentiment


if __name__ == "__main__":
    main()
