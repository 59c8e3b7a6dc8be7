"""Which tokens a probe's mean over a prompt leaves out, besides BOS, PAD and EOS.

SAEBench averages latents over all real tokens of a prompt. In models without a BOS
token, the first token is often an attention sink whose activation is a hundred times
longer than the others, and so are its latents: the mean is then that of one token.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from sae_lens_cosine.evaluation import sink_norm_limit
from sae_lens_cosine.saebench.activations import (
    PromptActivations,
    Rows,
    TokenizedTexts,
    poolable,
)
from sae_lens_cosine.validation import check_choice

SinkMasking = Literal["none", "norm", "first_token"]
SINK_MASKINGS: tuple[SinkMasking, ...] = get_args(SinkMasking)


@dataclass(frozen=True)
class MaskedPrompts:
    """A data set under one way of masking: the same for every SAE."""

    masking: SinkMasking
    keep: torch.Tensor
    """``[tokens]``: False where a token is left out of its prompt's mean."""
    rows: Rows
    """Prompts that have a token left."""
    norm_limit: float | None
    """Tokens with a larger norm are left out, if that is the criterion."""
    dropped: dict[str, int]
    """Split -> prompts that consist of masked tokens only."""

    @property
    def masked_share(self) -> float:
        """Share of the real tokens that is left out, 0 to 1."""
        return 1 - self.keep.double().mean().item()


def mask_sinks(
    texts: TokenizedTexts, acts: PromptActivations, masking: SinkMasking
) -> MaskedPrompts:
    """Decide from the model's activations alone which tokens are left out.

    Args:
        texts: the data set.
        acts: its activations.
        masking: ``"none"`` (SAEBench's protocol); ``"norm"``: tokens whose norm
            exceeds 10 times the median of the training prompts; ``"first_token"``:
            the first real token of each prompt.

    Raises:
        ValueError: for an unknown masking, or if nothing is left of a class.
    """
    check_choice("mask_sinks", masking, SINK_MASKINGS)
    keep = torch.ones(len(acts.norms), dtype=torch.bool)
    limit = None
    if masking == "norm":
        train = torch.cat(list(texts.rows["train"].values()))
        limit = sink_norm_limit(acts.norms[acts.tokens_of(train)][:, None])
        keep = acts.norms <= limit
    elif masking == "first_token":
        prompt = acts.prompt_of_token
        keep[1:] = prompt[1:] == prompt[:-1]
        keep[:1] = False
    has_tokens = torch.zeros(len(acts.real), dtype=torch.bool)
    has_tokens[acts.prompt_of_token[keep]] = True
    rows, dropped = poolable(texts.name, texts.rows, has_tokens)
    return MaskedPrompts(masking, keep, rows, limit, dropped)
