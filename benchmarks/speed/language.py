"""Seconds and memory of one cohort's update of a language model, beside one backward pass a prompt, on one thread.

python -m benchmarks.speed.language [--gpt2]     # with the extra rlhf; --gpt2: GPT-2's size too, with random weights

Every row runs in a process of its own, whose peak memory is the system's count; the model is in it.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.machine import command, row, write
from primorl.online.language.answers import Answers, beside_the_others
from primorl.online.language.policy import LanguagePolicy
from primorl.online.language.updates import PromptGradient
from primorl.online.learning import PARAMETERS
from primorl.online.mechanism import Cohort, online_plan
from primorl.setup.language.loading import as_policy

COHORTS = {"tiny": (512, 3, 8, 2, 256), "gpt2": (8, 8, 24, 2, 4)}
"""Of each model: m, P, G, R and the prompts whose gradients are computed at once."""

RANKS = {"adapter of rank 2": 2, "all parameters": None}
PEER = "one backward pass a prompt, all rows kept"


def main() -> None:
    """Measure all in turns and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpt2", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "TRAINED", "HOW"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(_measured(*options.one)))
        return
    tasks = [("tiny", trained) for trained in RANKS]
    tasks += [("gpt2", next(iter(RANKS)))] if options.gpt2 else []
    rows = []
    for model, trained in tasks:
        ours, peer = (_in_a_process(model, trained, how) for how in ("batch", "loop"))
        users, prompt, answer, answers, piece = COHORTS[model]
        what = (
            f"{model}, {trained} ({ours['d']:,.0f}): update of {users} prompts of {prompt} tokens, {answers} answers "
            f"of {answer}, {piece} prompts at once"
        )
        for unit in ("s", "MiB"):
            rows.append(row(command(__spec__.name), what, ours[unit], peer[unit], PEER, peer[unit] / ours[unit], unit))
    write("language", rows)


def _in_a_process(model: str, trained: str, how: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.language", "--one", model, trained, how],
        check=True,
        capture_output=True,
        text=True,
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _measured(model: str, trained: str, how: str) -> dict[str, float]:
    """Seconds of one update (median of three after one to warm up), peak memory in MiB, trained parameters."""
    policy = _policy(model, RANKS[trained])
    users, prompt, answer, answers, piece = COHORTS[model]
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 20, (users, answers, prompt + answer), generator=generator)
    met = Answers(
        tokens,
        torch.ones_like(tokens, dtype=torch.bool),
        torch.rand(users, answers, generator=generator),
        torch.zeros(users, answers, answer),
    )
    update = PromptGradient(1.0, 0.1, 0.0, piece)
    values = update.begin(policy, policy.initial())
    rows = met.tokens.flatten(0, 1), met.present.flatten(0, 1)
    with torch.no_grad():
        for start in range(0, len(rows[0]), piece):
            part = slice(start, start + piece)
            met.log_probabilities.flatten(0, 1)[part] = policy.log_probabilities(
                policy.tensors(values[PARAMETERS]), rows[0][part], rows[1][part], answer
            )
    plan = online_plan(users=users, cohort=users, noise_multiplier=4.0, releases=1, appearances=1, delta=1e-5)
    ways: dict[str, Callable[[], Tensor]] = {
        "batch": lambda: update.updated(policy, values, met, Cohort(plan, 1), 0)[PARAMETERS],
        "loop": lambda: Cohort(plan, 1).noisy_mean(torch.stack(list(_looped(policy, met))), 0.1),
    }
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        ways[how]()
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"s": sorted(seconds[1:])[1], "MiB": peak, "d": float(policy.parameters)}


def _policy(model: str, rank: int | None) -> LanguagePolicy:
    from transformers import GPT2Config, GPT2LMHeadModel

    from examples import tiny_reviews

    if model == "tiny":
        return as_policy(tiny_reviews.untrained(0), rank)
    return as_policy(GPT2LMHeadModel(GPT2Config(attn_implementation="eager")), rank)


def _looped(policy: LanguagePolicy, met: Answers) -> Iterator[Tensor]:
    """The gradient of one prompt after the other."""
    trained = [parameter for parameter in policy.module.parameters() if parameter.requires_grad]
    advantages = beside_the_others(met.rewards)
    for user in range(len(met)):
        logits = policy.module(met.tokens[user], met.present[user], met.length + 1)[:, :-1]
        logs = torch.log_softmax(logits, -1).gather(-1, met.tokens[user, :, -met.length :, None])[..., 0]
        objective = ((logs * met.answered[user]).sum(1) * advantages[user]).mean()
        yield torch.cat([part.flatten() for part in torch.autograd.grad(objective, trained)])


if __name__ == "__main__":
    main()
