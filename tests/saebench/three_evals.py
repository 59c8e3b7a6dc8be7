"""Each of the three evals on one small data set, called the same way."""

from pathlib import Path
from typing import Any

from tiny_lm import CONTEXT, make_texts
from transformer_lens import HookedTransformer

from sae_lens_cosine.saebench import run_sparse_probing
from sae_lens_cosine.saebench.core_eval import run_core
from sae_lens_cosine.saebench.sae_probes_eval import run_sae_probes

TEXTS = make_texts("demo/colours", n_train=60)


def probing(saes: Any, model: HookedTransformer, folder: Path) -> Any:
    return run_sparse_probing(
        saes,
        model=model,
        datasets=TEXTS,
        output=folder,
        context_size=CONTEXT,
        mask_sinks="first_token",
        show_progress=False,
    )


def core(saes: Any, model: HookedTransformer, folder: Path) -> Any:
    texts = [text for rows in TEXTS.train.values() for text in rows]
    return run_core(saes, model=model, texts=texts, output=folder, context_size=CONTEXT)


def last_token(saes: Any, model: HookedTransformer, folder: Path) -> Any:
    return run_sae_probes(saes, model=model, output=folder, datasets=["95_toxic_is"])
