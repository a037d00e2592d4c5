"""Teach a language model to answer in a better mood, privately: every prompt is one user's, and is
used once.

python -m research.language                         # the rows of docs/rlhf.md, by a tiny model

The update is DP-PG (private policy optimisation, Algorithm 2) or, with local steps, DPPG
(Algorithms 2 and 3). `LanguagePolicy`, `PromptedUsers` and `PromptUpdate` take any causal model of
``transformers``, its tokenizer, prompts and reward.
Needs ``pip install 'primorl[rlhf]'``.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks.machine import ROOT, put
from primorl.online.learning import PARAMETERS, Cohort, Values, online_mechanism
from primorl.online.network import draw_softmax
from primorl.online.updates import within
from primorl.privacy.accounting.solving import solve_noise_multiplier
from research.paper_mode import NoiseAlone
from research.rows import Row, completed

REFERENCE = "reference"
"""Among the values: the parameters that the KL penalty pulls to, ``[d]``."""
DELTA = 1e-5
PARTS = {"all": 0.3, "adapter of the output": 1.0}
"""Learning rate for each part of the tiny model."""
NAMES = {"neither": "no clip, no noise", "clip alone": "clip, no noise", "learning": "private"}
PAGE = ROOT / "docs" / "rlhf.md"


@dataclass(frozen=True)
class LanguagePolicy:
    """A causal language model; its parameters that require a gradient are trained, as one vector
    ``[d]``.

    Attributes:
        module: ``module(tokens, present, kept)`` takes int64 ``[B, L]``, bool ``[B, L]`` and a
            number, and gives the logits of the next token at the last ``kept`` positions, ``[B,
            kept, V]``.
    """

    module: nn.Module

    @property
    def parameters(self) -> int:
        """Count the trained parameters, d."""
        return len(self.initial())

    def initial(self) -> Tensor:
        """Flatten the trained parameters as the module has them, float32 ``[d]``."""
        return torch.cat(
            [parameter.detach().flatten().float() for parameter in self._trained().values()]
        )

    def tensors(self, parameters: Tensor) -> dict[str, Tensor]:
        """Split ``[d]`` into the trained parameters by name."""
        trained = self._trained()
        parts = torch.split(parameters, [parameter.numel() for parameter in trained.values()])
        return {
            name: part.view(old.shape)
            for (name, old), part in zip(trained.items(), parts, strict=True)
        }

    def log_probabilities(
        self, parameters: Tensor, tokens: Tensor, present: Tensor, length: int
    ) -> Tensor:
        """Compute the log-probabilities of the last ``length`` tokens of each row, ``[B,
        length]``.
        """
        logits = functional_call(
            self.module, self.tensors(parameters), (tokens, present, length + 1)
        )
        logs = torch.log_softmax(logits[:, :-1].float(), -1)
        return logs.gather(-1, tokens[:, -length:].unsqueeze(-1)).squeeze(-1)

    def _trained(self) -> dict[str, nn.Parameter]:
        return {
            name: value for name, value in self.module.named_parameters() if value.requires_grad
        }


@dataclass(frozen=True)
class Answers:
    """R answers to each of U prompts under one released policy.

    Sensitive: discard right after the update.

    A prompt has P tokens, padded on the left; an answer has G, padded on the right; L = P + G. P, G
    and R are public and the same for all, so what is computed of one prompt does not depend on the
    others, not even in its last digit.

    Attributes:
        tokens: prompts and answers, int64 ``[U, R, L]``.
        present: tokens that are not padding, bool ``[U, R, L]``; a user who is not there has none.
        rewards: of whole answers, float32 ``[U, R]``.
        log_probabilities: of the answers' tokens under the policy that gave them, float32 ``[U, R,
            G]``.
    """

    tokens: Tensor
    present: Tensor
    rewards: Tensor
    log_probabilities: Tensor

    @property
    def answered(self) -> Tensor:
        """Tell which tokens of the answers are no padding, bool ``[U, R, G]``."""
        return self.present[..., -self.log_probabilities.shape[-1] :]

    def of(self, rows: slice) -> "Answers":
        """Take some of the prompts."""
        return Answers(**{name: value[rows] for name, value in vars(self).items()})


@dataclass(frozen=True)
class PromptUpdate:
    """DP-PG on prompts, θ ← θ + η (mean of clipped contributions + noise), or DPPG's local steps.

    A prompt's objective is (1/R) Σ_i A_i Σ_t π(y_it | x, y_i,<t) / π_0(y_it | x, y_i,<t), whose
    gradient at the policy π_0 that answered is that of REINFORCE. A_i is the reward of an answer,
    minus β log(π_0(y_i | x) / π_ref(y_i | x)), less the mean of the other answers to the same
    prompt; π_ref is the model before the run. A prompt contributes the gradient; or its change of θ
    after local steps of gradient ascent, clipped to S after each.

    Attributes:
        learning_rate: η.
        clipping_norm: S.
        kl_weight: β.
        piece: prompts whose contributions are in memory at once; changes speed only.
        local_steps: of each prompt; 0: it contributes its gradient.
        local_rate: of a local step.
    """

    releases: ClassVar[int] = 1

    learning_rate: float
    clipping_norm: float
    kl_weight: float
    piece: int
    local_steps: int = 0
    local_rate: float = 1.0

    def begin(self, network: LanguagePolicy, parameters: Tensor) -> dict[str, Tensor]:
        """Begin with the model before the run, which is also the reference."""
        return {PARAMETERS: parameters, REFERENCE: parameters}

    def apply(
        self, network: LanguagePolicy, values: Values, met: Answers, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `primorl.online.learning.Update.apply`."""
        step = cohort.noisy_mean(self._contributions(network, values, met), self.clipping_norm)
        return {**values, PARAMETERS: values[PARAMETERS] + self.learning_rate * step}

    def _contributions(
        self, policy: LanguagePolicy, values: Values, met: Answers
    ) -> Iterator[Tensor]:
        """One row ``[u, d]`` for each prompt, piece after piece. Sensitive."""
        now = values[PARAMETERS]
        yield now.new_zeros(0, len(now))  # a cohort of nobody releases noise as well
        for start in range(0, len(met.rewards), self.piece):
            part = met.of(slice(start, start + self.piece))
            rewards = part.rewards
            if self.kl_weight:
                rewards = rewards - self.kl_weight * log_ratios(policy, values[REFERENCE], part)
            gradients = prompt_gradients(policy, part, beside_the_others(rewards))
            change = torch.zeros_like(now) if self.local_steps else gradients(now)
            for _ in range(self.local_steps):
                change = within(
                    change + self.local_rate * gradients(now + change), self.clipping_norm
                )
            yield change


