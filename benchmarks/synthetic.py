"""Which arm finds known features, by how much the norms of tokens spread.

    python benchmarks/synthetic.py --out benchmarks/results/synthetic.json

Tokens are sparse sums of the features of a SAELens `FeatureDictionary`, brought to the
norm ``TYPICAL_NORM * exp(spread * z)`` with ``z`` standard normal: at spread 0 all have
the same norm, at 1 one in a hundred is ten times the median. With sinks, 1% of the
training tokens lie 100 median norms out, in one direction. Every arm (`arms.py`) is
then judged by SAELens's own `eval_sae_on_synthetic_data` on the same ordinary tokens,
without sinks: MCC of decoder rows and true features, and precision, recall and F1 of
each latent as a detector of the feature it is closest to.

All arms start from unit decoder rows, as the cosine SAEs do, so that at spread 0
nothing but the score and the loss tells them apart; `batchtopk` alone is SAELens's own
with its own start, rows of norm 0.1.

Parts are kept in `<out>.parts`; `--report-only` writes JSON and Markdown from them.
"""

import math
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import torch
import typer
from arms import ARMS
from common import LR, check_settings, environment, listed, save_json, save_text, train
from sae_lens import SAE, TrainingSAEConfig
from sae_lens.synthetic import (
    ActivationGenerator,
    FeatureDictionary,
    eval_sae_on_synthetic_data,
)
from synthetic_report import KINDS, markdown, report
from tqdm.auto import tqdm

D_IN, N_FEATURES, K = 64, 128, 6
TYPICAL_NORM = math.sqrt(D_IN)
BATCH = 512
EVAL_TOKENS = 20_480
SINK_SHARE, SINK_MULTIPLE = 0.01, 100.0

SYNTHETIC_ARMS = (
    "batchtopk",
    "batchtopk_filtered",
    "reweighted_inverse_norm",
    "unit_rows",
    "cosine_filtered",
    "cosine_per_feature_filtered",
)
SINK_ARMS = ("batchtopk_sinks", "cosine_sinks")
"""Equal to the filtered ones where there are no sinks."""


def tokens_of(dictionary: FeatureDictionary, spread: float) -> ActivationGenerator:
    """A generator of feature activations whose tokens have log-normal norms.

    Features fire independently and equally often, ``K`` a token on average.
    """

    def to_norms(acts: torch.Tensor) -> torch.Tensor:
        norms = dictionary(acts).norm(dim=1, keepdim=True)
        wanted = TYPICAL_NORM * torch.exp(spread * torch.randn_like(norms))
        return acts * torch.where(norms > 0, wanted / norms, 0.0)

    return ActivationGenerator(
        num_features=dictionary.num_features,
        firing_probabilities=K / dictionary.num_features,
        std_firing_magnitudes=0.3,
        modify_activations=to_norms,
    )


@torch.no_grad()
def batches(
    dictionary: FeatureDictionary, spread: float, sinks: bool, seed: int
) -> Iterator[torch.Tensor]:
    """Training tokens ``[BATCH, d_in]`` without end, the same for every arm."""
    generator = tokens_of(dictionary, spread)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        direction = torch.nn.functional.normalize(torch.randn(D_IN), dim=0)
    while True:
        # Its own random state: how much the trainer draws differs between arms.
        with torch.random.fork_rng():
            torch.set_rng_state(state)
            x = dictionary(generator.sample(BATCH))
            is_sink = torch.rand(BATCH, 1) < SINK_SHARE
            state = torch.get_rng_state()
        if sinks:
            x += is_sink * SINK_MULTIPLE * TYPICAL_NORM * direction
        yield x


def synthetic_config(arm: str) -> TrainingSAEConfig:
    """The arm at the size of this benchmark, with the start that the others have."""
    config = ARMS[arm](d_in=D_IN, d_sae=N_FEATURES, k=K, topk_threshold_lr=0.05)
    return config if arm == "batchtopk" else replace(config, decoder_init_norm=1.0)


