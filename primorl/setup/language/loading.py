"""Language models, prompts and sentiment rewards by name, and where a trained model is saved."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from primorl.online.language.policy import LanguagePolicy
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.setup.language.transformer import Transformer

_POSITIVE = "positive"


def load_policy(name: str, rank: int | None) -> tuple[LanguagePolicy, Any]:
    """A causal language model and its tokenizer.

    Args:
        name: on the Hugging Face hub, such as ``lvwerra/gpt2-imdb``, or a folder.
        rank: of the adapter (`with_adapter`); None: all parameters are trained.

    Raises:
        PipelineError: the model cannot be loaded.
    """
    with _explained("model", name):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="eager", dtype=torch.float32)
    if tokenizer.pad_token is None:  # GPT-2's has none; padding is told apart by the mask
        tokenizer.pad_token = tokenizer.eos_token
    return as_policy(model, rank), tokenizer


def as_policy(model: Any, rank: int | None) -> LanguagePolicy:
    """A ``transformers`` causal language model with eager attention as a policy.

    Args:
        model: its parameters are where training begins.
        rank: of a low-rank adapter by ``peft``, which is all that is trained then: W + 2BA on every linear layer but
            the last, B = 0 at first. None: all parameters.

    Raises:
        PipelineError: ``peft`` is missing.
    """
    if rank is None:
        return LanguagePolicy(Transformer(model))
    with _explained("adapter", f"rank {rank}"), warnings.catch_warnings(), torch.random.fork_rng():
        from peft import LoraConfig, TaskType, get_peft_model

        warnings.simplefilter("ignore")  # of GPT-2's transposed weights, which peft takes account of by itself
        torch.manual_seed(0)  # A's first values are public
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type=TaskType.CAUSAL_LM)
        adapted = get_peft_model(model, config)
    return LanguagePolicy(Transformer(adapted))


@dataclass(frozen=True)
class SentimentReward:
    """Log-odds that a classifier gives to the label “positive”.

    All texts are padded to one public length, so that a text's reward does not depend on the others.

    Attributes:
        classifier: a ``transformers`` model for sequence classification.
        tokenizer: of the classifier.
        length: in tokens; a longer text loses its end.
    """

    classifier: Any
    tokenizer: Any
    length: int

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Rewards of n texts, ``[n]``."""
        encoded = self.tokenizer(
            list(texts), truncation=True, max_length=self.length, padding="max_length", return_tensors="pt"
        )
        logits = self.classifier(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).logits
        return torch.logit(torch.softmax(logits, -1)[:, self._label], eps=1e-6)

    @property
    def _label(self) -> int:
        labels = self.classifier.config.id2label
        return next(int(number) for number, label in labels.items() if label.lower() == _POSITIVE)


def load_reward(name: str, length: int) -> SentimentReward:
    """A sentiment classifier as a reward.

    Args:
        name: on the Hugging Face hub, such as ``lvwerra/distilbert-imdb``, or a folder.
        length: of a text in the classifier's tokens.

    Raises:
        PipelineError: the classifier cannot be loaded, or none of its labels is "positive".
    """
    with _explained("reward", name):
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name)
        classifier = AutoModelForSequenceClassification.from_pretrained(name).eval()
    labels = [str(label) for label in classifier.config.id2label.values()]
    if _POSITIVE not in map(str.lower, labels):
        raise PipelineError(f"reward: {name!r} has the labels {', '.join(labels)}; one must be {_POSITIVE!r}")
    return SentimentReward(classifier, tokenizer, length)


def load_prompts(name: str, column: str = "text", split: str = "train") -> list[str]:
    """Texts of a data set, one a user.

    Args:
        name: on the Hugging Face hub, such as ``stanfordnlp/imdb``, or a folder of text, CSV, JSON or Parquet files.
        column: with the text.
        split: of the data set.

    Raises:
        PipelineError: the data set cannot be loaded, or has no such column.
    """
    with _explained("prompts", name):
        from datasets import load_dataset

        rows = load_dataset(name, split=split)
    if column not in rows.column_names:
        raise PipelineError(f"prompts: {name!r} has the columns {', '.join(rows.column_names)}; {column!r} is needed")
    return [str(text) for text in rows[column]]


def save(folder: Path, policy: LanguagePolicy, parameters: Tensor, statement: Statement) -> None:
    """Write the trained weights (safetensors) and ``privacy.json``.

    An adapter is saved as ``peft`` loads it: ``adapter_model.safetensors`` without the model that it adapts.
    """
    module = policy.module
    assert isinstance(module, Transformer)
    policy.load(parameters)
    folder.mkdir(parents=True, exist_ok=True)
    adapted = {"save_embedding_layers": False} if hasattr(module.model, "peft_config") else {}
    module.model.save_pretrained(folder, **adapted)
    statement.write(folder)


@contextmanager
def _explained(what: str, name: str) -> Iterator[None]:
    """Say in one line why something is not there."""
    try:
        yield
    except ImportError as missing:
        raise PipelineError(
            f"{what}: {name!r} needs the package {missing.name}; `pip install 'primorl[rlhf]'` installs it"
        ) from None
    except (OSError, ValueError, RuntimeError) as broken:  # what the hub's libraries raise, also when offline
        first = str(broken).strip().partition("\n")[0][:200] or type(broken).__name__
        raise PipelineError(
            f"{what}: {name!r} cannot be loaded ({first}); allowed is a name on the Hugging Face hub, which needs a "
            "network or an earlier download, or a folder"
        ) from None
