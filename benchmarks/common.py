"""What the benchmarks share: SAEs trained on rows in a fixed order, and their figures."""

import json
import os
import platform
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
import typer
from sae_lens import SAE, LoggingConfig, TrainingSAE, TrainingSAEConfig
from sae_lens.config import SAETrainerConfig
from sae_lens.training.sae_trainer import SAETrainer

from sae_lens_cosine.evaluation import (
    evaluate_reconstruction,
    norm_quartile_edges,
    sink_norm_limit,
)
from sae_lens_cosine.loss_recovered import cross_entropy_recovered

BATCH = 2048
LR = 1e-3


def hook_name(layer: int) -> str:
    return f"blocks.{layer}.hook_resid_post"


def batches(rows: np.ndarray, seed: int) -> Iterator[torch.Tensor]:
    """Every row once, in an order that only the seed decides."""
    order = np.random.default_rng(seed).permutation(len(rows))
    for start in range(0, len(rows) - BATCH + 1, BATCH):
        yield torch.from_numpy(rows[order[start : start + BATCH]])


def sae_trainer(
    config: TrainingSAEConfig,
    data: Iterator[torch.Tensor],
    n_steps: int,
    batch: int = BATCH,
    device: str = "cpu",
) -> SAETrainer[Any, Any]:
    """SAELens's trainer; the same schedule for every architecture."""
    return SAETrainer(
        SAETrainerConfig(
            n_checkpoints=0,
            checkpoint_path=None,
            save_final_checkpoint=False,
            total_training_samples=n_steps * batch,
            device=device,
            autocast=False,
            lr=LR,
            lr_end=LR / 10,
            lr_scheduler_name="constant",
            lr_warm_up_steps=min(10, n_steps // 2),
            adam_beta1=0.9,
            adam_beta2=0.999,
            lr_decay_steps=n_steps // 5,
            n_restart_cycles=1,
            train_batch_size_samples=batch,
            dead_feature_window=50,
            feature_sampling_window=2000,
            logger=LoggingConfig(log_to_wandb=False),
            n_batches_for_norm_estimate=0,
        ),
        TrainingSAE.from_dict(config.to_dict()),
        data,
    )


def train(
    config: TrainingSAEConfig,
    data: Iterator[torch.Tensor],
    n_steps: int,
    seed: int,
    batch: int = BATCH,
) -> TrainingSAE[Any]:
    """One SAE under SAELens's trainer."""
    torch.manual_seed(seed)
    return sae_trainer(config, data, n_steps, batch).fit()


def evaluate(
    sae: SAE[Any], cache: Path, layer: int, model: Any, loss_tokens: int
) -> dict[str, Any]:
    """Reconstruction and loss recovered on the held-out tokens of a cache."""
    held_out = torch.from_numpy(np.load(cache / f"eval_layer{layer}.npy"))
    tokens = torch.from_numpy(np.load(cache / "eval_tokens.npy"))
    limit = sink_norm_limit(held_out)
    reconstruction = evaluate_reconstruction(
        sae,
        held_out.split(BATCH),
        sink_norm_limit=limit,
        quartile_edges=norm_quartile_edges(held_out, limit),
    )
    loss = cross_entropy_recovered(
        model,
        {"sae": sae},
        hook_name(layer),
        tokens[: loss_tokens // tokens.shape[1]],
        sink_norm_limit=limit,
    )["sae"]
    return {"reconstruction": reconstruction.model_dump(), "loss": loss.model_dump()}


def cpu_model() -> str:
    """Its name where the system tells (Linux), else its architecture."""
    info = Path("/proc/cpuinfo")
    names = re.findall(
        r"model name\s*: (.+)", info.read_text() if info.exists() else ""
    )
    return names[0] if names else platform.machine()


def environment() -> dict[str, Any]:
    """The machine and the versions a result belongs to."""
    packages = ("sae-lens-cosine", "sae-lens", "torch")
    return {
        "machine": f"{os.cpu_count()} cores of {cpu_model()}",
        "versions": {name: version(name) for name in packages},
    }


def save_json(path: Path, content: Any, indent: int | None = None) -> None:
    """Write all of it or nothing."""
    save_text(path, json.dumps(content, indent=indent))


def save_text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(content)
    os.replace(unfinished, path)


def check_settings(parts: Path, settings: dict[str, Any]) -> None:
    """Refuse to mix parts of different settings; note them for a new run."""
    noted = parts / "settings.json"
    if not noted.exists():
        save_json(noted, settings, indent=1)
    elif (old := json.loads(noted.read_text())) != settings:
        other = {
            key: (old.get(key), settings[key])
            for key in settings
            if old.get(key) != settings[key]
        }
        raise typer.BadParameter(
            f"{parts} was made with other settings (then, now): {other}. Give those, or "
            "another --out."
        )


def listed(text: str, allowed: tuple[str, ...], option: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in allowed]:
        raise typer.BadParameter(
            f"{unknown}: choose among {', '.join(allowed)}.", param_hint=option
        )
    return names


def read_parts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def spread_of(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation of those that are not None."""
    there = [value for value in values if value is not None]
    if not there:
        return "-"
    text = f"{fmean(there):.4g}"
    if len(there) > 1:
        text += f" \N{PLUS-MINUS SIGN} {stdev(there):.2g}"
    return text