class Job(NamedTuple):
    arm: str
    spread: float
    sinks: bool
    seed: int
    steps: int

    def name(self) -> str:
        return f"{self.seed}-{KINDS[self.sinks]}-{self.spread:g}-{self.arm}.json"


def measure(job: Job, folder: Path) -> None:
    """Train one arm and judge what it saves for inference, unless that is done."""
    part = folder / job.name()
    if part.exists():
        return
    arm, spread, sinks, seed, steps = job
    start = time.perf_counter()
    dictionary = FeatureDictionary(N_FEATURES, D_IN, seed=seed)
    config = synthetic_config(arm)
    data = batches(dictionary, spread, sinks, seed)
    trained = train(config, data, steps, seed, batch=BATCH)
    with TemporaryDirectory() as saved:
        trained.save_inference_model(saved)
        sae = SAE.load_from_disk(saved)
    torch.manual_seed(1_000_000 + seed)  # apart from the training tokens
    result = eval_sae_on_synthetic_data(
        sae,
        dictionary,
        tokens_of(dictionary, spread),
        num_samples=EVAL_TOKENS,
        batch_size=BATCH,
    )
    exponent = getattr(sae, "exponent", None)
    save_json(
        part,
        {
            "arm": arm,
            "spread": spread,
            "sinks": sinks,
            "seed": seed,
            **result.to_dict(),
            "exponent": None if exponent is None else exponent.mean().item(),
            "seconds": round(time.perf_counter() - start, 1),
            **environment(),
        },
    )


def main(
    out: Annotated[Path, typer.Option(help="JSON to write; Markdown beside it.")],
    spreads: Annotated[str, typer.Option(help="Comma-separated.")] = "0,0.25,0.5,1,1.5",
    arms: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(
        SYNTHETIC_ARMS + SINK_ARMS
    ),
    kinds: Annotated[
        str, typer.Option(help="Of training tokens, comma-separated.")
    ] = ",".join(KINDS),
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    steps: Annotated[int, typer.Option(min=20)] = 1500,
    workers: Annotated[int, typer.Option(min=1, help="Processes of a thread.")] = 2,
    report_only: Annotated[bool, typer.Option(help="From what is there.")] = False,
) -> None:
    parts = out.with_name(out.name + ".parts")
    if out.exists() and not parts.exists():
        raise typer.BadParameter(f"{out} exists: name a new file.", param_hint="--out")
    wanted = listed(arms, SYNTHETIC_ARMS + SINK_ARMS, "--arms")
    wanted_kinds = listed(kinds, KINDS, "--kinds")
    if not report_only:
        settings = {
            "steps": steps,
            "batch": BATCH,
            "lr": LR,
            "d_in": D_IN,
            "features": N_FEATURES,
            "d_sae": N_FEATURES,
            "k": K,
            "eval_tokens": EVAL_TOKENS,
        }
        check_settings(parts, settings)
        jobs = [
            Job(arm, float(spread), kind == "sinks", seed, steps)
            for seed in range(seeds)
            for kind in wanted_kinds
            for spread in spreads.split(",")
            for arm in wanted
            if kind == "sinks" or arm not in SINK_ARMS
        ]
        with ProcessPoolExecutor(
            workers,
            multiprocessing.get_context("spawn"),
            initializer=torch.set_num_threads,
            initargs=(1,),
        ) as pool:
            done = pool.map(partial(measure, folder=parts / "runs"), jobs)
            for _ in tqdm(done, total=len(jobs), unit="SAE"):
                pass
    if not (parts / "settings.json").exists():
        raise typer.BadParameter(f"There is nothing in {parts}.", param_hint="--out")
    found = report(parts)
    save_json(out, found, indent=1)
    save_text(out.with_suffix(".md"), markdown(found))
    print(markdown(found))


if __name__ == "__main__":
    typer.run(main)
