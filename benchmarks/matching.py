"""Seconds and memory of matching features and of decoder geometry, by d_sae.

    python benchmarks/matching.py --out benchmarks/results/matching.json

Decoder rows lie in groups of 64 with cosines of about 0.8 between any two, across the
two SAEs as well, so that every latent has as many candidates as `match_features` looks
at: the most memory that it can need. Tokens are Gaussian; a latent fires on 2%.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from common import environment, save_json
from probing import measure, random_sae
from sae_lens import SAE
from speed_clock import D_IN

from sae_lens_cosine.analysis import decoder_geometry, match_features
from sae_lens_cosine.score import unit

GROUP = 64
SPREAD = 0.5  # of a row about its group's centre: cosines of 1 / (1 + 0.5^2)


def grouped_sae(centres: torch.Tensor, seed: int) -> SAE[Any]:
    """A JumpReLU SAE with ``GROUP`` latents about each of ``centres`` ``[g, d_in]``."""
    d_sae, d_in = len(centres) * GROUP, centres.shape[1]
    sae = random_sae("jumprelu", "", d_sae)
    noise = torch.randn(
        d_sae, d_in, generator=torch.Generator().manual_seed(seed)
    ).mul_(SPREAD / d_in**0.5)
    rows = unit(noise.add_(centres.repeat_interleave(GROUP, 0)), dim=1)
    with torch.no_grad():
        sae.W_dec.copy_(rows)
        sae.W_enc.copy_(rows.T)
    return sae


def matched(d_sae: int, tokens: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    centres = unit(torch.randn(d_sae // GROUP, D_IN, generator=generator), dim=1)
    a, b = (grouped_sae(centres, seed) for seed in (1, 2))
    batches = torch.randn(tokens, D_IN, generator=generator).split(512)
    geometry_cost, geometry = measure(lambda: decoder_geometry(a))
    cost, matching = measure(lambda: match_features(a, b, batches))
    return {
        "d_sae": d_sae,
        "tokens": tokens,
        "weights_gib": round(4 * a.W_dec.nbytes / 2**30, 2),
        "matching": {
            **cost,
            "n_cut_short": matching.n_cut_short,
            "pairs": len(matching.latents_a),
        },
        "geometry": {**geometry_cost, "n_near_duplicates": geometry.n_near_duplicates},
    }


def main(
    out: Annotated[Path, typer.Option(help="JSON to write.")],
    sizes: Annotated[str, typer.Option(help="d_sae, comma-separated.")] = (
        "4608,16384,65536"
    ),
    tokens: int = 4096,
) -> None:
    if out.exists():
        raise typer.BadParameter(f"{out} exists: name a new file.", param_hint="--out")
    found: dict[str, Any] = {"threads": torch.get_num_threads(), **environment()}
    found["sizes"] = [matched(int(d_sae), tokens) for d_sae in sizes.split(",")]
    save_json(out, found, indent=1)
    print(out.read_text())


if __name__ == "__main__":
    typer.run(main)
