"""Seconds and memory of adding one SAE to the offline suite, activations at hand.

    python benchmarks/probing.py --out results.json

runs the suite at 1000/500 rows once to fill the cache of activations (with the demo model
up to --layer; layer 0 takes minutes instead of an hour and costs the SAE the same), then
adds a random SAE with d_sae 4608: with SAEBench's column alone, and with a second one
without sinks. Then it calls SAEBench directly on the first data set, on the same rows, and
checks that both give the same numbers. `gemm_seconds` is the SAE's matrix product alone,
on the same number of tokens: no encoder is faster.
"""

import copy
import json
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from sae_bench.evals.sparse_probing import main as saebench
from sae_bench.sae_bench_utils import general_utils
from sae_lens import SAE, SAEConfig

from sae_lens_cosine.demo.model import load_demo_model
from sae_lens_cosine.saebench import load_datasets, run_sparse_probing
from sae_lens_cosine.saebench.activations import ActivationCache, tokenize
from sae_lens_cosine.saebench.handover import Hook
from sae_lens_cosine.saebench.host import quiet, saebench_session

CONTEXT = 128


def random_sae(architecture: str, hook: str, d_sae: int, **cfg: Any) -> SAE[Any]:
    torch.manual_seed(0)
    fields = {"architecture": architecture, "d_in": 576, "d_sae": d_sae, **cfg}
    config = SAEConfig.from_dict(fields)
    config.metadata.hook_name = hook
    sae = SAE.from_dict(config.to_dict())
    with torch.no_grad():
        sae.W_dec.div_(sae.W_dec.norm(dim=-1, keepdim=True))
        sae.W_enc.copy_(24 * sae.W_dec.T)
        for name, parameter in sae.named_parameters():
            if name == "threshold":
                parameter.fill_(2.0)  # two standard deviations of a latent
    return sae


def own_memory() -> float:
    """GiB of this process without mapped files, whose pages the system may drop."""
    status = Path("/proc/self/status").read_text()
    (line,) = (row for row in status.splitlines() if row.startswith("RssAnon"))
    return int(line.split()[1]) / 2**20


def measure(run: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Seconds and the highest memory while it runs, sampled."""
    before = peak = own_memory()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        result = run()
    finally:
        done.set()
        watcher.join()
    return {
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "added_gib": round(peak - before, 2),
    }, result


def gemm(sae: SAE[Any], tokens: int) -> None:
    batch = torch.randn(512, sae.cfg.d_in)
    with torch.no_grad():
        for _ in range(tokens // len(batch)):
            torch.mm(batch, sae.W_enc)


def directly(sae: SAE[Any], model: Any, config: Any, padded: dict[str, Any]) -> Any:
    """SAEBench's own call on activations of one data set, as it would store them."""
    sae = copy.deepcopy(sae)
    sae.cfg.metadata.model_name = model.cfg.model_name
    with tempfile.TemporaryDirectory() as folder, saebench_session(torch.device("cpu")):
        path = Path(folder) / f"{config.dataset_names[0]}_activations.pt"
        torch.save({**padded, "llm_results": {}}, path)
        loaded = general_utils.load_and_format_sae("direct", sae, "cpu")
        with quiet():
            return measure(
                lambda: saebench.run_eval_single_sae(
                    config,
                    loaded[1],  # type: ignore[index]
                    model,
                    "cpu",
                    folder,
                    save_activations=False,
                )[0]
            )


def main(
    out: Annotated[
        Path | None, typer.Option(help="JSON file; printed if absent.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Of activations, to keep.")] = None,
    suite: Annotated[str, typer.Option(help="Or data sets, with commas.")] = "offline",
    layer: int = 0,
    d_sae: int = 4608,
    architecture: str = "cosine_jumprelu",
    train_rows: int = 1000,
    test_rows: int = 500,
) -> None:
    hook = f"blocks.{layer}.hook_resid_post"
    model = load_demo_model()
    datasets = load_datasets(suite.split(","), train_rows, test_rows)
    sae = random_sae(architecture, hook, d_sae)
    with tempfile.TemporaryDirectory() as scratch:
        root = cache or Path(scratch)

        def probe(chosen: SAE[Any], data: Any, masking: str) -> Any:
            return run_sparse_probing(
                {"sae": chosen},
                model=model,
                datasets=data,
                artifacts_dir=root,
                context_size=CONTEXT,
                mask_sinks=masking,  # type: ignore[arg-type]
                show_progress=False,
            )["sae"]

        # Fills the cache of activations and of SAEBench's baselines.
        probe(random_sae("topk", hook, 16, k=4), datasets, "first_token")
        result: dict[str, Any] = {}
        result["suite_one_column"], _ = measure(lambda: probe(sae, datasets, "none"))
        result["suite_both_columns"], _ = measure(
            lambda: probe(sae, datasets, "first_token")
        )
        tokenized = [tokenize(data, model, CONTEXT) for data in datasets]
        prompts = {
            tuple(row[real].tolist())
            for texts in tokenized
            for row, real in zip(texts.ids, texts.real, strict=True)
        }
        tokens = sum(map(len, prompts))
        start = time.perf_counter()
        gemm(sae, tokens)
        result |= {
            "gemm_seconds": round(time.perf_counter() - start, 1),
            "threads": torch.get_num_threads(),
            "data_sets": [data.name for data in datasets],
            "prompts": sum(len(texts.ids) for texts in tokenized),
            "tokens": sum(int(texts.real.sum()) for texts in tokenized),
            "tokens_encoded": tokens,
            "layer": layer,
            "d_sae": d_sae,
            "architecture": architecture,
        }

        # One data set, here and by SAEBench itself.
        one = tokenized[0]
        probe(random_sae("topk", hook, 16, k=4), datasets[0], "none")
        result["one_data_set"], ours = measure(lambda: probe(sae, datasets[0], "none"))
        acts = ActivationCache(model, root, 32, show_progress=False).get(
            one, Hook(hook, layer)
        )
        padded = torch.zeros(*one.real.shape, acts.acts.shape[-1])
        padded[one.real] = acts.acts
        by_class = {
            split: {label: padded[prompts] for label, prompts in rows.items()}
            for split, rows in one.rows.items()
        }
        del padded
        result["one_data_set_saebench"], theirs = directly(
            sae, model, ours.eval_config, by_class
        )
        got = asdict(ours.eval_result_metrics.sae)
        result["equal"] = all(
            got[key] == theirs[key] for key in theirs if key.startswith("sae_")
        )
    text = json.dumps(result, indent=1)
    print(text)
    if out is not None:
        out.write_text(text)


if __name__ == "__main__":
    typer.run(main)
