"""The probing gap between two SAEs, split into discovery and separability."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sae_lens import SAE
from tiny_lm import CONTEXT, EMBEDDING, MARKERS, make_sae, make_texts
from transformer_lens import HookedTransformer

from sae_lens_cosine.analysis import FeatureMatching
from sae_lens_cosine.analysis.probing_gap import ProbingGap, probing_gap


def detector(model: HookedTransformer, colours: list[int], noise: float) -> SAE[Any]:
    """Latent i fires on word ``colours[i]``; all others are silent.

    With noise it also fires on filler words, so that its classes overlap.
    """
    sae = make_sae(hook=EMBEDDING)
    ids = [model.tokenizer.convert_tokens_to_ids(MARKERS[i]) for i in colours]  # type: ignore[union-attr]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        wanted = torch.eye(model.cfg.d_vocab)[:, ids]
        wanted += noise * torch.rand(wanted.shape, generator=generator)
        sae.W_enc.zero_()
        sae.W_enc[:, : len(ids)] = torch.linalg.pinv(model.W_E) @ wanted
        sae.b_enc.fill_(-0.1)
    return sae


def matching_of(latents: list[int], d_sae: int = 48) -> FeatureMatching:
    """Latent i of one SAE is latent i of the other, for these latents."""
    rest = np.setdiff1d(np.arange(d_sae), latents)
    ones = np.ones(len(latents))
    return FeatureMatching(
        latents_a=np.array(latents),
        latents_b=np.array(latents),
        decoder_cosines=ones,
        correlations=ones,
        unmatched_a=rest,
        unmatched_b=rest,
        sink_latents_a=np.array([]),
        sink_latents_b=np.array([]),
        matched_share_a=1.0,
        matched_share_b=1.0,
        n_tokens=1,
        n_cut_short=0,
    )


@pytest.fixture
def split(model: HookedTransformer, tmp_path: Path) -> Any:
    def run(a: SAE[Any], b: SAE[Any], latents: list[int], k: int = 1) -> ProbingGap:
        gaps = probing_gap(
            {"a": a, "b": b},
            matching_of(latents),
            model=model,
            datasets=[make_texts("t")],
            artifacts_dir=tmp_path,
            context_size=CONTEXT,
            ks=(k,),
            show_progress=False,
        )
        assert list(gaps) == [k]
        return gaps[k]

    return run


def test_a_feature_that_only_one_has_is_discovery(model: HookedTransformer, split: Any):
    # Both tell red and green; only a has a latent for blue.
    gap = split(detector(model, [0, 1, 2], 0.0), detector(model, [0, 1], 0.0), [0, 1])
    assert gap.gap > 0.05
    assert gap.separability == 0.0
    assert gap.discovery == gap.gap
    assert gap.discovery_share == 1.0
    assert gap.n_matched == 2


def test_the_same_features_less_clean_are_separability(
    model: HookedTransformer, split: Any
):
    clean, noisy = (detector(model, [0, 1, 2], noise) for noise in (0.0, 3.0))
    gap = split(clean, noisy, [0, 1, 2])
    assert gap.gap > 0.05
    # Unmatched latents are silent here. SAEBench's probe on all latents draws other
    # random numbers when there are fewer, which moves a probe of 36 prompts a little.
    assert gap.separability > 2 * abs(gap.discovery)
    assert gap.discovery == gap.gap - gap.separability


def test_no_gap_has_no_parts(model: HookedTransformer, split: Any):
    sae = detector(model, [0, 1, 2], 0.0)
    gap = split(sae, sae, [0, 1, 2])
    assert (gap.gap, gap.separability, gap.discovery) == (0.0, 0.0, 0.0)
    assert gap.discovery_share is None


def test_unusable_input_is_refused(model: HookedTransformer, split: Any):
    sae = detector(model, [0, 1, 2], 0.0)
    with pytest.raises(ValueError, match=r"k=2 is more than .*'a'"):
        split(sae, sae, [0], k=2)
    with pytest.raises(ValueError, match="1 SAEs: a gap is between two"):
        probing_gap({"a": sae}, matching_of([0]))
