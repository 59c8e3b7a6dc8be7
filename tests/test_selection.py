import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sae_lens_cosine.selection import BatchTopK, TokenTopK, largest


def test_ties_at_the_cut_go_to_the_first():
    # The two largest are 5 and one of the three 3s, the one at index 1.
    values = torch.tensor([1.0, 3.0, 5.0, 3.0, 3.0])
    assert largest(values, 2).tolist() == [1, 2]
    assert largest(values, 3).tolist() == [1, 2, 3]
    assert largest(values, 9).tolist() == [0, 1, 2, 3, 4]


def test_a_batch_keeps_its_largest_positive_scores():
    # k = 1.5 of 2 rows: three scores, 4, 3 and the first of the 2s.
    scores = torch.tensor([[4.0, 2.0, -1.0], [2.0, 3.0, 0.0]])
    selector = BatchTopK(1.5)
    expected = torch.tensor([[4.0, 2.0, 0.0], [0.0, 3.0, 0.0]])
    for _ in range(2):  # with the cutoff of the first batch as without
        assert torch.equal(selector(scores), expected)
    assert torch.equal(selector(scores - 3), (expected - 3).clamp(min=0))
    assert torch.equal(selector(-scores), torch.tensor([[0, 0, 1.0], [0, 0, 0]]))
    assert selector(torch.zeros(2, 3)).count_nonzero() == 0


@given(
    st.lists(st.integers(0, 2**16), min_size=2, max_size=5),
    st.floats(0.5, 6.0),
    st.sampled_from([1.0, 0.01, 100.0]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_the_cutoff_never_changes_what_is_kept(seeds, k, growth, tied):
    adaptive = BatchTopK(k)
    for i, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(7, 9, generator=generator) * growth**i
        if tied:
            scores = scores.round()
        assert torch.equal(adaptive(scores), BatchTopK(k)(scores))


def test_the_cutoff_spares_the_ranking_of_small_scores():
    selector = BatchTopK(1)
    selector(torch.tensor([[10.0, 1.0]]))
    assert selector.cutoff == 8.0
    selector(torch.tensor([[-10.0, -1.0]]))
    assert selector.cutoff == 0.0


def test_nothing_to_select_names_k_and_the_rows():
    with pytest.raises(ValueError, match=r"k=0.1 over a batch of 4 rows selects noth"):
        BatchTopK(0.1).select(torch.ones(4, 3))


def test_a_token_keeps_its_largest_positive_scores():
    # Rows of 4: flat indices 0 and 3 of the first, 5 of the second (one is positive).
    scores = torch.tensor([[4.0, 1.0, -1.0, 2.0], [-1.0, 3.0, -4.0, 0.0]])
    selector = TokenTopK(2)
    assert selector.select(scores).tolist() == [0, 3, 5]
    dense = torch.tensor([[4.0, 0, 0, 2.0], [0, 3.0, 0, 0]])
    assert torch.equal(selector(scores), dense)
