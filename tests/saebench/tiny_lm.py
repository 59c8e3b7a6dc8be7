"""A tiny language model with a local tokenizer, and texts it can tell apart."""

import random
from collections.abc import Callable
from typing import Any

import torch
from sae_bench.evals.sparse_probing.eval_output import SparseProbingEvalOutput
from sae_lens import SAE, SAEConfig
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformers import PreTrainedTokenizerFast

from sae_lens_cosine.labelled_texts import LabelledTexts

MARKERS = ("red", "green", "blue")
FILLERS = ("a", "the", "of", "and", "to", "in", "it", "is")
CONTEXT = 12

Probe = Callable[..., SparseProbingEvalOutput]


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = ["<bos>", "<eos>", "<pad>", "<unk>", *MARKERS, *FILLERS]
    vocab = {word: i for i, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        # Otherwise TransformerLens loads the tokenizer again, by its name.
        add_bos_token=True,
        name_or_path="tiny",
    )


def make_model() -> HookedTransformer:
    tokenizer = make_tokenizer()
    model = HookedTransformer(
        HookedTransformerConfig(
            model_name="tiny",
            n_layers=2,
            d_model=32,
            n_ctx=CONTEXT,
            d_head=8,
            n_heads=4,
            d_mlp=64,
            d_vocab=len(tokenizer),
            act_fn="gelu",
            seed=0,
            device="cpu",
        ),
        tokenizer=tokenizer,
    )
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
        # So that the input of block 0 is a function of the token alone.
        model.W_pos.zero_()
    return model.eval()


def make_texts(
    name: str, n_train: int = 24, n_test: int = 12, seed: int = 0
) -> LabelledTexts:
    """Distinct prompts of 3 to 8 words; the class is the colour word among them."""
    generator = random.Random(seed)

    drawn: set[str] = set()

    def prompt(marker: str) -> str:
        words = generator.choices(FILLERS, k=generator.randint(2, 7))
        words.insert(generator.randrange(len(words) + 1), marker)
        text = " ".join(words)
        if text in drawn:
            return prompt(marker)
        drawn.add(text)
        return text

    return LabelledTexts(
        name,
        train={m: [prompt(m) for _ in range(n_train)] for m in MARKERS},
        test={m: [prompt(m) for _ in range(n_test)] for m in MARKERS},
    )


EMBEDDING = "blocks.0.hook_resid_pre"
RESIDUAL = "blocks.1.hook_resid_post"
D_IN = 32


def make_sae(
    architecture: str = "standard", hook: str = RESIDUAL, seed: int = 0, **cfg: Any
) -> SAE[Any]:
    """A random inference SAE with unit decoder rows and 48 latents."""
    torch.manual_seed(seed)
    fields = {"architecture": architecture, "d_in": D_IN, "d_sae": 48, **cfg}
    config = SAEConfig.from_dict(fields)
    config.metadata.hook_name = hook
    config.metadata.model_name = "tiny"
    sae = SAE.from_dict(config.to_dict())
    with torch.no_grad():
        sae.W_dec /= sae.W_dec.norm(dim=-1, keepdim=True)
    return sae
