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
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from common import BATCH, LR, batches, environment, evaluate, save_json, train
from sae_lens import SAE, BatchTopKTrainingSAEConfig, TrainingSAEConfig

from sae_lens_cosine import (
    CosineBatchTopKTrainingSAEConfig,
    SinkBatchTopKTrainingSAEConfig,
)
from sae_lens_cosine.demo.model import load_demo_model

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


def measure(
    arm: str, layer: int, seed: int, cache: Path, model: Any, loss_tokens: int
) -> dict[str, Any]:
    """Train one arm and evaluate what it saves for inference."""
    start = time.perf_counter()
    config = ARMS[arm](d_in=model.cfg.d_model, d_sae=D_SAE, k=K, topk_threshold_lr=0.05)
    rows = np.load(cache / f"train_layer{layer}.npy")
    trained = train(config, batches(rows, seed), len(rows) // BATCH, seed)
    with TemporaryDirectory() as folder:
        trained.save_inference_model(folder)
        sae = SAE.load_from_disk(folder)
    figures = evaluate(sae, cache, layer, model, loss_tokens)
    weights = {
        name: round(value.double().abs().sum().item(), 9)
        for name, value in sae.state_dict().items()
        if not name.startswith("sink_")
    }
    return {
        "arm": arm,
        "layer": layer,
        "seed": seed,
        **figures,
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
    model = load_demo_model()
    runs = []
    for layer in (int(layer) for layer in layers.split(",")):
        for seed in range(seeds):
            for arm in arms.split(","):
                part = parts / f"{layer}-{seed}-{arm}.json"
                if not part.exists():
                    run = measure(arm, layer, seed, cache, model, loss_tokens)
                    save_json(part, run)
                runs.append(json.loads(part.read_text()))
    report = {
        **environment(),
        "activations": json.loads((cache / "meta.json").read_text()),
        "settings": {"batch": BATCH, "lr": LR, "k": K, "d_sae": D_SAE, "seeds": seeds},
        "runs": runs,
    }
    save_json(out, report, indent=1)
    print(table(runs))


if __name__ == "__main__":
    typer.run(main)