def beside_the_others(rewards: Tensor) -> Tensor:
    """Subtract from each answer's reward the mean of the other answers to the same prompt, ``[U,
    R]``, R ≥ 2.
    """
    answers = rewards.shape[1]
    return (rewards - rewards.mean(1, keepdim=True)) * (answers / (answers - 1))


def prompt_gradients(
    policy: LanguagePolicy, part: Answers, advantages: Tensor
) -> Callable[[Tensor], Tensor]:
    """Make the function from parameters, ``[d]`` or ``[u, d]``, to all prompts' gradients, ``[u,
    d]``. Sensitive.
    """
    length = part.answered.shape[-1]

    def objective(
        parameters: Tensor, tokens: Tensor, present: Tensor, before: Tensor, own: Tensor, a: Tensor
    ) -> Tensor:
        logs = policy.log_probabilities(parameters, tokens, present, length)
        return (torch.where(own, (logs - before).exp(), 0.0).sum(-1) * a).mean()

    rows = part.tokens, part.present, part.log_probabilities, part.answered, advantages

    def gradients(parameters: Tensor) -> Tensor:
        where = None if parameters.dim() == 1 else 0
        return vmap(grad(objective), in_dims=(where, 0, 0, 0, 0, 0))(parameters, *rows)

    return gradients


@torch.no_grad()
def log_ratios(policy: LanguagePolicy, reference: Tensor, part: Answers) -> Tensor:
    """Compute log(π_0(y | x) / π_ref(y | x)) of every answer, ``[u, R]``."""
    rows = part.tokens.flatten(0, 1), part.present.flatten(0, 1)
    logs = policy.log_probabilities(reference, *rows, part.answered.shape[-1])
    return torch.where(
        part.answered, part.log_probabilities - logs.view_as(part.log_probabilities), 0.0
    ).sum(-1)


