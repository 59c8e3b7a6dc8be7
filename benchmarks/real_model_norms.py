"""Which latents answer to the length of a token: the third stage of `real_model.py`.

    python benchmarks/real_model_norms.py --cache cache \\
        --out benchmarks/results/real_model.json

reads the SAEs that `real_model.py` trained, and adds `norms` parts: the share of norm
detectors (latents with more than half of their firings in the quartile of the longest
ordinary tokens), of all latents, and of those without a counterpart in the
`cosine_filtered` SAE of the same seed. Then the report is written anew.
"""

import json
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from common import BATCH, environment, read_parts, save_json
from real_model import write_report
from sae_lens import SAE

from sae_lens_cosine.analysis import match_features, norm_detectors, norm_features
from sae_lens_cosine.evaluation import norm_quartile_edges, sink_norm_limit

REFERENCE = "cosine_filtered"


def measure(parts: Path, cache: Path, layer: int, seed: int, arm: str) -> None:
    """Norm detectors of one trained arm, on the held-out tokens."""
    part = parts / "norms" / f"{layer}-{seed}-{arm}.json"
    reference = parts / "saes" / f"{layer}-{seed}-{REFERENCE}"
    if part.exists() or not reference.exists():
        return
    start = time.perf_counter()
    held_out = torch.from_numpy(np.load(cache / f"eval_layer{layer}.npy"))
    limit = sink_norm_limit(held_out)
    sae = SAE.load_from_disk(parts / "saes" / f"{layer}-{seed}-{arm}")
    features = norm_features(
        sae,
        held_out.split(BATCH),
        sink_norm_limit=limit,
        quartile_edges=norm_quartile_edges(held_out, limit),
    )
    found = {"all": norm_detectors(features).model_dump()}
    if arm != REFERENCE:
        matching = match_features(
            sae,
            SAE.load_from_disk(reference),
            held_out.split(BATCH),
            sink_norm_limit=limit,
        )
        unmatched = norm_detectors(features, matching.unmatched_a)
        found["unmatched"] = unmatched.model_dump()
    save_json(
        part,
        {
            "arm": arm,
            "layer": layer,
            "seed": seed,
            **found,
            "seconds": round(time.perf_counter() - start, 1),
            **environment(),
        },
    )


def main(
    cache: Annotated[Path, typer.Option(help="Folder of cache_activations.py.")],
    out: Annotated[Path, typer.Option(help="JSON of real_model.py.")],
) -> None:
    parts = out.with_name(out.name + ".parts")
    if not (parts / "settings.json").exists():
        raise typer.BadParameter(f"There is nothing in {parts}.", param_hint="--out")
    noted = json.loads((parts / "settings.json").read_text())["activations"]
    if json.loads((cache / "meta.json").read_text()) != noted:
        raise typer.BadParameter(
            f"The SAEs were not trained on {cache}.", param_hint="--cache"
        )
    for run in read_parts(parts / "trained"):
        measure(parts, cache, run["layer"], run["seed"], run["arm"])
    write_report(out, parts)


if __name__ == "__main__":
    typer.run(main)
