"""SAEs of which SAEBench's evals, or some of them, would make nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sae_bench.evals.sparse_probing import main as saebench
from sae_bench.sae_bench_utils import general_utils
from sae_lens import SAE
from tiny_lm import CONTEXT, RESIDUAL, make_sae, make_texts
from transformer_lens import HookedTransformer

from sae_lens_cosine.saebench import run_sparse_probing
from sae_lens_cosine.saebench.activations import tokenize
from sae_lens_cosine.saebench.core_eval import run_core
from sae_lens_cosine.saebench.host import saebench_session
from sae_lens_cosine.saebench.sae_probes_eval import run_sae_probes

TEXTS = make_texts("demo/colours", n_train=60)


def temporal_sae() -> SAE[Any]:
    return make_sae("temporal", n_heads=2, bottleneck_factor=8, kval_topk=4)


def probing(saes: Any, model: HookedTransformer, folder: Path) -> Any:
    return run_sparse_probing(
        saes,
        model=model,
        datasets=TEXTS,
        output=folder,
        context_size=CONTEXT,
        show_progress=False,
    )


def core(saes: Any, model: HookedTransformer, folder: Path) -> Any:
    texts = [text for rows in TEXTS.train.values() for text in rows]
    return run_core(saes, model=model, texts=texts, output=folder, context_size=CONTEXT)


def last_token(saes: Any, model: HookedTransformer, folder: Path) -> Any:
    return run_sae_probes(saes, model=model, output=folder, datasets=["95_toxic_is"])


@pytest.mark.parametrize("evaluate", [probing, core, last_token])
def test_sae_that_reads_other_tokens(
    model: HookedTransformer, tmp_path: Path, evaluate: Any
) -> None:
    saes = {"fine": make_sae(), "x": temporal_sae()}
    with pytest.raises(TypeError, match=r"'x' is a TemporalSAE.*run_eval, which"):
        evaluate(saes, model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_its_way_out_works(model: HookedTransformer, tmp_path: Path) -> None:
    config = probing([make_sae()], model, tmp_path)["sae_0"].eval_config
    texts = tokenize(TEXTS, model, CONTEXT)
    with saebench_session(torch.device("cpu")):
        _, acts = model.run_with_cache(texts.ids, names_filter=RESIDUAL)
        padded = acts[RESIDUAL] * texts.real[..., None]
        by_class = {
            split: {label: padded[prompts] for label, prompts in rows.items()}
            for split, rows in texts.rows.items()
        }
        path = tmp_path / "demo_colours_activations.pt"
        torch.save({**by_class, "llm_results": {}}, path)
        _, sae, _ = general_utils.load_and_format_sae("x", temporal_sae(), "cpu")  # type: ignore[misc]
        metrics, _ = saebench.run_eval_single_sae(
            config, sae, model, "cpu", str(tmp_path), save_activations=False
        )
    assert metrics["sae_test_accuracy"] > 0.6  # type: ignore[operator]


def test_transcoder_is_probed_but_has_no_reconstruction(
    model: HookedTransformer, tmp_path: Path
) -> None:
    cfg: dict[str, Any] = {"apply_b_dec_to_input": False}
    sae = make_sae("jumprelu_transcoder", d_out=16, **cfg)
    with pytest.raises(TypeError, match="JumpReLUTranscoder, which reads"):
        core({"x": sae}, model, tmp_path)
    assert not list(tmp_path.iterdir())
    # Its latents are those of a JumpReLU SAE with the same encoder, whatever it writes.
    twin = make_sae("jumprelu", **cfg)
    encoder = {key: sae.state_dict()[key] for key in ("W_enc", "b_enc", "threshold")}
    twin.load_state_dict(twin.state_dict() | encoder)
    found = probing({"x": sae, "twin": twin}, model, tmp_path)
    assert found["x"].eval_result_metrics == found["twin"].eval_result_metrics
