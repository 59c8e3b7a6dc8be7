"""Refusing SAEs that are not functions from one token's activation to itself.

Every evaluation of this package hands an SAE tokens in batches of its own choosing. Two
kinds of SAELens's architectures would give numbers that mean nothing there: those that
read the tokens before (``TemporalSAE``), and, where reconstructions are compared with
what was read, those that write at another hook (transcoders).
"""

from typing import Any

import torch
from sae_lens import SAE
from sae_lens.saes.transcoder import Transcoder

from sae_lens_cosine.evaluation import flat_rows


@torch.no_grad()
def check_token_wise(name: str, sae: SAE[Any]) -> None:
    """Refuse an SAE whose latents of a token depend on other tokens.

    Tried on the SAE itself, so that architectures of other packages are found too: the
    same row is encoded after two different ones, and must give the same bits.

    Args:
        name: how messages call the SAE.
        sae: an inference SAE.

    Raises:
        TypeError: if it does, or cannot encode ``[batch, tokens, d_in]``.
    """
    generator = torch.Generator().manual_seed(0)
    token, before, other = torch.randn(3, sae.cfg.d_in, generator=generator)

    def latents_after(first: torch.Tensor) -> torch.Tensor:
        rows = torch.stack([first, token])[None].to(sae.device, sae.dtype)
        with flat_rows(sae):
            return sae.encode(rows).to_dense()[0, 1]

    try:
        # The second one as long as an attention sink: it wins every competition.
        pair = latents_after(before), latents_after(100 * other)
    except Exception as error:
        raise TypeError(
            f"{name!r} is a {type(sae).__name__}, which does not encode activations "
            f"[batch, tokens, d_in={sae.cfg.d_in}] alone ({error}): SAEs that need "
            "other inputs cannot be evaluated here."
        ) from error
    if not torch.allclose(*pair, rtol=0, atol=0, equal_nan=True):
        raise TypeError(
            f"{name!r} is a {type(sae).__name__}, whose latents of a token depend on "
            "the other tokens. Here tokens are encoded in batches, without the rest of "
            "their text, so the numbers would be wrong. For sparse probing call "
            "SAEBench's own sae_bench.evals.sparse_probing.main.run_eval, which "
            "encodes whole prompts."
        )


def check_reconstructs_input(name: str, sae: SAE[Any]) -> None:
    """Refuse an SAE that does not write where it reads.

    Args:
        name: how messages call the SAE.
        sae: an inference SAE.

    Raises:
        TypeError: for a transcoder, or an SAE with another ``hook_name_out``.
    """
    reads, writes = sae.cfg.metadata.hook_name, sae.cfg.metadata.hook_name_out
    if isinstance(sae, Transcoder) or writes not in (None, reads):
        target = repr(writes) if writes else "to another hook"
        raise TypeError(
            f"{name!r} is a {type(sae).__name__}, which reads {reads!r} and writes "
            f"{target}: its output is not meant to be its input, "
            "so reconstruction and loss recovered say nothing. Its latents can be "
            "probed: run_sparse_probing, or sae-lens-cosine probe."
        )