class Transformer(nn.Module):
    """A causal language model of ``transformers``, with eager attention, as `LanguagePolicy` takes
    it.

    The mask is made here, in four dimensions: what ``transformers`` makes of a two-dimensional one
    looks at its values, which no batch over prompts (`torch.func.vmap`) allows.
    """

    def __init__(self, model: Any):
        super().__init__()
        # no dropout: an answer's probability is a number, not a random variable
        self.model = model.eval()

    def forward(self, tokens: Tensor, present: Tensor, kept: int) -> Tensor:
        """Compute the logits at the last ``kept`` positions."""
        own = torch.eye(tokens.shape[-1], dtype=torch.bool, device=tokens.device)
        seen = (torch.ones_like(own).tril() & present[:, None, None, :]) | own
        mask = torch.zeros_like(seen, dtype=torch.float32).masked_fill(
            ~seen, torch.finfo(torch.float32).min
        )
        positions = (present.long().cumsum(-1) - 1).clamp(min=0)
        return self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=kept,
        ).logits


@dataclass(frozen=True)
class PromptedUsers:
    """User i asks prompt i, gets R answers at temperature 1, and a reward scores each.

    An empty prompt is nobody.

    Attributes:
        prompts: one text a user.
        tokenizer: of the model; from ``transformers``.
        reward: of n texts, prompt and answer together, ``[n]``; a score must not depend on the
            other texts.
        lengths: P, G and R; a longer prompt loses its end.
        seed: of the answers, together with the numbers of the users.
    """

    prompts: Sequence[str]
    tokenizer: Any
    reward: Callable[[Sequence[str]], Tensor]
    lengths: tuple[int, int, int]
    seed: int

    @torch.no_grad()
    def meet(self, numbers: Sequence[int], network: LanguagePolicy, parameters: Tensor) -> Answers:
        """Draw and score the answers of some users; see `primorl.online.learning.Users.meet`."""
        length, answer, count = self.lengths
        generator = torch.Generator().manual_seed(
            int(np.random.SeedSequence([self.seed, *numbers]).generate_state(1, np.uint64)[0] >> 1)
        )
        texts = [self.prompts[number] for number in numbers]
        encoded = self.tokenizer(
            texts,
            truncation=True,
            max_length=length,
            padding="max_length",
            padding_side="left",
            return_tensors="pt",
        )
        tokens = encoded["input_ids"].long().repeat_interleave(count, 0).to(parameters.device)
        present = encoded["attention_mask"].bool().repeat_interleave(count, 0).to(parameters.device)
        going, end, logs = present.any(1), self.tokenizer.eos_token_id, []
        for _ in range(answer):
            scores = functional_call(
                network.module, network.tensors(parameters), (tokens, present, 1)
            )
            scores = torch.log_softmax(scores[:, -1].float(), -1)
            new = torch.where(going, draw_softmax(scores, generator), end).unsqueeze(1)
            logs.append(scores.gather(1, new))
            tokens, present = (
                torch.cat([tokens, new], 1),
                torch.cat([present, going.unsqueeze(1)], 1),
            )
            going = going & (new[:, 0] != end)
        kept = [row[there].tolist() for row, there in zip(tokens.cpu(), present.cpu(), strict=True)]
        rewards = self.reward(self.tokenizer.batch_decode(kept, skip_special_tokens=True))
        scored = torch.where(present.any(1), rewards.to(parameters), 0.0)
        shape, found = (len(numbers), count), (tokens, present, scored.unsqueeze(1))
        tokens, present, scored = (each.view(*shape, -1) for each in found)
        return Answers(tokens, present, scored[..., 0], torch.cat(logs, 1).view(*shape, -1))


