"""The page of architectures names everything that a config takes, with its default."""

import dataclasses
import re
from pathlib import Path

import pytest
from sae_lens.saes.sae import TrainingSAEConfig

from sae_lens_cosine.registration import INFERENCE_CLASSES, TRAINING_CLASSES

PAGE = (Path(__file__).parents[1] / "docs" / "architectures.md").read_text()
OF_EVERY_SAE = {field.name for field in dataclasses.fields(TrainingSAEConfig)}

# Defaults that the text of the controls gives.
OTHERWISE = {
    ("sink_batchtopk", "decoder_init_norm"),
    ("reweighted_batchtopk", "sink_rank"),
}


@pytest.mark.parametrize("name", sorted({*INFERENCE_CLASSES, *TRAINING_CLASSES}))
def test_every_architecture_is_on_the_page(name):
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", TRAINING_CLASSES)
def test_every_field_is_on_the_page_with_its_default(name):
    _, config_class = TRAINING_CLASSES[name]
    for field in dataclasses.fields(config_class):
        if field.name in OF_EVERY_SAE - {"decoder_init_norm"}:
            continue
        assert f"`{field.name}`" in PAGE, field.name
        row = re.search(rf"^\| `{field.name}` \| `([^`]*)`", PAGE, re.MULTILINE)
        if row and (name, field.name) not in OTHERWISE:
            default = row[1].strip('"')
            assert default == str(field.default), f"{name}.{field.name}"
