"""Inference of `speed.py`: against the bare arithmetic, and against SAELens."""

from collections.abc import Callable
from typing import Any

import torch
from sae_lens import JumpReLUSAE, JumpReLUSAEConfig
from speed_clock import D_IN, alternate, tokens

from sae_lens_cosine import CosineJumpReLUSAE, CosineJumpReLUSAEConfig
from sae_lens_cosine.score import unit


@torch.no_grad()
def measure_inference(
    d_sae: int, k: int, batch: int, repetitions: int, device: str
) -> dict[str, Any]:
    """`encode` against the bare arithmetic, `forward` against SAELens's JumpReLU."""
    x = tokens(batch, device)
    theirs = JumpReLUSAE(JumpReLUSAEConfig(D_IN, d_sae, device=device))
    ours = CosineJumpReLUSAE(CosineJumpReLUSAEConfig(D_IN, d_sae, device=device))
    for sae in (theirs, ours):
        torch.manual_seed(0)
        sae.W_dec.copy_(unit(torch.randn(d_sae, D_IN), dim=1))
        sae.W_enc.copy_(sae.W_dec.T)
        highest = sae.encode(x).flatten().float().topk(k * batch).values
        sae.threshold.fill_(highest.min().item())
    W_enc, threshold = theirs.W_enc, theirs.threshold

    def arithmetic() -> torch.Tensor:
        scores = x @ W_enc
        return scores * (scores > threshold)

    runs: dict[str, Callable[[], Any]] = {
        "x @ W_enc": lambda: x @ W_enc,
        "x @ W_enc, then a threshold": arithmetic,
        "SAELens jumprelu, encode": lambda: theirs.encode(x),
        "cosine_jumprelu, encode": lambda: ours.encode(x),
        "SAELens jumprelu, forward": lambda: theirs(x),
        "cosine_jumprelu, forward": lambda: ours(x),
    }
    seconds = alternate(runs, repetitions, device)

    def ratio(name: str, to: str) -> float:
        return seconds[name]["median"] / seconds[to]["median"]

    return {
        "d_in": D_IN,
        "d_sae": d_sae,
        "k": k,
        "batch": batch,
        "seconds": seconds,
        "ratio": {
            "encode to the arithmetic": ratio(
                "cosine_jumprelu, encode", "x @ W_enc, then a threshold"
            ),
            "encode to SAELens": ratio(
                "cosine_jumprelu, encode", "SAELens jumprelu, encode"
            ),
            "forward to SAELens": ratio(
                "cosine_jumprelu, forward", "SAELens jumprelu, forward"
            ),
        },
    }