def tiny_task(
    count: int, seed: int, steps: int = 300
) -> tuple[Any, Any, list[str], Callable[[Sequence[str]], Tensor]]:
    """Make a model of GPT-2's architecture that learned to write invented reviews, its tokenizer,
    prompts and reward.

    The reward is the share of good words among the good and bad ones.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    good, bad = (
        ["good", "great", "lovely", "moving", "fun"],
        ["bad", "dull", "awful", "slow", "silly"],
    )
    kinds = (
        ["this", "the", "that", "their"],
        ["film", "story", "cast", "music", "ending"],
        ["was", "is"],
        good + bad,
    )
    vocabulary = {
        word: number
        for number, word in enumerate([".", "and", *(word for kind in kinds for word in kind)])
    }
    words = Tokenizer(models.WordLevel({**vocabulary, "[unk]": len(vocabulary)}, unk_token="[unk]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token=".", pad_token=".", unk_token="[unk]"
    )
    generator = np.random.default_rng(seed)

    def clause() -> str:
        return " ".join(str(generator.choice(kind)) for kind in kinds)

    public, prompts = ([f"{clause()} and {clause()} ." for _ in range(n)] for n in (2048, count))
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": len(tokenizer),
        "n_positions": 32,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
    }
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    model = GPT2LMHeadModel(config)
    encoded = tokenizer(public, return_tensors="pt")["input_ids"]
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(steps):
        batch = encoded[torch.arange(64 * step, 64 * (step + 1)) % len(encoded)]
        optimiser.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()

    def sentiment(texts: Sequence[str]) -> Tensor:
        counts = torch.tensor(
            [[sum(word in kind for word in text.split()) for kind in (good, bad)] for text in texts]
        )
        return counts[:, 0] / counts.sum(1).clamp(min=1)

    return model, tokenizer, prompts, sentiment


def with_adapter(model: Any, rank: int) -> Any:
    """Freeze a model and add a trained low-rank adapter to its output layer.

    Its first values are public.
    """
    from peft import LoraConfig, TaskType, get_peft_model

    torch.manual_seed(0)
    shape = {"r": rank, "lora_alpha": 2 * rank, "target_modules": ("lm_head",)}
    return get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, **shape))


def measured(key: Row) -> Row:
    """Teach the tiny model in one mode: mean reward of held-out prompts before and after, and the
    divergence.

    Modes: learning; noise alone, with gradients of zero; clip alone, without noise; neither. The
    divergence is the mean log-ratio of held-out answers to the model before, in nats an answer.
    """
    m, cohorts, held_out, epsilon, seed = 512, 20, 512, float(key["epsilon"]), key["seed"]
    model, tokenizer, prompts, reward = tiny_task((cohorts + 1) * m, seed)
    model = model if key["part"] == "all" else with_adapter(model, 4)
    policy = LanguagePolicy(Transformer(model))
    users = PromptedUsers(prompts, tokenizer, reward, (3, 8, 2), seed)
    without_noise = key["mode"] in ("neither", "clip alone")
    z = 0.0 if without_noise else solve_noise_multiplier(epsilon, DELTA, 1.0, 1)
    mechanism = online_mechanism(
        users=cohorts * m, cohort=m, noise_multiplier=z, releases=1, delta=DELTA
    )
    norm = 1e3 if key["mode"] == "neither" else 1.0  # beyond all gradients
    update = PromptUpdate(PARTS[key["part"]], clipping_norm=norm, kl_weight=0.01, piece=256)
    values: Values = update.begin(policy, policy.initial())
    reference, judges = values[REFERENCE], range(cohorts * m, cohorts * m + held_out)
    before = users.meet(judges, policy, reference).rewards
    for number in range(cohorts):
        met = users.meet(range(number * m, (number + 1) * m), policy, values[PARAMETERS])
        cohort = NoiseAlone(mechanism, 1) if key["mode"] == "noise alone" else Cohort(mechanism, 1)
        values = update.apply(policy, values, met, cohort, number)
    judged = users.meet(judges, policy, values[PARAMETERS])
    return {
        "parameters": policy.parameters,
        "noise_multiplier": z,
        "before": round(float(before.mean()), 3),
        "after": round(float(judged.rewards.mean()), 3),
        "divergence": round(float(log_ratios(policy, reference, judged).mean()), 2),
    }


def main() -> None:
    """Make the rows of the tiny model that are missing, and write the table of docs/rlhf.md."""
    modes = (
        ("neither", math.inf),
        ("clip alone", 1.0),
        *product(("learning", "noise alone"), (8.0, 1.0)),
    )
    cases = [(part, *case) for part in PARTS for case in modes]
    keys = [
        {"part": part, "mode": mode, "epsilon": str(epsilon), "seed": seed}
        for part, mode, epsilon in cases
        for seed in range(3)
    ]
    put(PAGE, "language", written(completed("language", keys, measured)))


def written(rows: Sequence[Row]) -> str:
    """Write the mean rewards of held-out prompts, one figure a seed."""
    lines = [f"| mode | ε | {' | '.join(PARTS)} |", "|---" * (2 + len(PARTS)) + "|"]
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        if row["mode"] == "neither":
            of_part = cells.setdefault(("untrained", "–"), {}).setdefault(row["part"], [])
            of_part.append(f"{row['before']:.3f}")
        private = row["mode"] in ("learning", "noise alone")
        place = (
            NAMES.get(row["mode"], row["mode"]),
            f"{float(row['epsilon']):g}" if private else "∞",
        )
        cells.setdefault(place, {}).setdefault(row["part"], []).append(f"{row['after']:.3f}")
    for place, found in cells.items():
        lines.append(f"| {' | '.join(place)} | {' | '.join(', '.join(found[p]) for p in PARTS)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
