"""What latents for attention sinks change, layer by layer of the demo model.

    python benchmarks/cache_activations.py --out cache --layers 5,10,15,20,25,29 \\
        --train-tokens 204800 --eval-tokens 16384
    python benchmarks/sinks.py --cache cache --out benchmarks/results/sinks.json

trains every arm on the same cached rows in the same order, evaluates it on held-out
text, writes JSON and prints the table. A finished (layer, seed, arm) is kept in
`<out>.parts`, so that an interrupted run goes on.
"""

import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from sae_lens import (
    SAE,
    BatchTopKTrainingSAEConfig,
    LoggingConfig,
    TrainingSAE,
    TrainingSAEConfig,
)
from sae_lens.config import SAETrainerConfig
from sae_lens.training.sae_trainer import SAETrainer

from sae_lens_cosine import (
    CosineBatchTopKTrainingSAEConfig,
    SinkBatchTopKTrainingSAEConfig,
)
from sae_lens_cosine.demo.model import load_demo_model
from sae_lens_cosine.evaluation import (
    evaluate_reconstruction,
    norm_quartile_edges,
    sink_norm_limit,
)
from sae_lens_cosine.loss_recovered import cross_entropy_recovered

BATCH = 2048
LR = 1e-3
K, D_SAE = 32, 2304

ARMS: dict[str, Callable[..., TrainingSAEConfig]] = {
    "batchtopk": BatchTopKTrainingSAEConfig,
    "batchtopk_filtered": lambda **c: SinkBatchTopKTrainingSAEConfig(sink_rank=0, **c),
    "batchtopk_sinks": SinkBatchTopKTrainingSAEConfig,
    "cosine_unfiltered": lambda **c: CosineBatchTopKTrainingSAEConfig(
        sink_rank=0, outlier_norm_multiple=None, **c
    ),
    "cosine_filtered": lambda **c: CosineBatchTopKTrainingSAEConfig(sink_rank=0, **c),
    "cosine_sinks": CosineBatchTopKTrainingSAEConfig,
}


def batches(rows: np.ndarray, seed: int) -> Iterator[torch.Tensor]:
    order = np.random.default_rng(seed).permutation(len(rows))
    for start in range(0, len(rows) - BATCH + 1, BATCH):
        yield torch.from_numpy(rows[order[start : start + BATCH]])


def train(config: TrainingSAEConfig, rows: np.ndarray, seed: int) -> TrainingSAE[Any]:
    torch.manual_seed(seed)
    n_steps = len(rows) // BATCH
    trainer = SAETrainer(
        SAETrainerConfig(
            n_checkpoints=0,
            checkpoint_path=None,
            save_final_checkpoint=False,
            total_training_samples=n_steps * BATCH,
            device="cpu",
            autocast=False,
            lr=LR,
            lr_end=LR / 10,
            lr_scheduler_name="constant",
            lr_warm_up_steps=10,
            adam_beta1=0.9,
            adam_beta2=0.999,
            lr_decay_steps=n_steps // 5,
            n_restart_cycles=1,
            train_batch_size_samples=BATCH,
            dead_feature_window=50,
            feature_sampling_window=2000,
            logger=LoggingConfig(log_to_wandb=False),
            n_batches_for_norm_estimate=0,
        ),
        TrainingSAE.from_dict(config.to_dict()),
        batches(rows, seed),
    )
    return trainer.fit()


