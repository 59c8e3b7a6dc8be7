"""Model cards for the Hugging Face Hub that show the import without which nothing loads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from sae_lens import SAE, upload_saes_to_huggingface
from sae_lens.constants import SAE_CFG_FILENAME

from sae_lens_cosine.sae_folder import is_training_config, read_config

CARD = """---
library_name: saelens
tags:
- sparse-autoencoder
- sae-lens-cosine
---

# Cosine-scored SAEs for SAELens

| SAE | architecture | model | hook | d_in | d_sae | exponent | trained as |
|---|---|---|---|---|---|---|---|
{rows}

They score a latent by `exp(b) * n^a * cos(x - b_dec, w)`, `n = ||x - b_dec||`, instead
of the inner product ([arXiv 2606.15054](https://arxiv.org/abs/2606.15054)).

```bash
pip install sae-lens-cosine
```

```python
import sae_lens_cosine  # registers the architectures: without it, loading is a KeyError
from sae_lens import SAE

sae = SAE.from_pretrained("{repo_id}", "{first}")
```
"""


def model_card(repo_id: str, saes: Mapping[str, SAE[Any] | Path | str]) -> str:
    """A README for the repository ``repo_id``.

    Args:
        repo_id: owner and name.
        saes: inference SAEs, or folders of them, by the id they are loaded under.

    Raises:
        ValueError: without SAEs, or on one that is for training.
    """
    if not saes:
        raise ValueError("saes is empty: name at least one SAE.")
    configs = {sae_id: config_of(sae_id, sae) for sae_id, sae in saes.items()}
    rows = []
    for sae_id, cfg in configs.items():
        metadata = cfg.get("metadata", {})
        cells = (
            sae_id,
            cfg.get("architecture"),
            metadata.get("model_name"),
            metadata.get("hook_name"),
            cfg["d_in"],
            cfg["d_sae"],
            cfg.get("exponent_mode"),
            metadata.get("training_architecture"),
        )
        rows.append(f"| {' | '.join(str(cell or '-') for cell in cells)} |")
    return CARD.format(repo_id=repo_id, rows="\n".join(rows), first=next(iter(saes)))


def config_of(sae_id: str, sae: SAE[Any] | Path | str) -> dict[str, Any]:
    """The config of an SAE or of its folder, refused where it is no inference SAE."""
    if isinstance(sae, SAE):
        cfg = sae.cfg.to_dict()
        name = sae.cfg.architecture()
        is_training = hasattr(sae, "training_forward_pass")
    else:
        path = Path(sae) / SAE_CFG_FILENAME
        if not path.exists():
            raise ValueError(f"{sae_id}: {path} does not exist; give an SAE's folder.")
        cfg = read_config(path.parent)
        name = cfg.get("architecture")
        is_training = is_training_config(cfg)
    if is_training:
        raise ValueError(
            f"{sae_id} is a training SAE ({name}), which nobody could load for "
            "inference: write sae.save_inference_model(folder) and give that folder."
        )
    return cfg


def upload(
    saes: dict[str, SAE[Any] | Path | str], repo_id: str, revision: str = "main"
) -> None:
    """Upload inference SAEs with SAELens, and a card that shows the import.

    SAELens's own card leaves it out. An existing README is replaced.

    Args:
        saes: SAEs, or folders of them, by the id they are loaded under.
        repo_id: owner and name on the Hub.
        revision: branch.

    Raises:
        ValueError: without SAEs, or on one that is for training; nothing has been
            uploaded then.
    """
    card = model_card(repo_id, saes)
    upload_saes_to_huggingface(
        saes, repo_id, hf_revision=revision, add_default_readme=False
    )
    HfApi().upload_file(
        path_or_fileobj=card.encode(),
        path_in_repo="README.md",
        repo_id=repo_id,
        revision=revision,
        commit_message="Describe the SAEs and how to load them",
    )
