"""Features by norm, against arithmetic by hand and a brute-force oracle."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import activations, linear_sae
from hypothesis import given, settings
from hypothesis import strategies as st
from sae_lens import BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig

from sae_lens_cosine.analysis import (
    NormFeatures,
    norm_detectors,
    norm_features,
    norm_quartile_edges,
    sink_norm_limit,
)
from sae_lens_cosine.evaluation import encode

EDGES = (1.0, 2.0, 3.0)


def test_shares_by_hand():
    # latents relu(x), relu(-x). Norms 1 | 2 | 2.5 | 4, 5 | sink 100
    x = torch.tensor([[1.0], [2.0], [-2.5], [4.0], [5.0], [100.0]])
    found = norm_features(
        linear_sae(1), [x], sink_norm_limit=10.0, quartile_edges=EDGES
    )
    assert found.n_tokens == 6
    assert found.n_sinks == 1
    assert found.quartile_tokens.tolist() == [1, 1, 1, 2]
    assert found.firings.tolist() == [4, 1]
    # the first fires on 1, 2, 4, 5 and the sink; the second on the third token
    np.testing.assert_allclose(found.density, [5 / 6, 1 / 6])
    np.testing.assert_allclose(
        found.firing_shares, [[1 / 4, 1 / 4, 0, 2 / 4], [0, 0, 1, 0]]
    )
    # masses 1, 2, 4 + 5 of 12
    np.testing.assert_allclose(
        found.mass_shares, [[1 / 12, 2 / 12, 0, 9 / 12], [0, 0, 1, 0]]
    )
    np.testing.assert_allclose(found.sink_firing_share, [1 / 5, 0])
    np.testing.assert_allclose(found.sink_mass_share, [100 / 112, 0])
    assert found.dead_age.tolist() == [0, 3]

    detectors = norm_detectors(found, above=0.4)
    assert detectors.n_latents == 2
    assert detectors.firings_in_q4 == pytest.approx(2 / 5)  # of 4 + 1 firings
    assert detectors.norm_detector_share == 0.5
    assert norm_detectors(found, [1]).firings_in_q4 == 0.0


def test_silent_latents_have_no_shares_and_are_no_detectors():
    x = torch.tensor([[1.0], [2.0]])
    found = norm_features(
        linear_sae(1), [x], sink_norm_limit=10.0, quartile_edges=EDGES
    )
    assert np.isnan(found.firing_shares[1]).all()
    assert np.isnan(found.sink_firing_share[1])
    assert math.isnan(found.log_norm_correlation[1])
    assert found.dead_age[1] == 2  # it never fired
    assert norm_detectors(found).n_latents == 1
    nothing = norm_detectors(found, [1])
    assert (nothing.n_latents, nothing.firings_in_q4) == (0, None)
    assert nothing.norm_detector_share is None


def test_reserved_latents_are_left_out_of_the_detectors():
    sae = linear_sae(1)
    sae.sink_latents = [0]  # type: ignore[assignment]
    x = torch.tensor([[4.0], [-1.0]])
    found = norm_features(sae, [x], sink_norm_limit=10.0, quartile_edges=EDGES)
    assert found.sink_latents.tolist() == [0]
    assert norm_detectors(found).firings_in_q4 == 0.0


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 60), max_size=6), seed=st.integers(0, 1000))
def test_any_split_equals_brute_force(cuts: list[int], seed: int):
    x = activations(60, seed, d_in=4).double()
    x[3] *= 137
    x[7] = 0  # has no log norm
    sae = linear_sae(4)
    sae.b_dec.data += 4.0  # so that latents are silent on part of the tokens
    limit = sink_norm_limit(x)
    edges = norm_quartile_edges(x, limit)
    bounds = [0, *sorted(cuts), 60]
    found = norm_features(
        sae,
        (x[a:b] for a, b in pairwise(bounds)),
        sink_norm_limit=limit,
        quartile_edges=edges,
    )
    acts, norms = encode(sae, x), x.norm(dim=1)
    ordinary = norms <= limit
    lower = [-1.0, *edges]
    upper = [*edges, limit]
    for latent in range(8):
        a = acts[:, latent]
        fires = a != 0
        assert found.density[latent] == fires.double().mean()
        if not (fires & ordinary).any():
            continue
        for q, (low, high) in enumerate(zip(lower, upper, strict=True)):
            inside = (norms > low) & (norms <= high)
            share = (fires & inside).sum() / (fires & ordinary).sum()
            assert found.firing_shares[latent, q] == pytest.approx(share.item())
            mass = a[inside].abs().sum() / a[ordinary].abs().sum()
            assert found.mass_shares[latent, q] == pytest.approx(mass.item())
        sink_mass = a[~ordinary].abs().sum() / a.abs().sum()
        assert found.sink_mass_share[latent] == pytest.approx(sink_mass.item())
        counted = ordinary & (norms > 0)
        r = np.corrcoef(a[counted].detach(), norms[counted].log())[0, 1]
        assert found.log_norm_correlation[latent] == pytest.approx(r, abs=1e-9)
        assert found.dead_age[latent] == 59 - int(fires.nonzero().max())


def test_json_comes_back():
    x = torch.tensor([[1.0], [2.0]])
    found = norm_features(
        linear_sae(1), [x], sink_norm_limit=10.0, quartile_edges=EDGES
    )
    text = found.model_dump_json()
    assert "NaN" not in text
    assert NormFeatures.model_validate_json(text).model_dump_json() == text


def test_unusable_input_is_refused():
    kw = {"sink_norm_limit": 10.0, "quartile_edges": EDGES}
    with pytest.raises(ValueError, match="generator that an earlier call has used up"):
        norm_features(linear_sae(2), [], **kw)
    with pytest.raises(ValueError, match="width 3"):
        norm_features(linear_sae(2), [torch.ones(2, 3)], **kw)
    sae = BatchTopKTrainingSAE(BatchTopKTrainingSAEConfig(d_in=2, d_sae=4, k=1))
    with pytest.raises(TypeError, match="save_inference_model"):
        norm_features(sae, [torch.ones(2, 2)], **kw)
