"""Sparse probing against direct calls of SAEBench, and against known answers."""

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from sae_bench.evals.sparse_probing import main as saebench
from sae_bench.sae_bench_utils import (
    activation_collection,
    dataset_utils,
    general_utils,
)
from sae_lens import SAE, StandardSAE
from tiny_lm import (
    CONTEXT,
    EMBEDDING,
    MARKERS,
    RESIDUAL,
    Probe,
    make_sae,
    make_texts,
)
from torch import nn
from transformer_lens import HookedTransformer

from sae_lens_cosine.labelled_texts import LabelledTexts

# The adapter hides this one; direct calls of SAEBench raise it for every probe.
pytestmark = pytest.mark.filterwarnings("ignore:'penalty' was deprecated")


@pytest.fixture
def no_shape_checks():
    """SAEBench's annotations fail under beartype 0.23, so direct calls need this."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def activations_by_saebench(
    texts: LabelledTexts, model: HookedTransformer, hook: str, layer: int
) -> list[dict[str, torch.Tensor]]:
    """Train and test activations, by the calls of SAEBench's hub mode."""
    return [
        activation_collection.get_all_llm_activations(
            dataset_utils.tokenize_data_dictionary(
                dict(split), model.tokenizer, CONTEXT, "cpu"
            ),
            model,
            7,
            layer,
            hook,
            mask_bos_pad_eos_tokens=True,
        )
        for split in (texts.train, texts.test)
    ]


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("architecture", "cfg"),
    [
        ("standard", {}),
        ("jumprelu", {}),
        ("topk", {"k": 4}),
        ("cosine_jumprelu", {}),
        ("cosine_topk", {"k": 4}),
    ],
)
def test_equals_a_direct_call_of_run_eval_single_sae(
    probe: Probe,
    model: HookedTransformer,
    tmp_path: Path,
    architecture: str,
    cfg: dict[str, Any],
) -> None:
    sae = make_sae(architecture, **cfg)
    datasets = [make_texts("first"), make_texts("second", seed=1)]
    ours = probe(sae, *datasets)

    for texts in datasets:
        train, test = activations_by_saebench(texts, model, RESIDUAL, 1)
        acts = {"train": train, "test": test, "llm_results": {}}
        torch.save(acts, tmp_path / f"{texts.name}_activations.pt")
    _, formatted, _ = general_utils.load_and_format_sae(  # type: ignore[misc]
        "direct", copy.deepcopy(sae), "cpu"
    )
    means, per_class = saebench.run_eval_single_sae(
        ours.eval_config, formatted, model, "cpu", str(tmp_path), save_activations=False
    )

    got = asdict(ours.eval_result_metrics.sae)
    assert {k: v for k, v in got.items() if v is not None} == {
        k: v for k, v in means.items() if k.startswith("sae_")
    }
    for texts in datasets:
        result = f"{texts.name}_results"
        got = ours.eval_result_unstructured[result]
        assert {k: v for k, v in got.items() if k.startswith("sae_")} == per_class[
            result
        ]


