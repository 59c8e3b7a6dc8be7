"""Damaged SAE folders are named by all who read them."""

from pathlib import Path
from typing import Any

import pytest
from helpers import training_sae

from sae_lens_cosine.analysis import exponent_drift
from sae_lens_cosine.card import model_card
from sae_lens_cosine.sae_folder import read_config


@pytest.mark.parametrize(
    "read",
    [
        read_config,
        lambda f: model_card("a/b", {"x": f}),
        lambda f: [*exponent_drift([f])],
    ],
)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"d_in": 8, ', r"cfg\.json is no JSON \(Expecting"),
        (b"\xff\xfe", r"cfg\.json is no JSON \('utf-8' codec"),
        (b"[1]", r"cfg\.json is no config of an SAE"),
        (b"{}", r"cfg\.json is no config of an SAE"),
    ],
)
def test_a_damaged_config_is_named(
    tmp_path: Path, read: Any, content: bytes, message: str
):
    training_sae().save_inference_model(tmp_path)
    assert read(tmp_path)
    (tmp_path / "cfg.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path)
