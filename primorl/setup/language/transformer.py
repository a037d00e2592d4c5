"""A model of the package ``transformers`` as the module that `LanguagePolicy` takes, and drawing answers from it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from primorl.online.language.policy import LanguagePolicy
from primorl.online.network import drawn


class Transformer(nn.Module):
    """See `LanguagePolicy.module`.

    The mask is made here, in four dimensions: what ``transformers`` makes of a two-dimensional one looks at its
    values, which no batch over prompts (`torch.func.vmap`) allows.

    Args:
        model: a ``transformers`` causal language model with eager attention, or an adapter of ``peft`` around one.
    """

    def __init__(self, model: Any):
        super().__init__()
        self.model = model.eval()  # no dropout: an answer's probability is a number, not a random variable

    def forward(self, tokens: Tensor, present: Tensor, kept: int, cache: Any = None) -> Tensor:
        """Logits at the last ``kept`` positions.

        Args:
            tokens: int64 ``[B, n]``; all, or only those that the cache does not hold yet.
            present: of all tokens, bool ``[B, L]``.
            kept: positions.
            cache: keys and values of the tokens before, which it adds these to.
        """
        new, whole = tokens.shape[-1], present.shape[-1]
        own = torch.eye(whole, dtype=torch.bool, device=tokens.device)
        before = torch.ones_like(own).tril()
        seen = ((before & present[:, None, None, :]) | own)[:, :, -new:]
        hidden = torch.finfo(torch.float32).min
        mask = torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, hidden)
        positions = (present.long().cumsum(-1) - 1).clamp(min=0)[:, -new:]
        output = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=kept,
        )
        logits: Tensor = output.logits
        return logits


@torch.no_grad()
def draw_answers(
    policy: LanguagePolicy,
    parameters: Tensor,
    prompts: Tensor,
    present: Tensor,
    length: int,
    end: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw an answer to each prompt, at temperature 1.

    Args:
        policy: whose module is a `Transformer`.
        parameters: ``[d]``.
        prompts: padded on the left, int64 ``[B, P]``.
        present: tokens that are not padding, bool ``[B, P]``. A prompt without any gets no answer.
        length: G.
        end: token after which an answer is over; padding too.
        generator: on the CPU.

    Returns:
        Tokens ``[B, P + G]``, which of them are present, and log-probabilities of the answers' tokens ``[B, G]``.
    """
    from transformers import DynamicCache

    tensors, cache = policy.tensors(parameters), DynamicCache()
    tokens, new = prompts, prompts
    going = present.any(1)
    log_probabilities = []
    for _ in range(length):
        logits = functional_call(policy.module, tensors, (new, present, 1), {"cache": cache})
        logs = torch.log_softmax(logits[:, -1].float(), -1)
        new = torch.where(going, drawn(logs, generator), end).unsqueeze(1)
        log_probabilities.append(logs.gather(1, new))
        tokens, present = torch.cat([tokens, new], 1), torch.cat([present, going.unsqueeze(1)], 1)
        going = going & (new[:, 0] != end)
    return tokens, present, torch.cat(log_probabilities, 1)
