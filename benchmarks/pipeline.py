"""Tokens a second of a real training run, and the share of it the language model takes.

    python benchmarks/pipeline.py --out benchmarks/results/pipeline.json

trains on the demo model's residual stream with SAELens's own runner, activations from
the language model as in any run, once with SAELens's BatchTopK and once with the cosine
score, and times the SAE's steps within. Arms alternate; figures are medians.
"""

import statistics
import time
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from common import LR, environment, hook_name, save_json
from sae_lens import (
    BatchTopKTrainingSAEConfig,
    LanguageModelSAERunnerConfig,
    LanguageModelSAETrainingRunner,
    LoggingConfig,
)
from sae_lens.training.sae_trainer import SAETrainer

from sae_lens_cosine import CosineBatchTopKTrainingSAEConfig
from sae_lens_cosine.demo.model import DEMO_MODEL_NAME, load_demo_model
from sae_lens_cosine.demo.text import training_rows

ARMS = {
    "SAELens batchtopk": BatchTopKTrainingSAEConfig,
    "cosine_batchtopk": CosineBatchTopKTrainingSAEConfig,
}
CONTEXT = 128


def run(arm: str, d_sae: int, tokens: int, layer: int, model: Any) -> dict[str, float]:
    """Seconds of the SAE's steps, of everything else, and tokens a second."""
    config = LanguageModelSAERunnerConfig(
        sae=ARMS[arm](d_in=model.cfg.d_model, d_sae=d_sae, k=32),
        model_name=DEMO_MODEL_NAME,
        model_from_pretrained_kwargs={},
        hook_name=hook_name(layer),
        dataset_path="sae-probes",
        context_size=CONTEXT,
        prepend_bos=False,
        training_tokens=tokens,
        train_batch_size_tokens=2048,
        store_batch_size_prompts=16,
        n_batches_in_buffer=32,
        lr=LR,
        output_path=None,
        checkpoint_path=None,
        logger=LoggingConfig(log_to_wandb=False),
    )
    in_steps = 0.0
    step = SAETrainer.step

    def timed(self: Any, batch: torch.Tensor) -> Any:
        nonlocal in_steps
        start = time.perf_counter()
        try:
            return step(self, batch)
        finally:
            in_steps += time.perf_counter() - start

    runner = LanguageModelSAETrainingRunner(
        config, override_model=model, override_dataset=training_rows(2 * tokens)
    )
    with patch.object(SAETrainer, "step", timed):
        start = time.perf_counter()
        runner.run()
        total = time.perf_counter() - start
    return {
        "tokens_per_second": tokens / total,
        "step_seconds": in_steps / (tokens / 2048),
        "language_model_share": 1 - in_steps / total,
    }


def main(
    out: Annotated[Path, typer.Option(help="JSON to write.")],
    d_sae: int = 4608,
    layer: int = 15,
    tokens: Annotated[int, typer.Option(min=4096)] = 32_768,
    repetitions: int = 3,
    threads: int = 2,
) -> None:
    if out.exists():
        raise typer.BadParameter(f"{out} exists: name a new file.", param_hint="--out")
    torch.set_num_threads(threads)
    model = load_demo_model()
    runs: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for _ in range(repetitions):
        for arm, done in runs.items():
            done.append(run(arm, d_sae, tokens, layer, model))
    found = {
        "model": DEMO_MODEL_NAME,
        "layer": layer,
        "d_sae": d_sae,
        "tokens": tokens,
        "threads": threads,
        **environment(),
        "medians": {
            arm: {name: statistics.median(r[name] for r in done) for name in done[0]}
            for arm, done in runs.items()
        },
        "runs": runs,
    }
    save_json(out, found, indent=1)
    print("| arm | tokens a second | seconds a step | share of the language model |")
    print("|---|---|---|---|")
    for arm, m in found["medians"].items():
        print(
            f"| {arm} | {m['tokens_per_second']:.0f} | {m['step_seconds']:.3f} "
            f"| {100 * m['language_model_share']:.0f}% |"
        )


if __name__ == "__main__":
    typer.run(main)
