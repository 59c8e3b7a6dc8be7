"""SAEs of which SAEBench's evals, or some of them, would make nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sae_bench.evals.sparse_probing import main as saebench
from sae_bench.sae_bench_utils import general_utils
from sae_lens import SAE
from three_evals import TEXTS, core, last_token, probing
from tiny_lm import CONTEXT, RESIDUAL, make_sae
from transformer_lens import HookedTransformer

from sae_lens_cosine.saebench.activations import tokenize
from sae_lens_cosine.saebench.host import saebench_session


def temporal_sae() -> SAE[Any]:
    return make_sae("temporal", n_heads=2, bottleneck_factor=8, kval_topk=4)


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
