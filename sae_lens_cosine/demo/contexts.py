"""Text as contexts of tokens, and the activations of a model on them."""

from collections.abc import Iterable
from typing import Any

import torch
from sae_lens import HookedSAETransformer
from sae_lens.tokenization_and_batching import concat_and_batch_sequences
from tqdm.auto import tqdm

CONTEXTS_A_PASS = 16


def pack_contexts(
    model: HookedSAETransformer,
    texts: Iterable[str],
    context_size: int,
    limit: int,
    prepend_bos: bool = False,
) -> torch.Tensor:
    """Texts as ``[limit, context_size]`` tokens, packed as SAELens packs them.

    Texts follow each other with the tokenizer's BOS token between them, as in
    SAELens's activation store, which evaluation rows do not go through; models without
    such a token get none. With ``prepend_bos`` it also starts every context.

    Raises:
        ValueError: if the texts fill fewer than ``limit`` contexts.
    """
    assert model.tokenizer is not None
    bos: Any = model.tokenizer.bos_token_id
    batches = concat_and_batch_sequences(
        tokens_iterator=(
            model.to_tokens(text, prepend_bos=False, truncate=False)[0]
            for text in texts
        ),
        context_size=context_size,
        begin_batch_token_id=bos if prepend_bos else None,
        sequence_separator_token_id=bos,
    )
    packed = [context for context, _ in zip(batches, range(limit), strict=False)]
    if len(packed) < limit:
        raise ValueError(
            f"The texts fill {len(packed)} contexts of {context_size} tokens, and not "
            f"{limit}: give more text, or ask for fewer tokens."
        )
    return torch.stack(packed)


@torch.no_grad()
def activations_at(
    model: HookedSAETransformer,
    tokens: torch.Tensor,
    hook_names: Iterable[str],
    stop_at_layer: int | None,
    desc: str,
) -> Iterable[dict[str, torch.Tensor]]:
    """Activations ``[tokens, d_in]`` by hook, in batches of a few contexts.

    Heads are flattened into one dimension.

    Args:
        model: runs once over each batch, up to ``stop_at_layer``.
        tokens: ``[contexts, context_size]``.
        hook_names: what to keep.
        stop_at_layer: first layer not to run; None runs all.
        desc: shown beside the progress bar.
    """
    names = list(hook_names)
    for batch in tqdm(tokens.split(CONTEXTS_A_PASS), desc=desc):
        _, cache = model.run_with_cache(
            batch, names_filter=names, stop_at_layer=stop_at_layer, return_type=None
        )
        yield {name: cache[name].flatten(0, 1).flatten(1) for name in names}
