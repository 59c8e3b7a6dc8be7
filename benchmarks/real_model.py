"""The paper's claims on a real model, with the controls that a sceptic asks for.

    python benchmarks/cache_activations.py --out cache --layers 15,10 \\
        --train-tokens 1024000
    python benchmarks/real_model.py --cache cache --out benchmarks/results/real_model.json

trains the arms of `arms.py`, evaluates each on held-out text, and probes
them with the offline suite, with attention sinks in the pooled mean and without. What
is finished is kept in `<out>.parts` and never computed again; seed 0 comes first, layer
by layer, so that an interrupted run has something to say. JSON, Markdown and a plot are
written from the parts after every group of SAEs, and at any time by

    python benchmarks/real_model.py --out benchmarks/results/real_model.json --report-only

More arms, layers and seeds may be added later to the same `--out`.
"""

import json
import time
from functools import cache as once
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from arms import ARMS, D_SAE, K, arm_config
from common import (
    BATCH,
    LR,
    batches,
    check_settings,
    environment,
    evaluate,
    hook_name,
    listed,
    save_json,
    save_text,
    train,
)
from real_model_plot import plot
from real_model_report import markdown, report
from sae_lens import SAE

from sae_lens_cosine.demo.model import DEMO_MODEL_NAME, load_demo_model
from sae_lens_cosine.inference import CosineSAE
from sae_lens_cosine.saebench import run_sparse_probing

STAGES = ("train", "probe")

load_model = once(load_demo_model)  # only where a part is missing


def train_arm(
    parts: Path, cache: Path, layer: int, seed: int, arm: str, settings: dict[str, Any]
) -> None:
    """Train one arm, save it for inference, and evaluate what was saved."""
    name = f"{layer}-{seed}-{arm}"
    part, folder = parts / "trained" / f"{name}.json", parts / "saes" / name
    if part.exists():
        return
    start = time.perf_counter()
    rows = np.load(cache / f"train_layer{layer}.npy", mmap_mode="r")
    rows = rows[: settings["train_rows"]]
    config = arm_config(arm, d_in=rows.shape[1])
    trained = train(config, batches(rows, seed), len(rows) // BATCH, seed)
    trained.cfg.metadata.model_name = DEMO_MODEL_NAME
    trained.cfg.metadata.hook_name = hook_name(layer)
    trained.save_inference_model(folder)
    seconds = time.perf_counter() - start
    sae = SAE.load_from_disk(folder)
    figures = evaluate(sae, cache, layer, load_model(), settings["loss_tokens"])
    save_json(
        part,
        {
            "arm": arm,
            "layer": layer,
            "seed": seed,
            **figures,
            "d_sae": sae.cfg.d_sae,
            "sink_latents": len(getattr(sae, "sink_latents", [])),
            "exponent": exponents(sae),
            "training_seconds": round(seconds, 1),
            "seconds": round(time.perf_counter() - start, 1),
            **environment(),
        },
    )


def exponents(sae: SAE[Any]) -> dict[str, float] | None:
    """Of the latents that are not reserved for sinks; None if the SAE has none."""
    if not isinstance(sae, CosineSAE):
        return None
    a = sae.exponent.double().reshape(-1)
    if len(a) > 1:
        a = a[: sae.cfg.d_sae - len(sae.sink_latents)]
    return {"mean": a.mean().item(), "min": a.min().item(), "max": a.max().item()}


def probe_group(parts: Path, layer: int, seed: int, settings: dict[str, Any]) -> None:
    """Probe all SAEs of a layer and seed; those that were probed are read back."""
    arms = [
        a for a in ARMS if (parts / "trained" / f"{layer}-{seed}-{a}.json").exists()
    ]
    part = parts / "probed" / f"{layer}-{seed}.json"
    known = (
        json.loads(part.read_text()) if part.exists() else {"arms": [], "seconds": 0}
    )
    if not arms or known["arms"] == arms:
        return
    start = time.perf_counter()
    probed = run_sparse_probing(
        {arm: parts / "saes" / f"{layer}-{seed}-{arm}" for arm in arms},
        model=load_model(),
        datasets="offline",
        output=parts / "probing" / f"{layer}-{seed}",
        artifacts_dir=parts / "activations",
        mask_sinks="norm",
        train_rows=settings["probe_train_rows"],
        test_rows=settings["probe_test_rows"],
        sae_batch_size=32,
    )
    save_json(
        part,
        {
            "arms": arms,
            "layer": layer,
            "seed": seed,
            "summary": probed.summary.model_dump(),
            "seconds": round(known["seconds"] + time.perf_counter() - start, 1),
            **environment(),
        },
    )


def write_report(out: Path, parts: Path) -> None:
    found = report(parts)
    save_json(out, found, indent=1)
    save_text(out.with_suffix(".md"), markdown(found))
    plot(found, out.with_suffix(".png"))


def main(
    out: Annotated[Path, typer.Option(help="JSON to write; Markdown beside it.")],
    cache: Annotated[
        Path | None, typer.Option(help="Folder of cache_activations.py.")
    ] = None,
    layers: Annotated[str, typer.Option(help="Comma-separated.")] = "15,10",
    arms: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(ARMS),
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    stages: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(STAGES),
    train_rows: Annotated[int, typer.Option(min=BATCH)] = 1_024_000,
    loss_tokens: Annotated[int, typer.Option(min=128)] = 4096,
    probe_train_rows: int = 1000,
    probe_test_rows: int = 500,
    report_only: Annotated[bool, typer.Option(help="From what is there.")] = False,
) -> None:
    parts = out.with_name(out.name + ".parts")
    if report_only:
        if not (parts / "settings.json").exists():
            raise typer.BadParameter(
                f"There is nothing in {parts}.", param_hint="--out"
            )
        write_report(out, parts)
        return
    if out.exists() and not parts.exists():
        raise typer.BadParameter(f"{out} exists: name a new file.", param_hint="--out")
    if cache is None:
        raise typer.BadParameter("Training needs it.", param_hint="--cache")
    wanted_arms = listed(arms, tuple(ARMS), "--arms")
    wanted_stages = listed(stages, STAGES, "--stages")
    meta = json.loads((cache / "meta.json").read_text())
    wanted_layers = listed(layers, tuple(map(str, meta["layers"])), "--layers")
    if train_rows > meta["train_tokens"]:
        raise typer.BadParameter(
            f"{cache} has {meta['train_tokens']} rows: ask for fewer, or cache more.",
            param_hint="--train-rows",
        )
    settings = {
        "activations": meta,
        "train_rows": train_rows,
        "batch": BATCH,
        "lr": LR,
        "k": K,
        "d_sae": D_SAE,
        "loss_tokens": loss_tokens,
        "probe_train_rows": probe_train_rows,
        "probe_test_rows": probe_test_rows,
    }
    check_settings(parts, settings)
    for seed in range(seeds):
        for layer in map(int, wanted_layers):
            if "train" in wanted_stages:
                for arm in wanted_arms:
                    train_arm(parts, cache, layer, seed, arm, settings)
                    print(f"layer {layer}, seed {seed}: {arm}", flush=True)
            if "probe" in wanted_stages:
                probe_group(parts, layer, seed, settings)
            write_report(out, parts)
    print(out.with_suffix(".md").read_text())


if __name__ == "__main__":
    typer.run(main)
