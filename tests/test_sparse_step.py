"""The sparse step against the dense one, and its two products against matrices."""

from functools import partial

import pytest
import torch
from helpers import D_IN, D_SAE, EXPONENT_MODES, K, activations, training_sae
from hypothesis import given, settings
from hypothesis import strategies as st
from sae_lens import TrainingSAE
from sae_lens.saes.sae import TrainStepInput, TrainStepOutput

from sae_lens_cosine.score import unit
from sae_lens_cosine.sparse_step import (
    Entries,
    merge_sorted,
    sampled_product,
    sparse_product,
)

ARCHITECTURES = (
    "cosine_batchtopk",
    "cosine_topk",
    "cosine_matryoshka_batchtopk",
    "sink_batchtopk",
    "reweighted_batchtopk",
)
cases = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def random_entries(seed: int, share: float, shape=(5, 7)) -> Entries:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(shape, generator=generator) < share
    return Entries.of_flat(mask.flatten().nonzero().squeeze(1), shape)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_products_are_those_of_the_matrices(share):
    entries = random_entries(1, share)
    left, right, values = randn(5, 4), randn(7, 4, seed=1), randn(len(entries.rows))
    sampled = sampled_product(left, right, entries)
    torch.testing.assert_close(sampled, (left @ right.T)[entries.rows, entries.columns])
    matrix = entries.to_sparse(values).to_dense()
    assert matrix.count_nonzero() == len(values)
    torch.testing.assert_close(sparse_product(values, right, entries), matrix @ right)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_gradients_by_finite_differences(share):
    entries = random_entries(2, share)
    left, right = randn(5, 4).requires_grad_(), randn(7, 4, seed=1).requires_grad_()
    values = randn(len(entries.rows), seed=2).requires_grad_()
    check = torch.autograd.gradcheck
    assert check(lambda a, b: sampled_product(a, b, entries), (left, right))
    assert check(lambda a, b: sparse_product(a, b, entries), (values, right))
    assert check(lambda a: entries.to_sparse(a).to_dense(), (values,))
    assert check(lambda a: entries.to_sparse(a).values() * 2, (values,))


@pytest.mark.parametrize("dim", [0, 1])
def test_gradient_of_scaled_directions(dim):
    weights = randn(4, 4).requires_grad_()
    scales = (randn(4, seed=1).requires_grad_(), randn(seed=2).requires_grad_())
    for scale in scales:
        assert torch.autograd.gradcheck(lambda w, s: unit(w, dim, s), (weights, scale))


def test_constant_rows_have_no_gradient():
    weights, scale = randn(4, 4).requires_grad_(), randn(4, seed=1).requires_grad_()
    constants = randn(2, 4, seed=2)

    def directions(weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return unit(weights, 1, scale, last_rows=constants)

    assert directions(weights, scale)[2:].equal(constants)
    assert torch.autograd.gradcheck(directions, (weights, scale))


def test_columns_between():
    entries = Entries.of_flat(torch.tensor([0, 2, 4, 5]), (2, 3))
    inside, kept = entries.between(1, 3)  # (0, 2), (1, 1), (1, 2)
    assert kept.tolist() == [1, 2, 3]
    assert inside.rows.tolist() == [0, 1, 1]
    assert inside.columns.tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("first", "second"),
    [([0, 2, 5, 9], [1, 3, 4, 10]), ([3, 4], [0, 1]), ([], [2, 7]), ([2, 7], [])],
)
def test_merging_sorts(first, second):
    both = torch.tensor([*first, *second])
    merged, places = merge_sorted(both[: len(first)], both[len(first) :])
    assert merged.tolist() == sorted([*first, *second])
    assert merged[places].tolist() == second


def raw_step(
    sae: TrainingSAE, x: torch.Tensor, dead: torch.Tensor | None
) -> TrainStepOutput:
    return sae.training_forward_pass(TrainStepInput(x, {}, dead, 0, False))


