"""A small language model and text that need no network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")

import random

import pytest
import torch
from datasets import Dataset
from sae_lens import HookedSAETransformer
from tiny_words import WORDS, make_tokenizer
from transformer_lens import HookedTransformerConfig


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> HookedSAETransformer:
    """Two layers, d_model 16, random weights, one token a word."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    cfg = HookedTransformerConfig(
        n_layers=2,
        d_model=16,
        n_ctx=64,
        d_head=8,
        n_heads=2,
        d_mlp=32,
        act_fn="gelu",
        normalization_type="RMS",
        d_vocab=len(tokenizer),
        seed=0,
        device="cpu",
    )
    return HookedSAETransformer(cfg, tokenizer)


@pytest.fixture(scope="session")
def tiny_text() -> Dataset:
    rng = random.Random(0)
    rows = [" ".join(rng.choices(WORDS, k=80)) for _ in range(200)]
    return Dataset.from_dict({"text": rows})
