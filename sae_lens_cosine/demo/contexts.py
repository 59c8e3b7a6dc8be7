"""Text as contexts of tokens, and the activations of a model on them."""

from collections.abc import Iterable

import torch
from sae_lens import HookedSAETransformer
from sae_lens.tokenization_and_batching import concat_and_batch_sequences
from tqdm.auto import tqdm

CONTEXTS_A_PASS = 16


def pack_contexts(
    model: HookedSAETransformer, texts: Iterable[str], context_size: int, limit: int
) -> torch.Tensor:
    """Texts as ``[limit, context_size]`` tokens, packed as SAELens packs them.

    Texts follow each other with the tokenizer's BOS token between them, as in
    SAELens's activation store, which evaluation rows do not go through.

    Raises:
        ValueError: if the texts fill fewer than ``limit`` contexts.
    """
    assert model.tokenizer is not None
    separator = model.tokenizer.bos_token_id
    assert isinstance(separator, int)
    batches = concat_and_batch_sequences(
        tokens_iterator=(model.to_tokens(text, prepend_bos=False)[0] for text in texts),
        context_size=context_size,
        sequence_separator_token_id=separator,
    )
    packed = [context for context, _ in zip(batches, range(limit), strict=False)]
    if len(packed) < limit:
        raise ValueError(f"The texts fill {len(packed)} contexts of {limit}.")
    return torch.stack(packed)


@torch.no_grad()
def activations_at(
    model: HookedSAETransformer,
    tokens: torch.Tensor,
    hook_names: Iterable[str],
    stop_at_layer: int,
    desc: str,
) -> Iterable[dict[str, torch.Tensor]]:
    """Activations ``[tokens, d_in]`` by hook, in batches of a few contexts.

    Args:
        model: runs once over each batch, up to ``stop_at_layer``.
        tokens: ``[contexts, context_size]``.
        hook_names: what to keep.
        stop_at_layer: first layer not to run.
        desc: shown beside the progress bar.
    """
    names = list(hook_names)
    for batch in tqdm(tokens.split(CONTEXTS_A_PASS), desc=desc):
        _, cache = model.run_with_cache(
            batch, names_filter=names, stop_at_layer=stop_at_layer, return_type=None
        )
        yield {name: cache[name].flatten(0, 1) for name in names}
