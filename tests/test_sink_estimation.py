import pytest
import torch
from helpers import activations, step, training_sae

from sae_lens_cosine.sink_estimation import (
    MAX_BATCHES,
    MAX_SINKS,
    SinkEstimator,
    is_outlier,
    sink_subspace,
)

D = 32


def test_outliers_exceed_the_multiple_strictly():
    # norms 1, 1, 1, 10, 10.1: the median is 1, and 10 is not above 10 times it
    x = torch.tensor([[1.0], [1.0], [1.0], [10.0], [10.1]])
    assert is_outlier(x, 10.0).tolist() == [False, False, False, False, True]


def test_nothing_is_an_outlier_among_zeros():
    x = torch.tensor([[0.0], [0.0], [0.0], [5.0]])
    assert not is_outlier(x, 10.0).any()


def subspace(rank: int, seed: int = 0) -> torch.Tensor:
    """Orthonormal rows ``[rank, D]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(D, rank, generator=generator))[0].T


def sinks(n: int, directions: torch.Tensor, seed: int = 1) -> torch.Tensor:
    """Rows of norm about 5000 in the subspace, plus unit noise around it."""
    generator = torch.Generator().manual_seed(seed)
    coefficients = torch.randn(n, len(directions), generator=generator)
    rows = 5000 * torch.nn.functional.normalize(coefficients, dim=1) @ directions
    return rows + torch.randn(n, D, generator=generator) / D**0.5


def largest_angle(found: torch.Tensor, true: torch.Tensor) -> float:
    """Largest principal angle between two subspaces, in radians."""
    cosines = torch.linalg.svdvals(found @ true.T)
    return torch.arccos(cosines.clamp(max=1).min()).item()


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_the_subspace_and_its_rank_are_found_from_twenty_sinks(rank):
    true = subspace(rank)
    found = sink_subspace(sinks(20, true), 20.0, 200.0, max_rank=5)
    assert len(found) == rank
    assert largest_angle(found, true) < 2e-3
    torch.testing.assert_close(found @ found.T, torch.eye(rank), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rank", [1, 2])
def test_two_sinks_suffice_for_what_they_span(rank):
    true = subspace(rank)
    found = sink_subspace(sinks(2, true, seed=3), 20.0, 200.0, max_rank=3)
    assert len(found) == rank
    assert largest_angle(found, true) < 2e-3


def test_large_rows_that_share_nothing_are_no_sinks():
    torch.manual_seed(0)
    rows = 5000 * torch.nn.functional.normalize(torch.randn(40, D), dim=1)
    assert len(sink_subspace(rows, 20.0, 200.0, max_rank=3)) == 0


def test_a_rank_beyond_the_maximum_converts_nothing():
    assert len(sink_subspace(sinks(20, subspace(4)), 20.0, 200.0, max_rank=3)) == 0


@pytest.mark.parametrize(
    ("shares", "max_rank", "rank"),
    [
        ((50, 30, 20), 3, 3),  # two directions serve the median, not the last 20
        ((50, 30, 20), 2, 2),  # the most that may be
        ((60, 38, 2), 3, 2),  # two odd ones
        ((98, 2), 3, 1),
    ],
)
def test_a_kind_of_sink_that_the_median_does_not_see(shares, max_rank, rank):
    true = subspace(3)
    rows = torch.cat([sinks(n, true[i : i + 1], seed=i) for i, n in enumerate(shares)])
    assert len(sink_subspace(rows, 20.0, 200.0, max_rank)) == rank


def batch(n_sinks: int, seed: int) -> torch.Tensor:
    """500 tokens of norm about 20 and some sinks."""
    generator = torch.Generator().manual_seed(seed)
    ordinary = torch.randn(500, D, generator=generator) * 20 / D**0.5
    return torch.cat([ordinary, sinks(n_sinks, subspace(2), seed)])


def run(estimator: SinkEstimator, make_batch) -> tuple[torch.Tensor, float, int]:
    for i in range(1000):
        estimator.collect(make_batch(i), 10.0)
        if estimator.is_ready:
            found, limit = estimator.estimate(torch.zeros(D), 20.0, 10.0, 3)
            return found, limit, i + 1
    raise AssertionError("never ready")


@pytest.mark.parametrize("a_batch", [20, 2])
def test_collecting_stops_at_enough_sinks(a_batch):
    found, limit, n_batches = run(
        SinkEstimator(D, torch.device("cpu")), lambda i: batch(a_batch, i)
    )
    assert n_batches == -(-MAX_SINKS // a_batch)  # 4 batches of 20, 32 of 2
    assert len(found) == 2
    assert largest_angle(found, subspace(2)) < 2e-3
    assert limit == pytest.approx(200, rel=0.05)  # 10 times a median of about 20


@pytest.mark.parametrize("n_batches", [1, 8])
def test_how_tokens_are_batched_does_not_matter(n_batches):
    # 160 sinks, and 80 tokens of norm 150 in the octave below the limit of 200
    x = torch.cat([batch(20, seed) for seed in range(8)])
    tail = (x.norm(dim=1) < 1000).nonzero()[::50, 0]
    x[tail] *= 150 / x[tail].norm(dim=1, keepdim=True)
    estimator = SinkEstimator(D, torch.device("cpu"))
    for rows in x.chunk(n_batches):
        estimator.collect(rows, 10.0)
    assert (estimator.n_rows, estimator.n_below) == (160, 80)
    assert len(estimator.estimate(torch.zeros(D), 20.0, 10.0, 3)[0]) == 2


def test_a_batch_of_padding_says_nothing():
    x = batch(20, 0)
    x[:300] = 0  # most of 520 rows: the median norm is 0
    found, limit, n_batches = run(
        SinkEstimator(D, torch.device("cpu")),
        lambda i: x if i == 0 else batch(20, i),
    )
    assert n_batches == 1 + 4  # 64 sinks, 20 a batch
    assert len(found) == 2
    assert limit == pytest.approx(200, rel=0.05)


def test_without_sinks_the_limit_of_batches_ends_it():
    found, _, n_batches = run(
        SinkEstimator(D, torch.device("cpu")), lambda i: batch(0, i)
    )
    assert n_batches == MAX_BATCHES
    assert len(found) == 0


@pytest.mark.parametrize("sigma", [0.8, 1.0, 1.5])
def test_a_heavy_tail_of_norms_invents_no_sinks(sigma):
    # log-normal norms: with sigma 1, 1.1% of the rows exceed 10 times the median,
    # and 4.3% lie between 5 and 10 times
    def heavy(i: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(i)
        x = torch.nn.functional.normalize(torch.randn(500, D, generator=generator))
        return 20 * x * torch.exp(sigma * torch.randn(500, 1, generator=generator))

    found, _, _ = run(SinkEstimator(D, torch.device("cpu")), heavy)
    assert len(found) == 0


def test_a_heavy_tail_of_few_rows_invents_no_sinks():
    # Any two rows span rank 2, but nothing sets these apart from the tail below.
    estimator = SinkEstimator(D, torch.device("cpu"))
    x = batch(0, 0)
    x[0] *= 300 / x[0].norm()
    x[1] *= 220 / x[1].norm()
    x[2:5] *= 150 / x[2:5].norm(dim=1, keepdim=True)
    estimator.collect(x, 10.0)
    assert estimator.n_rows == 2
    assert len(estimator.estimate(torch.zeros(D), 20.0, 10.0, 3)[0]) == 0


def test_estimation_consumes_no_randomness():
    sae = training_sae()
    x = activations()
    x[0] *= 1000
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    step(sae, x)
    assert torch.equal(torch.rand(3), expected)
