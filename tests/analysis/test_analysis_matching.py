"""Feature matching against a brute-force oracle."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from helpers import linear_sae
from hypothesis import given, settings
from hypothesis import strategies as st
from sae_lens import StandardSAE, StandardSAEConfig

from sae_lens_cosine.analysis import decoder_cosines, match_features, matching
from sae_lens_cosine.evaluation import encode


def random_sae(seed: int, d_in: int = 5, d_sae: int = 16) -> StandardSAE:
    """Few dimensions, so that directions come close; biases that keep it sparse."""
    torch.manual_seed(seed)
    sae = StandardSAE(StandardSAEConfig(d_in=d_in, d_sae=d_sae, dtype="float64"))
    sae.W_dec.data = torch.randn(d_sae, d_in, dtype=torch.float64)
    sae.W_enc.data = sae.W_dec.data.T.clone()
    sae.b_enc.data -= 1.0
    return sae


def oracle(
    a: StandardSAE, b: StandardSAE, x: torch.Tensor, least: float
) -> dict[tuple[int, int], tuple[float, float]]:
    """Every pair, one after the other."""
    acts_a, acts_b = (encode(sae, x).numpy() for sae in (a, b))
    passed: dict[tuple[int, int], tuple[float, float]] = {}
    for i, j in product(range(a.cfg.d_sae), range(b.cfg.d_sae)):
        u, v = a.W_dec[i].detach().numpy(), b.W_dec[j].detach().numpy()
        cosine = u @ v / np.linalg.norm(u) / np.linalg.norm(v)
        if acts_a[:, i].std() == 0 or acts_b[:, j].std() == 0:
            continue
        correlation = np.corrcoef(acts_a[:, i], acts_b[:, j])[0, 1]
        if min(cosine, correlation) >= least:
            passed[i, j] = (cosine, correlation)

    def is_best(pair: tuple[int, int], side: int) -> bool:
        rivals = [other for other in passed if other[side] == pair[side]]
        return pair == max(rivals, key=lambda other: sum(passed[other]))

    return {p: s for p, s in passed.items() if is_best(p, 0) and is_best(p, 1)}


@settings(max_examples=30, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 80), max_size=5),
    seed=st.integers(0, 1000),
    block=st.integers(1, 100),
    products=st.integers(1, 1000),
)
def test_equals_brute_force_whatever_the_batches(
    cuts: list[int], seed: int, block: int, products: int
):
    a, b = random_sae(seed), random_sae(seed + 1, d_sae=21)
    x = torch.randn(80, 5, generator=torch.Generator().manual_seed(seed)).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_cosines, "_CELLS", block)
        patch.setattr(matching, "_CELLS", products)
        found = match_features(
            a,
            b,
            (x[i:j] for i, j in pairwise([0, *sorted(cuts), 80])),
            min_cosine=0.6,
            min_correlation=0.6,
        )
    expected = oracle(a, b, x, 0.6)
    pairs = list(zip(found.latents_a.tolist(), found.latents_b.tolist(), strict=True))
    assert pairs == sorted(expected)
    for pair, cosine, correlation in zip(
        pairs, found.decoder_cosines, found.correlations, strict=True
    ):
        assert (cosine, correlation) == pytest.approx(expected[pair])
    assert sorted({*found.unmatched_a, *found.latents_a}) == list(range(16))
    assert sorted({*found.unmatched_b, *found.latents_b}) == list(range(21))
    alive = int((encode(a, x) != 0).any(0).sum())
    assert found.matched_share_a == len(pairs) / alive


def test_a_permuted_sae_is_matched_to_itself():
    a, order = random_sae(0), torch.randperm(16)
    b = random_sae(0)
    b.W_dec.data, b.W_enc.data = a.W_dec[order], 3 * a.W_enc[:, order]
    b.b_enc.data = 3 * a.b_enc[order]  # activations in another unit
    x = torch.randn(200, 5).double()
    found = match_features(a, b, x.split(50))
    assert order[found.latents_b].tolist() == found.latents_a.tolist()
    assert found.correlations == pytest.approx(1)
    assert found.matched_share_a == found.matched_share_b == 1.0


def test_both_conditions_are_needed():
    # Of two SAEs with rows +-1, latents relu(x), relu(-x): the second one's encoder
    # is turned, so that like directions answer to opposite tokens.
    a, b = linear_sae(1), linear_sae(1)
    b.W_enc.data = -b.W_enc.data
    x = torch.tensor([[1.0], [2.0], [-1.0]])
    assert match_features(a, a, [x]).latents_a.tolist() == [0, 1]
    assert match_features(a, b, [x]).latents_a.tolist() == []
    assert match_features(a, b, [x], min_correlation=-1).latents_a.tolist() == [0, 1]


def test_sinks_do_not_make_everything_correlate():
    # x0 and x1 never go together, except on one sink: then r is 0.999.
    a = linear_sae(2)
    b = linear_sae(2)
    b.W_enc.data = b.W_enc.data[:, [1, 0, 2, 3]]  # latent 0 reads x1, writes e0
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [100.0, 100.0]])
    assert 0 in match_features(a, b, [x]).latents_a
    assert match_features(a, b, [x], sink_norm_limit=10.0).latents_a.tolist() == []
    with pytest.raises(ValueError, match=r"within sink_norm_limit=0\.5"):
        match_features(a, b, [x], sink_norm_limit=0.5)


def test_sink_latents_are_set_apart():
    a, b = linear_sae(2), linear_sae(2)
    b.sink_latents = [1, 3]  # type: ignore[assignment]
    x = torch.randn(50, 2)
    found = match_features(a, b, [x])
    assert found.latents_b.tolist() == [0, 2]
    assert found.unmatched_a.tolist() == [1, 3]
    assert found.unmatched_b.tolist() == []
    assert found.sink_latents_b.tolist() == [1, 3]
    assert (found.matched_share_a, found.matched_share_b) == (0.5, 1.0)


def test_crowded_latents_are_counted():
    a = linear_sae(1)
    b = StandardSAE(StandardSAEConfig(d_in=1, d_sae=5, dtype="float64"))
    b.W_dec.data = torch.ones(5, 1, dtype=torch.float64)
    b.W_enc.data = torch.ones(1, 5, dtype=torch.float64)
    x = torch.tensor([[1.0], [2.0], [-1.0]])
    found = match_features(a, b, [x], max_candidates=2)
    assert found.n_cut_short == 1  # relu(x) has five counterparts
    assert len(found.latents_a) == 1
    assert match_features(a, b, [x]).n_cut_short == 0


def test_unusable_input_is_refused():
    with pytest.raises(ValueError, match="d_in=1 and d_in=2"):
        match_features(linear_sae(1), linear_sae(2), [])
    with pytest.raises(ValueError, match="min_cosine=0 must be above 0"):
        match_features(linear_sae(1), linear_sae(1), [], min_cosine=0)
