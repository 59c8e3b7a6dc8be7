"""Reconstruction and loss metrics against arithmetic done by hand and in float64."""

import json
from itertools import pairwise
from typing import Any

import pytest
import torch
from helpers import linear_sae
from hypothesis import given, settings
from hypothesis import strategies as st
from sae_lens import (
    SAE,
    BatchTopKTrainingSAE,
    BatchTopKTrainingSAEConfig,
    StandardSAE,
    StandardSAEConfig,
)

from sae_lens_cosine.evaluation import (
    ReconstructionMetrics,
    evaluate_reconstruction,
    norm_quartile_edges,
    sink_norm_limit,
)

EDGES = (1.0, 2.0, 3.0)


def evaluate(
    sae: SAE[Any], *batches: torch.Tensor, limit: float = 100.0
) -> ReconstructionMetrics:
    return evaluate_reconstruction(
        sae, batches, sink_norm_limit=limit, quartile_edges=EDGES
    )


# --- the reference set -----------------------------------------------------------


def test_sink_limit_is_a_multiple_of_the_median_norm():
    # norms 1, 5, 300: median 5
    x = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 300.0]])
    assert sink_norm_limit(x) == 50.0
    assert sink_norm_limit(x, multiple=2.0) == 10.0


def test_sink_limit_survives_float16_rows_whose_norm_overflows():
    x = torch.full((3, 16), 3e4, dtype=torch.float16)  # norm 4 * 3e4 > 65504
    assert sink_norm_limit(x) == pytest.approx(10 * 4 * 3e4, rel=1e-3)


@pytest.mark.parametrize("x", [torch.zeros(3, 2), torch.zeros(0, 2)])
def test_sink_limit_refuses_a_reference_without_a_norm(x: torch.Tensor):
    with pytest.raises(ValueError, match=r"median norm of \d reference activations"):
        sink_norm_limit(x)


def test_quartile_edges_leave_sinks_out():
    # ordinary norms 1..5: quartiles 2, 3, 4; the token of norm 900 is no part of it
    x = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [900.0]])
    assert norm_quartile_edges(x, sink_norm_limit=30.0) == (2.0, 3.0, 4.0)
    with pytest.raises(ValueError, match="no ordinary tokens"):
        norm_quartile_edges(x, sink_norm_limit=0.5)


# --- reconstruction --------------------------------------------------------------


def test_reconstruction_by_hand():
    # x_hat = x / 2. Ordinary tokens 1, 3, 5; one sink 1001.
    metrics = evaluate(
        linear_sae(1, scale=0.5), torch.tensor([[1.0], [3.0], [5.0], [1001.0]])
    )
    # ordinary: mean 3, sum (x - 3)^2 = 4 + 0 + 4 = 8
    #           sum (x/2)^2 = (1 + 9 + 25) / 4 = 8.75
    ordinary = metrics.sinks_excluded
    assert ordinary.n_tokens == 3
    assert ordinary.token_share == 0.75
    assert ordinary.explained_variance == pytest.approx(1 - 8.75 / 8)
    assert ordinary.norm_ratio == 0.5
    assert ordinary.cosine == pytest.approx(1.0)
    assert ordinary.l0 == 1.0  # relu(x) fires, relu(-x) does not
    # all: mean 1010/4 = 252.5, sum x^2 = 1 + 9 + 25 + 1002001 = 1002036
    #      sum (x - mean)^2 = 1002036 - 4 * 252.5^2 = 747011; residual 1002036/4
    assert metrics.all_tokens.explained_variance == pytest.approx(1 - 250509 / 747011)
    # one sink has no variance
    assert metrics.sinks_only.n_tokens == 1
    assert metrics.sinks_only.explained_variance is None
    assert metrics.sinks_only.norm_ratio == 0.5
    # of the latents relu(x), relu(-x) the second never fired
    assert metrics.never_fired_share == 0.5
    assert metrics.n_tokens == 4


def test_quartiles_hold_their_upper_edge():
    # edges 1, 2, 3: norms 1 | 1.5, 2 | 3 | 4, 5
    x = torch.tensor([[1.0], [1.5], [2.0], [-3.0], [4.0], [5.0], [200.0]])
    quartiles = evaluate(linear_sae(1), x).norm_quartiles
    assert [q.n_tokens for q in quartiles] == [1, 2, 1, 2]
    assert [q.explained_variance for q in quartiles] == [None, 1.0, None, 1.0]


