"""The attention-sink control: the same tokens left out for every SAE."""

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from sae_bench.evals.sparse_probing import main as saebench
from sae_bench.sae_bench_utils import (
    activation_collection,
    dataset_utils,
    general_utils,
)
from tiny_lm import CONTEXT, EMBEDDING, MARKERS, make_model, make_sae, make_texts
from transformer_lens import HookedTransformer

from sae_lens_cosine.labelled_texts import LabelledTexts
from sae_lens_cosine.saebench import ProbingReport, run_sparse_probing
from sae_lens_cosine.saebench.host import saebench_session

SINK_NORM = 300.0


@pytest.fixture(scope="module")
def sinking() -> HookedTransformer:
    """Position 1, the first real token after BOS, is a hundred times longer."""
    model = make_model()
    with torch.no_grad():
        model.W_pos[1, 0] = SINK_NORM
    return model


def detector(model: HookedTransformer) -> Any:
    """Latents 0 to 2 fire on one colour each, and a little on the sink; 3 is a sink's.

    The sink excites the colour latents by chance: by an amount that varies with the
    token, and exceeds what the colour itself does.
    """
    sae = make_sae(hook=EMBEDDING)
    ids = [model.tokenizer.convert_tokens_to_ids(word) for word in MARKERS]  # type: ignore[union-attr]
    with torch.no_grad():
        one_hot = torch.eye(model.cfg.d_vocab)[:, ids]
        sae.W_enc.zero_()
        sae.W_enc[:, :3] = 20 * torch.linalg.pinv(model.W_E) @ one_hot
        sae.b_enc.fill_(-1.0)
        sae.W_enc[0, 3] = 1.0  # fires on position 1 alone
    return sae


def run(model: HookedTransformer, saes: Any, folder: Path, **kwargs: Any) -> Any:
    settings = {"datasets": [make_texts("t")], "context_size": CONTEXT, "ks": (1, 2)}
    return run_sparse_probing(
        saes,
        model=model,
        artifacts_dir=folder,
        show_progress=False,
        **settings | kwargs,
    )


def top_1(report: ProbingReport, name: str = "sae", masking: str = "none") -> float:
    metrics = report.outputs[masking][name].eval_result_metrics.sae  # type: ignore[index]
    return metrics.sae_top_1_test_accuracy


@pytest.mark.parametrize("masking", ["norm", "first_token"])
def test_both_columns_and_the_share_of_masked_tokens(
    sinking: HookedTransformer, tmp_path: Path, masking: Any
) -> None:
    texts = make_texts("t")
    saes = {"sae": detector(sinking), "other": make_sae(hook=EMBEDDING, seed=3)}
    report = run(sinking, saes, tmp_path, mask_sinks=masking, output=tmp_path / "out")

    # The mean over a prompt is the sink's unless it is left out.
    masked = report["sae"].eval_result_metrics.sae
    assert masked == report.outputs[masking]["sae"].eval_result_metrics.sae
    assert top_1(report) < top_1(report, masking=masking)
    plain = run(sinking, saes, tmp_path)
    for name in saes:
        assert plain[name].eval_result_metrics == (
            report.outputs["none"][name].eval_result_metrics
        )

    prompts = [
        p for t in (texts.train, texts.test) for rows in t.values() for p in rows
    ]
    share = len(prompts) / sum(len(p.split()) for p in prompts)
    note = report.summary.datasets[masking]["t"]
    assert note["masked_share"] == pytest.approx(share)
    assert report.summary.datasets["none"]["t"]["masked_share"] == 0
    unstructured = report["other"].eval_result_unstructured["sae_lens_cosine"]
    assert unstructured["mask_sinks"] == masking
    assert unstructured["datasets"]["t"] == note
    table = report.tables()[0]
    headings = [str(column.header) for column in table.columns]
    assert headings == ["SAE", "k", "all tokens", "LLM", "sinks masked", "LLM"]
    assert f"Masked ({masking}): {100 * share:.1f}% of tokens." in str(table.caption)

    # One file for each column, so that neither is taken for the other.
    assert len(list((tmp_path / "out" / "sparse_probing").iterdir())) == 4
    again = run(sinking, saes, tmp_path, mask_sinks=masking, output=tmp_path / "out")
    assert again.summary == report.summary
    assert again["sae"] == report["sae"]


