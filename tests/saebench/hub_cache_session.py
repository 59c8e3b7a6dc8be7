"""Run by a test in a process of its own: everything from the cache in HF_HOME.

    python hub_cache_session.py MODEL OUT

prints one line of JSON.
"""

# ruff: noqa: E402
import faulthandler

# Where it stands, should it wait for a lock or a network, imports included.
faulthandler.dump_traceback_later(240, exit=True)

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import config as datasets_config
from sae_bench.evals.sparse_probing import main as saebench
from sae_bench.sae_bench_utils import general_utils
from tiny_lm import CONTEXT

from sae_lens_cosine.saebench import load_datasets, run_sparse_probing
from sae_lens_cosine.saebench.datasets import SAEBENCH_TASKS
from sae_lens_cosine.saebench.host import quiet, saebench_session
from sae_lens_cosine.saebench.sources import load_model, load_saes

SAE_ID = ("lab/saes", "layer_0/k_4")
RELEASE = ("gpt2-small-res-jb", "blocks.0.hook_resid_pre")
"""A name that SAELens knows, and translates to a repository and a folder."""

PROBED = ["fancyzhx/ag_news", "Helsinki-NLP/europarl"]
ROWS = {"train_rows": 40, "test_rows": 20}


def sizes(task: str) -> Any:
    """Rows of each class, or why there are none."""
    try:
        (texts,) = load_datasets(task, **ROWS)
    except ValueError as error:
        return str(error)
    return [{k: len(v) for k, v in s.items()} for s in (texts.train, texts.test)]


def directly(config: Any, model: Any, folder: Path) -> dict[str, float]:
    """SAEBench's own call, with its own loaders of the SAE and the data sets."""
    with saebench_session(torch.device("cpu")), quiet():
        _, sae, _ = general_utils.load_and_format_sae(*SAE_ID, "cpu")  # type: ignore[misc]
        # The first call writes the activations, and draws random numbers for it.
        for _ in range(2):
            means, _ = saebench.run_eval_single_sae(
                config, sae, model, "cpu", str(folder), save_activations=True
            )
    return {k: v for k, v in means.items() if k.startswith("sae_")}  # type: ignore[misc]


def main(model_folder: str, out: Path) -> None:
    model = load_model(model_folder)
    found: dict[str, Any] = {"sizes": {task: sizes(task) for task in SAEBENCH_TASKS}}
    found["saes"] = {
        name: [type(sae).__name__, sae.W_enc.norm().item()]
        for name, sae in load_saes([SAE_ID, RELEASE]).items()
    }
    (ours,) = run_sparse_probing(
        [SAE_ID],
        model=model,
        datasets=PROBED,
        output=out / "ours",
        context_size=CONTEXT,
        show_progress=False,
        **ROWS,  # type: ignore[arg-type]
    ).values()
    found["ours"] = vars(ours.eval_result_metrics.sae)
    found["theirs"] = directly(ours.eval_config, model, out / "theirs")
    # From here on there are the repositories' files, but no tables made from them.
    datasets_config.HF_DATASETS_CACHE = out / "empty"
    found["files only"] = sizes(PROBED[0])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