def test_a_token_at_the_limit_is_no_sink():
    metrics = evaluate(linear_sae(1), torch.tensor([[10.0], [10.5]]), limit=10.0)
    assert metrics.sinks_only.n_tokens == 1


def test_no_sinks_gives_none_and_equal_groups():
    metrics = evaluate(linear_sae(2), torch.randn(20, 2))
    assert metrics.all_tokens == metrics.sinks_excluded
    assert metrics.all_tokens.explained_variance == pytest.approx(1.0)
    sinks = metrics.sinks_only
    assert (sinks.n_tokens, sinks.explained_variance, sinks.l0) == (0, None, None)
    assert sinks.norm_ratio is None
    assert sinks.cosine is None
    assert sinks.l0_without_sink_latents is None


def test_a_zero_sae_explains_the_mean_or_less():
    # tokens 1, 3: mean 2, deviation 2, residual 1 + 9 = 10 -> 1 - 5 = -4
    sae = linear_sae(1, scale=0.0)
    metrics = evaluate(sae, torch.tensor([[1.0], [3.0]]))
    assert metrics.all_tokens.explained_variance == pytest.approx(-4.0)
    assert metrics.all_tokens.norm_ratio == 0.0
    assert metrics.all_tokens.cosine == 0.0


def test_cosine_is_the_mean_over_tokens_of_any_length():
    # decoded with the second axis doubled: (1, 0) stays, (3, 3) becomes (3, 6), with
    # cosine (9 + 18) / (sqrt(18) sqrt(45)) = 0.9487
    sae = linear_sae(2)
    sae.W_dec.data[:, 1] *= 2
    metrics = evaluate(sae, torch.tensor([[1.0, 0.0], [3.0, 3.0], [0.0, 0.0]]))
    assert metrics.all_tokens.cosine == pytest.approx((1 + 27 / 810**0.5) / 2)


def test_equal_tokens_have_no_variance_to_explain():
    x = torch.full((7, 3), 0.1)
    metrics = evaluate(linear_sae(3, scale=0.5), x, x[:2], x[:5])
    assert metrics.all_tokens.explained_variance is None


def test_zero_rows_have_no_norm_ratio_but_count_as_tokens():
    metrics = evaluate(linear_sae(1, scale=0.5), torch.tensor([[0.0], [2.0]]))
    assert metrics.all_tokens.norm_ratio == 0.5
    assert metrics.all_tokens.l0 == 0.5
    assert metrics.all_tokens.n_tokens == 2


def test_reserved_latents_are_counted_apart():
    sae = linear_sae(2)  # latents x0, x1, -x0, -x1
    sae.sink_latents = [1, 3]  # type: ignore[assignment]
    metrics = evaluate(sae, torch.tensor([[1.0, 1.0], [0.0, -200.0]]))
    assert metrics.sinks_excluded.l0 == 2.0
    assert metrics.sinks_excluded.l0_without_sink_latents == 1.0
    assert metrics.sinks_only.l0 == 1.0
    assert metrics.sinks_only.l0_without_sink_latents == 0.0
    # of the other two latents x0 fired and -x0 did not
    assert metrics.never_fired_share == 0.5


