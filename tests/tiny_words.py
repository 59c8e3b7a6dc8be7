"""A vocabulary of sixty words, one token each."""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

WORDS = [f"w{i}" for i in range(60)]


def make_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Saved and loaded again: TransformerLens asks a tokenizer for its folder."""
    vocabulary = {word: i for i, word in enumerate(["<bos>", "<pad>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<bos>",
        pad_token="<pad>",
        unk_token="<unk>",
    ).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)
