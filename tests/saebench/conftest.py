"""Fixtures: the tiny language model (built once) and a data set for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sae_lens import SAE
from tiny_lm import CONTEXT, Probe, make_model, make_texts
from transformer_lens import HookedTransformer

from sae_lens_cosine.labelled_texts import LabelledTexts
from sae_lens_cosine.saebench import run_sparse_probing


@pytest.fixture(scope="session")
def model() -> HookedTransformer:
    return make_model()


@pytest.fixture
def colours() -> LabelledTexts:
    return make_texts("demo/colours")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tensors this small only wait for each other's threads on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def probe(model: HookedTransformer, tmp_path: Path) -> Probe:
    """One SAE through the adapter, with small batches and no bars."""

    def run(sae: SAE[Any], *datasets: LabelledTexts, **kwargs: Any) -> Any:
        settings = {
            "artifacts_dir": tmp_path / "artifacts",
            "context_size": CONTEXT,
            "llm_batch_size": 7,
            "sae_batch_size": 5,
            "show_progress": False,
        }
        return run_sparse_probing(
            {"sae": sae}, model=model, datasets=datasets, **settings | kwargs
        )["sae"]

    return run
