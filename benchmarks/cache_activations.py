"""Run the demo model once over its text and keep the residual stream of some layers.

    python benchmarks/cache_activations.py --out cache --layers 5,10,15,20,25,29

writes `train_layer<L>.npy` and `eval_layer<L>.npy` ([tokens, 576], float32), the
evaluation tokens ([contexts, context], int64) and `meta.json`. Every benchmark that
trains on cached activations reads such a folder, so the language model runs once
however many SAEs are trained.
"""

import json
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from common import hook_name
from numpy.lib.format import open_memmap
from sae_lens import HookedSAETransformer

from sae_lens_cosine.demo.contexts import activations_at, pack_contexts
from sae_lens_cosine.demo.model import DEMO_MODEL_NAME, load_demo_model
from sae_lens_cosine.demo.text import evaluation_rows, training_rows


def cache(
    model: HookedSAETransformer, tokens: torch.Tensor, files: dict[int, Path]
) -> None:
    """Write the residual stream after each layer, one row a token."""
    shape = (tokens.numel(), model.cfg.d_model)
    arrays = {
        hook_name(layer): open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
        for layer, path in files.items()
    }
    done = 0
    desc = next(iter(files.values())).stem
    for batch in activations_at(model, tokens, arrays, max(files) + 1, desc):
        for name, rows in batch.items():
            arrays[name][done : done + len(rows)] = rows.numpy()
        done += len(rows)
    for array in arrays.values():
        array.flush()


def main(
    out: Annotated[Path, typer.Option(help="New folder for the activations.")],
    layers: Annotated[str, typer.Option(help="Comma-separated.")] = "15",
    train_tokens: int = 512_000,
    eval_tokens: int = 32_768,
    context_size: int = 128,
    seed: int = 0,
) -> None:
    if out.exists():
        raise typer.BadParameter(
            f"{out} exists: name a new folder.", param_hint="--out"
        )
    wanted = [int(layer) for layer in layers.split(",")]
    model = load_demo_model()
    unfinished = out.with_name(out.name + ".unfinished")
    unfinished.mkdir(parents=True)
    start = time.perf_counter()
    for part, rows, n_tokens in (
        ("eval", evaluation_rows(eval_tokens, seed), eval_tokens),
        ("train", training_rows(train_tokens, seed), train_tokens),
    ):
        n_contexts = n_tokens // context_size
        tokens = pack_contexts(model, rows["text"], context_size, n_contexts)
        np.save(unfinished / f"{part}_tokens.npy", tokens.numpy())
        files = {layer: unfinished / f"{part}_layer{layer}.npy" for layer in wanted}
        cache(model, tokens, files)
    meta = {
        "model": DEMO_MODEL_NAME,
        "layers": wanted,
        "context_size": context_size,
        "seed": seed,
        "train_tokens": train_tokens,
        "eval_tokens": eval_tokens,
        "seconds": round(time.perf_counter() - start),
    }
    (unfinished / "meta.json").write_text(json.dumps(meta, indent=1))
    unfinished.rename(out)


if __name__ == "__main__":
    typer.run(main)
