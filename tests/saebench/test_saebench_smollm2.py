"""The adapter on a real model and real text: the same numbers as SAEBench's own calls."""

import copy
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from pydantic import TypeAdapter
from sae_bench.evals.sparse_probing import main as saebench
from sae_bench.evals.sparse_probing.eval_output import SparseProbingEvalOutput
from sae_bench.sae_bench_utils import (
    activation_collection,
    dataset_utils,
    general_utils,
)
from sae_lens import SAE, HookedSAETransformer, SAEConfig

from sae_lens_cosine.demo.model import load_demo_model
from sae_lens_cosine.demo.text import probing_task
from sae_lens_cosine.saebench import load_datasets, run_sparse_probing
from sae_lens_cosine.saebench.host import saebench_session

pytestmark = pytest.mark.slow

LAYER = 15
HOOK = f"blocks.{LAYER}.hook_resid_post"
CONTEXT = 64


@pytest.fixture(scope="module")
def smollm2() -> HookedSAETransformer:
    return load_demo_model()


def random_sae(architecture: str, **cfg: Any) -> SAE[Any]:
    torch.manual_seed(0)
    fields = {"architecture": architecture, "d_in": 576, "d_sae": 1024, **cfg}
    config = SAEConfig.from_dict(fields)
    config.metadata.hook_name = HOOK
    sae = SAE.from_dict(config.to_dict())
    with torch.no_grad():
        sae.W_dec /= sae.W_dec.norm(dim=-1, keepdim=True)
        sae.W_enc.copy_(24 * sae.W_dec.T)
    return sae


def test_equals_a_direct_call_with_full_padding(
    smollm2: HookedSAETransformer, tmp_path: Path
) -> None:
    datasets = load_datasets(["ag_news", "occupations_1"], train_rows=24, test_rows=12)
    saes = {
        "cosine": random_sae("cosine_topk", k=32),
        "inner product": random_sae("topk", k=32),
    }
    ours = run_sparse_probing(
        saes,
        model=smollm2,
        datasets=datasets,
        output=tmp_path / "ours",
        context_size=CONTEXT,
        mask_sinks="norm",
        show_progress=False,
    )
    # The first token of every text is a sink, and hardly any other.
    share = ours.summary.datasets["norm"]["ag_news"]["masked_share"]
    tokens = sum(
        min(CONTEXT, len(smollm2.tokenizer(text)["input_ids"]))  # type: ignore[misc]
        for rows in (*datasets[0].train.values(), *datasets[0].test.values())
        for text in rows
    )
    assert 54 / tokens <= share <= 57 / tokens  # 3 classes of 12 + 6 texts
    assert ours.summary.datasets["norm"]["ag_news"]["norm_limit"] > 1000

    with saebench_session(torch.device("cpu")):
        for texts in datasets:
            acts: dict[str, Any] = {"llm_results": {}}
            for split, rows in (("train", texts.train), ("test", texts.test)):
                acts[split] = activation_collection.get_all_llm_activations(
                    dataset_utils.tokenize_data_dictionary(
                        dict(rows), smollm2.tokenizer, CONTEXT, "cpu"
                    ),
                    smollm2,
                    32,
                    LAYER,
                    HOOK,
                    mask_bos_pad_eos_tokens=True,
                )
            torch.save(acts, tmp_path / f"{texts.name}_activations.pt")
        for name, sae in saes.items():
            plain = ours.outputs["none"][name]
            sae = copy.deepcopy(sae)
            sae.cfg.metadata.model_name = "demo"
            _, formatted, _ = general_utils.load_and_format_sae(  # type: ignore[misc]
                name, sae, "cpu"
            )
            means, per_class = saebench.run_eval_single_sae(
                plain.eval_config, formatted, smollm2, "cpu", str(tmp_path), False
            )
            got = asdict(plain.eval_result_metrics.sae)
            assert {k: v for k, v in got.items() if v is not None} == {
                k: v for k, v in means.items() if k.startswith("sae_")
            }
            for result, accuracies in per_class.items():
                got = plain.eval_result_unstructured[result]
                assert accuracies == {k: got[k] for k in accuracies}


def probe_command(sae: SAE[Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """``sae-lens-cosine probe`` with the demo's model on a table of 60 news texts."""
    sae.cfg.metadata.hook_name = "blocks.0.hook_resid_post"
    sae.save_model(folder / "my-sae")
    texts = probing_task("ag_news", train_per_class=14, test_per_class=6)
    rows = [
        (text, label)
        for split in (texts.train, texts.test)
        for label, found in split.items()
        for text in found
    ]
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(folder / "news.csv")
    args = ["--sae", folder / "my-sae", "--model", "demo", "--out", folder / "out"]
    args += ["--dataset", folder / "news.csv", "--mask-sinks", "first_token"]
    args += ["--train-rows", "28", "--test-rows", "12"]
    return subprocess.run(
        [sys.executable, "-m", "sae_lens_cosine", "probe", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_command_end_to_end(tmp_path: Path) -> None:
    folder = tmp_path / "from_scratch"  # which SAEBench's graphing code misreads
    folder.mkdir()
    done = probe_command(random_sae("cosine_jumprelu", d_sae=32), folder)
    assert done.returncode == 0, done.stderr
    assert "UserWarning: SAEBench's graphing code takes" in done.stderr
    assert ".py:" not in done.stderr  # nor where in the code it is given
    printed = " ".join(done.stdout.split())
    assert "Sparse probing: test accuracy on SmolLM2-135M" in printed
    paths = sorted((folder / "out" / "sparse_probing").iterdir())
    assert len(paths) == 2  # without a mask, and without first tokens
    for path in paths:
        found = TypeAdapter(SparseProbingEvalOutput).validate_json(path.read_bytes())
        assert found.eval_config.dataset_names == ["news"]
        for k in (1, 2, 5):
            accuracy = getattr(
                found.eval_result_metrics.sae, f"sae_top_{k}_test_accuracy"
            )
            assert 0 <= accuracy <= 1
            assert f"{accuracy:.3f}" in printed
        llm = found.eval_result_metrics.llm
        assert (
            llm.llm_test_accuracy > 0.6
        )  # 28 training rows, the whole residual stream


def test_command_ends_with_one_line_and_code_2_on_an_sae_of_another_model(
    tmp_path: Path,
) -> None:
    done = probe_command(random_sae("cosine_jumprelu", d_in=64, d_sae=32), tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert [line for line in lines if "Loading weights" not in line] == [
        "sae-lens-cosine: 'my-sae' has d_in=64, but 'blocks.0.hook_resid_post' has "
        "width 576 in this model: was it trained on another one?"
    ]
    assert not (tmp_path / "out").exists()
