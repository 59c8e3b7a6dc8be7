"""A Hugging Face model folder as a `HookedSAETransformer`, without a model hub.

`HookedTransformer.from_pretrained` refuses models that are not on its list.
"""

import tempfile
from pathlib import Path

import torch
import transformers
from sae_lens import HookedSAETransformer
from transformer_lens.loading_from_pretrained import (
    get_pretrained_model_config,
    get_pretrained_state_dict,
)


def load_local_model(
    folder: Path, name: str | None = None, device: str = "cpu"
) -> HookedSAETransformer:
    """The causal language model in `folder`, in float32, with its raw weights.

    No layer norm is folded and nothing is centred, as with TransformerLens's
    `from_pretrained_no_processing`; BOS is not prepended unless a call asks for it.

    Args:
        folder: what `save_pretrained` of model and tokenizer wrote.
        name: what results call the model; the folder's name by default.
        device: a torch device such as `"cpu"` or `"cuda"`.

    Raises:
        ValueError: the folder holds no model, or an architecture that TransformerLens
            cannot convert.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} is not the folder of a Hugging Face model: it has no config.json."
        )
    hf_model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        folder, local_files_only=True
    )
    with tempfile.TemporaryDirectory() as neutral:
        # transformer-lens guesses the architecture from words anywhere in the path
        # ("llama", "gemma") before it opens config.json; a user's folders may hold them.
        hf_model.config.save_pretrained(neutral)
        try:
            cfg = get_pretrained_model_config(
                neutral, device=device, default_prepend_bos=False
            )
        except NotImplementedError as error:
            raise ValueError(
                f"TransformerLens cannot convert the model in {folder}: {error} Load "
                "it as a TransformerBridge and pass that."
            ) from error
    cfg.model_name = name or folder.resolve().name
    cfg.tokenizer_name = str(folder)

    model = HookedSAETransformer(cfg, tokenizer, move_to_device=False)
    # `load_and_process_state_dict` with every switch off does the same, but walks all
    # modules once per key.
    state = get_pretrained_state_dict(str(folder), cfg, hf_model)
    model.load_state_dict(model.fill_missing_keys(state))
    # The constructor swaps in a tokenizer that prepends BOS; the model's own does not.
    model.tokenizer = tokenizer
    model.cfg.tokenizer_prepends_bos = False
    model.move_model_modules_to_device()
    return model.eval()
