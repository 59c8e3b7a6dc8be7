"""SAEBench's core eval on given texts, beside our own figures."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from sae_bench.evals.core.eval_output import CoreEvalOutput
from tiny_lm import CONTEXT, make_sae, make_texts
from transformer_lens import HookedTransformer

from sae_lens_cosine.saebench.core_eval import run_core


def test_both_sources_agree_where_saebench_is_right(
    model: HookedTransformer, tmp_path: Path
) -> None:
    texts = [t for rows in make_texts("t", n_train=60).train.values() for t in rows]
    settings = {"contexts": 16, "context_size": 12, "output": tmp_path}
    saes = {"sae": make_sae("topk", k=4), "zero": make_sae()}
    with torch.no_grad():
        saes["zero"].W_enc.zero_()
        saes["zero"].b_enc.fill_(-1.0)
    found = run_core(saes, model=model, texts=texts, **settings)
    for result in found.values():
        theirs, ours = result["saebench"], result["sae_lens_cosine"]
        # SAEBench leaves predictions at BOS tokens, one in nine here, out of its means.
        losses = theirs["model_performance_preservation"]
        for one, other in (
            ("clean", "ce_loss_without_sae"),
            ("ablated", "ce_loss_with_ablation"),
            ("spliced", "ce_loss_with_sae"),
        ):
            assert ours["loss"][one] == pytest.approx(losses[other], rel=0.2)
    assert found["sae"]["saebench"]["sparsity"]["l0"] == pytest.approx(
        found["sae"]["sae_lens_cosine"]["reconstruction"]["all_tokens"]["l0"], abs=0.5
    )
    # A reconstruction of zero: SAEBench's cosine is NaN, written as -1; ours says 0.
    zero = found["zero"]
    assert zero["saebench"]["reconstruction_quality"]["cossim"] == -1
    assert zero["sae_lens_cosine"]["reconstruction"]["all_tokens"]["norm_ratio"] < 1e-6
    assert zero["saebench"]["misc_metrics"]["frac_alive"] == 0

    files = sorted((tmp_path / "core").iterdir())
    assert [f.name.split("_")[0] for f in files] == ["sae", "zero"]
    for path in files:
        TypeAdapter(CoreEvalOutput).validate_python(json.loads(path.read_text()))
    assert run_core(saes, model=model, texts=texts, **settings) == found
    assert sorted((tmp_path / "core").iterdir()) == files
    files[1].write_text('{"eval_id": ')
    with pytest.raises(
        ValueError, match=f"{files[1].name} is damaged .*: delete it, or"
    ):
        run_core(saes, model=model, texts=texts, **settings)


def test_bad_requests(model: HookedTransformer, tmp_path: Path) -> None:
    for settings, message in (
        ({"context_size": CONTEXT}, "fill"),
        ({"contexts": 9}, "contexts=9 must be a multiple of batch_size=8"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number, 1 or more"),
        ({"context_size": CONTEXT + 1}, f"is more than the {CONTEXT} tokens that the"),
    ):
        with pytest.raises(ValueError, match=message):
            run_core(
                [make_sae()], model=model, texts=["a"], output=tmp_path, **settings
            )
    assert not list(tmp_path.iterdir())