def both_ways(
    architecture: str,
    batches: list[torch.Tensor],
    dead: torch.Tensor | None = None,
    autocast: bool = False,
    dtype: torch.dtype = torch.float32,
    **cfg,
) -> tuple[TrainStepOutput, TrainStepOutput]:
    """The last of some training steps, dense and sparse, compared throughout."""
    saes = [
        training_sae(architecture, use_sparse_activations=sparse, **cfg).to(dtype)
        for sparse in (False, True)
    ]
    precision = {torch.float32: 1e-5, torch.float64: 1e-11}[dtype]
    for sae in saes:
        if dead is not None:  # dead latents that no selector prefers
            sae.get_parameter("b_enc").data[dead] = -1e3
    optimizers = [torch.optim.Adam(sae.parameters(), lr=1e-2) for sae in saes]
    for i, x in enumerate(batches):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            dense, sparse = (raw_step(sae, x, dead) for sae in saes)
        assert sparse.feature_acts.is_sparse
        assert not dense.feature_acts.is_sparse
        acts = sparse.feature_acts.to_dense()
        tolerance = 2e-2 if autocast else precision
        close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
        assert torch.equal(acts > 0, dense.feature_acts > 0)
        close(acts, dense.feature_acts.to(dtype))
        close(sparse.loss, dense.loss)
        close(sparse.hidden_pre, dense.hidden_pre)
        for sae, output in zip(saes, (dense, sparse), strict=True):
            sae.zero_grad()
            output.loss.backward()
        if autocast:
            continue
        # a gradient is a sum over tokens, which may cancel
        rounding = 0.1 * precision * x.square().sum(dim=-1).mean()
        for name, parameter in saes[0].named_parameters():
            grad, other = parameter.grad, saes[1].get_parameter(name).grad
            assert grad is not None, name
            assert other is not None, name
            error = (grad - other).abs().max()
            assert error <= precision * grad.abs().max() + rounding, name
        if i + 1 < len(batches):
            optimizers[0].step()
            saes[1].load_state_dict(saes[0].state_dict())
    return dense, sparse


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("with_dead", [False, True])
@given(
    mode=st.sampled_from(EXPONENT_MODES),
    n=st.integers(2, 40),
    k=st.integers(1, 8),
    seed=st.integers(0, 2**16),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@cases
def test_same_step(architecture, with_dead, mode, n, k, seed, dtype):
    dead = torch.arange(D_SAE) % 4 == 1 if with_dead else None
    cfg = {"exponent_mode": mode} if architecture.startswith("cosine") else {}
    batches = [activations(n, seed + i).to(dtype) for i in range(3)]
    both_ways(architecture, batches, dead, dtype=dtype, k=k, sink_rank=0, **cfg)


@pytest.mark.parametrize("architecture", ["cosine_matryoshka_batchtopk"])
def test_same_step_with_the_aux_loss_of_every_level(architecture):
    dead = torch.arange(D_SAE) % 4 == 1
    batches = [activations(seed=i) for i in range(2)]
    both_ways(architecture, batches, dead, use_matryoshka_aux_loss=True)


def l0_without_sinks(output: TrainStepOutput) -> float:
    metric = output.metrics["l0_without_sink_latents"]
    assert callable(metric)
    return float(metric())


@pytest.mark.parametrize("architecture", ARCHITECTURES[:4])
def test_same_step_with_sink_latents(architecture):
    batches = []
    for seed in range(12):
        x = activations(seed=seed).double()
        x[:20] += 20_000 * unit(torch.ones(1, D_IN), dim=1)
        batches.append(x)
    dense, sparse = both_ways(architecture, batches, sink_rank=1, dtype=torch.float64)
    assert dense.metrics["n_sink_latents"] == 2
    assert l0_without_sinks(dense) == l0_without_sinks(sparse)
    assert (sparse.feature_acts.to_dense()[:, -2:] > 0).sum() >= 20


@pytest.mark.parametrize("mode", EXPONENT_MODES)
@pytest.mark.parametrize("architecture", ARCHITECTURES[:3])
def test_same_choice_under_autocast(architecture, mode):
    batches = [activations(seed=i) for i in range(2)]
    both_ways(architecture, batches, autocast=True, exponent_mode=mode)


def test_same_step_where_nothing_or_little_is_positive():
    for b_enc, n_active in ((-1e4, 0), (-12.0, None)):
        outputs = []
        for sparse in (False, True):
            sae = training_sae(use_sparse_activations=sparse)
            sae.get_parameter("b_enc").data.fill_(b_enc)
            outputs.append(raw_step(sae, activations(), None))
            outputs[-1].loss.backward()
        dense, kept = (output.feature_acts.to_dense() for output in outputs)
        torch.testing.assert_close(dense, kept)
        assert dense.count_nonzero() < 64 * K
        if n_active is not None:
            assert dense.count_nonzero() == n_active


def test_equal_scores_keep_the_first():
    # All columns and rows are equal: the first k x n scores of the batch are kept.
    for sparse in (False, True):
        sae = training_sae(use_sparse_activations=sparse)
        sae.W_enc.data.fill_(1.0)
        sae.get_parameter("b_enc").data.fill_(100.0)
        acts = raw_step(sae, torch.ones(4, D_IN), None).feature_acts.to_dense()
        kept = (acts.flatten() > 0).nonzero().squeeze(1)
        assert kept.tolist() == list(range(4 * K))


@pytest.mark.parametrize("hook_name", ["hook_sae_acts_pre", "hook_sae_acts_post"])
def test_hooks_see_dense_activations(hook_name):
    sae = training_sae()
    seen = []
    getattr(sae, hook_name).add_hook(lambda x, hook: seen.append(x))  # noqa: ARG005
    output = raw_step(sae, activations(), None)
    assert not output.feature_acts.is_sparse
    assert seen[0].shape == (64, D_SAE)
    assert not seen[0].is_sparse
    sae.reset_hooks()
    assert raw_step(sae, activations(), None).feature_acts.is_sparse


def test_encode_is_dense_and_the_switch_turns_it_off():
    sae = training_sae()
    raw_step(sae, activations(), None)
    assert not sae.encode(activations()).is_sparse
    assert not training_sae(use_sparse_activations=False).takes_sparse_steps
    assert not training_sae("cosine_abstopk").takes_sparse_steps
    assert not training_sae().to(torch.bfloat16).takes_sparse_steps


def test_a_compiled_step_is_dense_and_the_same():
    sae, reference = training_sae(), training_sae(use_sparse_activations=False)
    compiled = torch.compile(sae.training_forward_pass, backend="aot_eager")
    step_input = TrainStepInput(activations(), {}, None, 0, False)
    output, expected = compiled(step_input), raw_step(reference, activations(), None)
    assert not output.feature_acts.is_sparse
    torch.testing.assert_close(output.loss, expected.loss)
    output.loss.backward()
    expected.loss.backward()
    torch.testing.assert_close(sae.W_enc.grad, reference.W_enc.grad)