@pytest.mark.usefixtures("no_shape_checks")
def test_llm_baseline_equals_saebench_on_a_cold_cache(
    probe: Probe,
    model: HookedTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = make_texts("cold")
    ours = probe(make_sae(), texts)

    # SAEBench's own computation of the baseline, with only its hub data replaced.
    acts = activations_by_saebench(texts, model, RESIDUAL, 1)
    monkeypatch.setattr(saebench, "get_dataset_activations", lambda *_: acts)
    _, formatted, _ = general_utils.load_and_format_sae(  # type: ignore[misc]
        "direct", copy.deepcopy(make_sae()), "cpu"
    )
    means, _ = saebench.run_eval_single_sae(
        ours.eval_config, formatted, model, "cpu", str(tmp_path), save_activations=False
    )

    got = asdict(ours.eval_result_metrics.llm)
    assert {k: v for k, v in got.items() if v is not None} == {
        k: v for k, v in means.items() if k.startswith("llm_")
    }


class IdentitySAE(StandardSAE):
    """Latents are the channels: unit weights, no biases, no ReLU."""

    def __init__(self, cfg: Any, use_error_term: bool = False) -> None:
        super().__init__(cfg, use_error_term)
        with torch.no_grad():
            if self.W_enc.device.type != "meta":
                self.W_enc.copy_(torch.eye(cfg.d_in))
                self.W_dec.copy_(torch.eye(cfg.d_in))

    def get_activation_fn(self) -> nn.Identity:
        return nn.Identity()


def test_identity_sae_equals_the_llm_channel_probe(
    probe: Probe, colours: LabelledTexts
) -> None:
    output = probe(IdentitySAE(make_sae(d_sae=32).cfg), colours)
    llm = asdict(output.eval_result_metrics.llm)
    sae = asdict(output.eval_result_metrics.sae)
    assert sae == {key.replace("llm", "sae"): value for key, value in llm.items()}


def test_constant_sae_scores_chance(probe: Probe, colours: LabelledTexts) -> None:
    sae = make_sae()
    with torch.no_grad():
        sae.W_enc.zero_()
        sae.b_enc.fill_(-1.0)  # ReLU(-1) = 0 for every token
    metrics = probe(sae, colours).eval_result_metrics.sae
    # Balanced classes and latents that say nothing: every probe answers one class.
    assert metrics.sae_top_1_test_accuracy == 0.5
    assert metrics.sae_top_5_test_accuracy == 0.5


def reader_of_markers(model: HookedTransformer, copies: int = 1) -> SAE[Any]:
    """Three latents, one for each colour word, and their copies; nothing else fires."""
    # 15 tokens in 32 dimensions: there are encoder columns that read 1 on one token
    # and 0 on all others.
    n = len(MARKERS) * copies
    sae = make_sae(hook=EMBEDDING, d_sae=max(48, n))
    ids = [model.tokenizer.convert_tokens_to_ids(word) for word in MARKERS]  # type: ignore[union-attr]
    with torch.no_grad():
        one_hot = torch.eye(model.cfg.d_vocab)[:, ids * copies]
        sae.W_enc.zero_()
        sae.W_enc[:, :n] = torch.linalg.pinv(model.W_E) @ one_hot
        sae.b_enc.fill_(-0.5)
        sae.W_enc[:, :n] *= 20  # away from the regularisation of the regression
    return sae


def test_planted_features_score_one_at_k_1(
    probe: Probe, model: HookedTransformer, colours: LabelledTexts
) -> None:
    sae = reader_of_markers(model)
    output = probe(sae, colours)
    assert output.eval_result_metrics.sae.sae_top_1_test_accuracy == 1.0
    assert output.eval_result_metrics.llm.llm_top_1_test_accuracy < 1.0


def test_probes_without_a_right_answer_score_zero(
    probe: Probe, model: HookedTransformer
) -> None:
    # So many latents that the first epoch learns the words, which the test swaps.
    sae = reader_of_markers(model, copies=400)
    texts = LabelledTexts(
        "swapped",
        train={"red": ["red a"], "green": ["green a"]},
        test={"red": ["green a"], "green": ["red a"]},
    )
    with (
        pytest.warns(UserWarning, match="2 of 2 test texts are training texts too"),
        pytest.warns(UserWarning, match="1 test rows, so that one prompt moves"),
    ):
        metrics = probe(sae, texts).eval_result_metrics.sae
    assert metrics.sae_test_accuracy == 0
    assert metrics.sae_top_1_test_accuracy == 0


def test_folding_leaves_the_probes_of_a_rescaling_topk_unchanged(
    probe: Probe, colours: LabelledTexts
) -> None:
    # With `rescale_acts_by_decoder_norm` latents already carry the decoder norm, so
    # the same SAE with rows of norm 0.1 to 10 has the same latents.
    sae = make_sae("topk", k=4, rescale_acts_by_decoder_norm=True)
    scaled = copy.deepcopy(sae)
    with torch.no_grad():
        norms = torch.logspace(-1, 1, 48)[:, None]
        scaled.W_dec *= norms
        scaled.W_enc /= norms.T
        scaled.b_enc /= norms[:, 0]
    got, expected = probe(scaled, colours), probe(sae, colours)
    for key, value in asdict(expected.eval_result_metrics.sae).items():
        # Rounding may move a prompt across a probe's boundary: 1 of 24.
        if value is not None:
            assert getattr(got.eval_result_metrics.sae, key) == pytest.approx(
                value, abs=1.01 / 24
            )