def test_negative_activations_count_as_firing():
    class Signed(StandardSAE):
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, torch.zeros_like(x)], dim=-1)  # absolute top-k

    sae = Signed(StandardSAEConfig(d_in=1, d_sae=2, dtype="float64"))
    sae.load_state_dict(linear_sae(1).state_dict())
    metrics = evaluate(sae, torch.tensor([[-1.0], [-2.0]]))
    assert metrics.all_tokens.l0 == 1.0
    assert metrics.all_tokens.explained_variance == 1.0


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 60), max_size=6),
    seed=st.integers(0, 1000),
    n_sinks=st.integers(0, 4),
)
def test_any_split_equals_one_shot_float64(cuts: list[int], seed: int, n_sinks: int):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64) + 100
    x[:n_sinks] *= 137  # as at SmolLM2's layer 15: 24,000 beside 177
    x = x[torch.randperm(60, generator=generator)]
    sae = linear_sae(4, scale=0.9)
    limit = sink_norm_limit(x)
    edges = norm_quartile_edges(x, limit)
    bounds = [0, *sorted(cuts), 60]
    metrics = evaluate_reconstruction(
        sae,
        (x[a:b] for a, b in pairwise(bounds)),
        sink_norm_limit=limit,
        quartile_edges=edges,
    )
    norms = x.norm(dim=1)
    sink = norms > limit
    lower = torch.tensor([0.0, *edges], dtype=torch.float64)
    upper = torch.tensor([*edges, limit], dtype=torch.float64)
    masks = [(norms > a) & (norms <= b) for a, b in zip(lower, upper, strict=True)]
    groups = [metrics.all_tokens, metrics.sinks_excluded, metrics.sinks_only]
    for group, mask in zip(
        [*groups, *metrics.norm_quartiles],
        [torch.ones_like(sink), ~sink, sink, *masks],
        strict=True,
    ):
        assert group.n_tokens == int(mask.sum())
        if mask.sum() < 2:
            continue
        rows, x_hat = x[mask], x[mask] * 0.9
        expected = (
            1 - (rows - x_hat).square().sum() / (rows - rows.mean(0)).square().sum()
        )
        assert group.explained_variance == pytest.approx(expected.item(), rel=1e-9)
        assert group.norm_ratio == pytest.approx(0.9)
        assert group.l0 == 4.0


def test_variance_does_not_cancel_beside_a_huge_mean():
    # Raw sums in float64: 1e4 tokens of 1e9 +- 1 have sum x^2 = 1e22, whose last digit
    # is 2e6: the true deviation, 1e4, would drown.
    x = torch.tensor([[1e9 - 1], [1e9 + 1]], dtype=torch.float64).repeat(5000, 1)

    class OffByOneTenth(StandardSAE):
        def decode(self, feature_acts: torch.Tensor) -> torch.Tensor:
            return super().decode(feature_acts) + 0.1

    sae = OffByOneTenth(StandardSAEConfig(d_in=1, d_sae=2, dtype="float64"))
    sae.load_state_dict(linear_sae(1).state_dict())
    metrics = evaluate(sae, *x.split(999), limit=1e12)
    # residual 0.01 a token, deviation 1 a token
    assert metrics.all_tokens.explained_variance == pytest.approx(0.99, abs=1e-6)


def test_metrics_are_json_and_come_back():
    metrics = evaluate(linear_sae(1), torch.tensor([[1.0], [2.0]]))
    text = json.dumps(metrics.model_dump(), allow_nan=False)
    assert ReconstructionMetrics.model_validate_json(text) == metrics


def test_activations_keep_their_dtype_as_the_target():
    # The SAE works in bfloat16 (8 bits), but what it misses is measured in float32.
    x = torch.tensor([[1.001], [2.003]])
    metrics = evaluate(linear_sae(1, dtype="bfloat16"), x)
    assert metrics.all_tokens.explained_variance is not None
    assert 0.99 < metrics.all_tokens.explained_variance < 1.0


def test_hook_z_sae_takes_flat_rows_and_is_left_as_it_was():
    sae = linear_sae(4, reshape_activations="hook_z")
    assert sae.hook_z_reshaping_mode
    assert evaluate(sae, torch.randn(5, 4)).all_tokens.norm_ratio == pytest.approx(1)
    assert sae.hook_z_reshaping_mode


def test_unusable_input_is_refused():
    sae = linear_sae(2)
    with pytest.raises(ValueError, match="generator that an earlier call has used up"):
        evaluate(sae)
    with pytest.raises(ValueError, match="width 3"):
        evaluate(sae, torch.ones(2, 3))
    with pytest.raises(ValueError, match="1 of 2 activation rows contain NaN"):
        evaluate(sae, torch.tensor([[1.0, 1.0], [float("nan"), 1.0]]))
    sae.b_dec.data[0] = float("nan")
    with pytest.raises(ValueError, match="returned NaN or infinite values for 2 of 2"):
        evaluate(sae, torch.ones(2, 2))


def test_batch_dependent_training_saes_are_refused():
    sae = BatchTopKTrainingSAE(BatchTopKTrainingSAEConfig(d_in=2, d_sae=4, k=1))
    with pytest.raises(TypeError, match="save_inference_model"):
        evaluate(sae, torch.ones(2, 2))
