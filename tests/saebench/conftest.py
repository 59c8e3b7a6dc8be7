"""Fixtures: the tiny language model (built once) and a data set for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from sae_lens import SAE
from tiny_lm import CONTEXT, Probe, make_model, make_sae, make_texts, make_tokenizer
from transformer_lens import HookedTransformer
from transformers import LlamaConfig, LlamaForCausalLM

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


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Hugging Face model with two layers."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def sae_folder(tmp_path: Path) -> Path:
    sae = make_sae("cosine_jumprelu", hook="blocks.0.hook_resid_post")
    sae.save_model(tmp_path / "my-sae")
    return tmp_path / "my-sae"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    texts = make_texts("t", n_train=60)
    rows = [(text, label) for label, rows in texts.train.items() for text in rows]
    path = tmp_path / "colours.csv"
    pd.DataFrame(rows, columns=["sentence", "colour"]).to_csv(path, index=False)
    return path