def test_masked_numbers_equal_saebench_on_zeroed_rows(
    sinking: HookedTransformer, tmp_path: Path
) -> None:
    texts = make_texts("t")
    sae = make_sae("topk", hook=EMBEDDING, k=4)
    ours = run(sinking, {"sae": sae}, tmp_path / "ours", mask_sinks="norm")["sae"]

    with saebench_session(torch.device("cpu")):
        acts: dict[str, Any] = {"llm_results": {}}
        for split, rows in (("train", texts.train), ("test", texts.test)):
            acts[split] = activation_collection.get_all_llm_activations(
                dataset_utils.tokenize_data_dictionary(
                    dict(rows), sinking.tokenizer, CONTEXT, "cpu"
                ),
                sinking,
                32,
                0,
                EMBEDDING,
                mask_bos_pad_eos_tokens=True,
            )
            for label, x in acts[split].items():
                acts[split][label] = x * (x.norm(dim=-1) < SINK_NORM / 2)[..., None]
        torch.save(acts, tmp_path / "t_activations.pt")
        _, formatted, _ = general_utils.load_and_format_sae(  # type: ignore[misc]
            "direct", copy.deepcopy(sae), "cpu"
        )
        means, _ = saebench.run_eval_single_sae(
            ours.eval_config, formatted, sinking, "cpu", str(tmp_path), False
        )
    got = asdict(ours.eval_result_metrics.sae)
    assert {k: v for k, v in got.items() if v is not None} == {
        k: v for k, v in means.items() if k.startswith("sae_")
    }


def test_sink_latents_are_no_candidates_unless_asked_for(
    sinking: HookedTransformer, tmp_path: Path
) -> None:
    # Latent 3 is huge on the sink alone, so its mean is 1 / length of the prompt: no
    # class, but a larger difference of class means than the other latents have.
    reserving = detector(sinking)
    reserving.sink_latents = [3]
    without = run(sinking, {"sae": reserving}, tmp_path)["sae"]
    included = run(sinking, {"sae": reserving}, tmp_path, include_sink_latents=True)
    plain = detector(sinking)
    assert included["sae"].eval_result_metrics.sae == (
        run(sinking, {"sae": plain}, tmp_path)["sae"].eval_result_metrics.sae
    )
    notes = without.eval_result_unstructured["sae_lens_cosine"]
    assert notes["sink_latents_left_out"] == 1
    # The same SAE without the latent at all.
    smaller = make_sae(hook=EMBEDDING, d_sae=47)
    others = [latent for latent in range(48) if latent != 3]
    with torch.no_grad():
        smaller.W_enc.copy_(plain.W_enc[:, others])
        smaller.W_dec.copy_(plain.W_dec[others])
        smaller.b_enc.copy_(plain.b_enc[others])
    expected = run(sinking, {"sae": smaller}, tmp_path)["sae"].eval_result_metrics.sae
    assert without.eval_result_metrics.sae == expected
    assert without.sae_lens_id != included["sae"].sae_lens_id
    assert reserving.sink_latents == [3]


def test_sink_latents_that_do_not_exist(
    sinking: HookedTransformer, tmp_path: Path
) -> None:
    sae = make_sae(hook=EMBEDDING)
    sae.sink_latents = [48]  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"sink_latents=\[48\].*d_sae=48"):
        run(sinking, {"x": sae}, tmp_path)
    sae.sink_latents = list(range(47))  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"k=2 .* d_sae=1 .*47 sink latents left out"):
        run(sinking, {"x": sae}, tmp_path)


def test_prompts_of_sinks_only_are_dropped_and_counted(
    sinking: HookedTransformer, tmp_path: Path
) -> None:
    whole = make_texts("t")
    train = {label: list(rows) for label, rows in whole.train.items()}
    train["red"][0] = "red"  # one token, the first
    texts = LabelledTexts("t", train, whole.test)
    report = run(
        sinking,
        {"x": make_sae(hook=EMBEDDING)},
        tmp_path,
        datasets=[texts],
        mask_sinks="first_token",
    )
    notes = report.summary.datasets
    assert notes["none"]["t"]["rows"]["train"]["red"] == 24
    assert set(notes["first_token"]["t"]["rows"]["train"].values()) == {23}
    assert notes["first_token"]["t"]["dropped"] == {"train prompts of sinks only": 1}


def test_unknown_masking(sinking: HookedTransformer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mask_sinks='all' is unknown.*'first_token'"):
        run(sinking, {"x": make_sae(hook=EMBEDDING)}, tmp_path, mask_sinks="all")
    assert not list(tmp_path.iterdir())
