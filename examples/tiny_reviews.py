"""Invented film reviews, and a language model of a few thousand parameters that learned to write them: all offline."""

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

GOOD = ("good", "great", "lovely", "moving", "fun")
BAD = ("bad", "dull", "awful", "slow", "silly")
SUBJECTS = ("film", "story", "cast", "music", "ending", "camera")
OPENINGS = ("this", "the", "that", "their")
END = "."


def reviews(count: int, seed: int) -> list[str]:
    """Reviews such as ``the story was dull and the cast was great .``; good and bad words are equally likely."""
    generator = np.random.default_rng(seed)
    clauses = [
        " ".join(str(generator.choice(words)) for words in (OPENINGS, SUBJECTS, ("was", "is"), GOOD + BAD))
        for _ in range(2 * count)
    ]
    return [f"{first} and {second} {END}" for first, second in zip(clauses[:count], clauses[count:], strict=True)]


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word."""
    words = [END, "and", "was", "is", *OPENINGS, *SUBJECTS, *GOOD, *BAD, "[unk]"]
    words_alone = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[unk]"))
    words_alone.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words_alone, eos_token=END, pad_token=END, unk_token="[unk]")


def untrained(seed: int, width: int = 32) -> GPT2LMHeadModel:
    """The architecture of GPT-2, two layers deep, with random weights."""
    words = len(tokenizer())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=words,
                n_positions=32,
                n_embd=width,
                n_layer=2,
                n_head=2,
                bos_token_id=0,
                eos_token_id=0,
                pad_token_id=0,
                attn_implementation="eager",
            )
        ).eval()


def trained(seed: int, steps: int = 300) -> GPT2LMHeadModel:
    """A model that learned from public reviews, by cross-entropy, to write them."""
    model = untrained(seed)
    encoded = tokenizer()(reviews(2048, seed), return_tensors="pt")["input_ids"]
    present = torch.ones_like(encoded[:64])
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = encoded[torch.arange(64 * step, 64 * (step + 1)) % len(encoded)]
        loss = model(input_ids=batch, attention_mask=present, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def sentiment(texts: Sequence[str]) -> Tensor:
    """Share of good words among the good and bad ones in each text, ``[n]``; 0 where there is neither."""
    words = [text.split() for text in texts]
    good, bad = (torch.tensor([sum(word in kind for word in text) for text in words]) for kind in (GOOD, BAD))
    return good / (good + bad).clamp(min=1)
