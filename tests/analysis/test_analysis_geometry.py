"""Decoder geometry against arithmetic by hand, in blocks of any size."""

import math

import pytest
import torch
from helpers import linear_sae
from sae_lens import StandardSAE, StandardSAEConfig

from sae_lens_cosine.analysis import decoder_cosines, decoder_geometry


def sae_of(rows: torch.Tensor) -> StandardSAE:
    sae = StandardSAE(StandardSAEConfig(d_in=rows.shape[1], d_sae=len(rows)))
    sae.W_dec.data = rows
    return sae


def test_by_hand():
    # directions at 0, 10 and 90 degrees, of any length; the row of zeros has none
    at = [math.radians(angle) for angle in (0, 10, 90)]
    rows = torch.tensor([[3 * math.cos(t), 3 * math.sin(t)] for t in at] + [[0, 0]])
    found = decoder_geometry(sae_of(rows))
    near, far = math.cos(at[1]), math.cos(at[2] - at[1])
    assert found.max_cosine[:3] == pytest.approx([near, near, far], rel=1e-6)
    assert math.isnan(found.max_cosine[3])
    assert found.mean_max_cosine == pytest.approx((2 * near + far) / 3, rel=1e-6)
    assert found.n_near_duplicates == 1  # cos 10 degrees = 0.985
    assert found.near_duplicate_share == pytest.approx(2 / 3)
    assert decoder_geometry(sae_of(rows), above=0.99).n_near_duplicates == 0


def test_sink_latents_are_left_out():
    sae = linear_sae(2)  # rows e0, e1, -e0, -e1
    sae.sink_latents = [2, 3]  # type: ignore[assignment]
    found = decoder_geometry(sae)
    assert found.max_cosine[:2].tolist() == [0.0, 0.0]
    assert all(math.isnan(cosine) for cosine in found.max_cosine[2:])
    assert found.mean_max_cosine == 0.0


def test_one_direction_has_no_neighbour():
    found = decoder_geometry(sae_of(torch.eye(1, 3)))
    assert found.mean_max_cosine is None
    assert found.near_duplicate_share is None
    assert found.n_near_duplicates == 0


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    sae = sae_of(torch.randn(23, 3))
    whole = decoder_geometry(sae)
    monkeypatch.setattr(decoder_cosines, "_CELLS", 23 * 4)  # four rows at a time
    blocks = decoder_geometry(sae)
    assert blocks.max_cosine == pytest.approx(whole.max_cosine)
    assert blocks.n_near_duplicates == whole.n_near_duplicates > 0