def measure(
    arm: str, layer: int, seed: int, cache: Path, model: Any, loss_tokens: int
) -> dict[str, Any]:
    """Train one arm and evaluate what it saves for inference."""
    start = time.perf_counter()
    config = ARMS[arm](d_in=model.cfg.d_model, d_sae=D_SAE, k=K, topk_threshold_lr=0.05)
    trained = train(config, np.load(cache / f"train_layer{layer}.npy"), seed)
    with TemporaryDirectory() as folder:
        trained.save_inference_model(folder)
        sae = SAE.load_from_disk(folder)
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
        {arm: sae},
        f"blocks.{layer}.hook_resid_post",
        tokens[: loss_tokens // tokens.shape[1]],
        sink_norm_limit=limit,
    )[arm]
    weights = {
        name: round(value.double().abs().sum().item(), 9)
        for name, value in sae.state_dict().items()
        if not name.startswith("sink_")
    }
    return {
        "arm": arm,
        "layer": layer,
        "seed": seed,
        "reconstruction": reconstruction.model_dump(),
        "loss": loss.model_dump(),
        "sink_latents": len(getattr(sae, "sink_latents", [])),
        "weight_sums": weights,  # equal for SAEs that are the same bit for bit
        "seconds": round(time.perf_counter() - start, 1),
    }


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown, the mean over seeds."""
    columns: dict[str, Callable[[dict[str, Any]], float | None]] = {
        "EV all": lambda r: r["reconstruction"]["all_tokens"]["explained_variance"],
        "EV ordinary": lambda r: r["reconstruction"]["sinks_excluded"][
            "explained_variance"
        ],
        "L0 ordinary": lambda r: r["reconstruction"]["sinks_excluded"]["l0"],
        "L0 sinks": lambda r: r["reconstruction"]["sinks_only"]["l0"],
        "never fired": lambda r: r["reconstruction"]["never_fired_share"],
        "CE recovered": lambda r: r["loss"]["recovered"],
        "CE, sinks kept": lambda r: r["loss"]["recovered_sinks_kept"],
        "sink latents": lambda r: r["sink_latents"],
    }
    lines = [
        f"| layer | sinks | arm | {' | '.join(columns)} |",
        "|---" * (3 + len(columns)) + "|",
    ]
    keys = dict.fromkeys((r["layer"], r["arm"]) for r in runs)
    for layer, arm in sorted(keys, key=lambda key: key[0]):
        same = [r for r in runs if (r["layer"], r["arm"]) == (layer, arm)]
        share = same[0]["reconstruction"]["sinks_only"]["token_share"]
        cells = []
        for read in columns.values():
            values = [v for r in same if (v := read(r)) is not None]
            mean = sum(values) / len(values) if values else math.nan
            cells.append(f"{mean:.4g}" if values else "-")
        lines.append(f"| {layer} | {100 * share:.2f}% | {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(
    cache: Annotated[Path, typer.Option(help="Folder of cache_activations.py.")],
    out: Annotated[Path, typer.Option(help="JSON to write.")],
    layers: Annotated[str, typer.Option(help="Comma-separated.")] = "5,10,15,20,25,29",
    arms: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(ARMS),
    seeds: int = 1,
    loss_tokens: int = 4096,
) -> None:
    if out.exists():
        raise typer.BadParameter(f"{out} exists: name a new file.", param_hint="--out")
    parts = out.with_name(out.name + ".parts")
    parts.mkdir(parents=True, exist_ok=True)
    model = load_demo_model()
    runs = []
    for layer in (int(layer) for layer in layers.split(",")):
        for seed in range(seeds):
            for arm in arms.split(","):
                part = parts / f"{layer}-{seed}-{arm}.json"
                if not part.exists():
                    run = measure(arm, layer, seed, cache, model, loss_tokens)
                    unfinished = part.with_suffix(".tmp")
                    unfinished.write_text(json.dumps(run))
                    os.replace(unfinished, part)
                runs.append(json.loads(part.read_text()))
    packages = ("sae-lens-cosine", "sae-lens", "torch")
    report = {
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "versions": {name: version(name) for name in packages},
        "activations": json.loads((cache / "meta.json").read_text()),
        "settings": {"batch": BATCH, "lr": LR, "k": K, "d_sae": D_SAE, "seeds": seeds},
        "runs": runs,
    }
    unfinished = out.with_name(out.name + ".tmp")
    unfinished.write_text(json.dumps(report, indent=1))
    os.replace(unfinished, out)
    print(table(runs))


if __name__ == "__main__":
    typer.run(main)
