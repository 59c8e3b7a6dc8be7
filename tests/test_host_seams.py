"""What we touch of the hosts is where we expect it, and saved SAEs know their format."""

import json
import re
from pathlib import Path

import pytest
from helpers import training_sae
from sae_lens import SAE, TrainingSAE

import sae_lens_cosine
from sae_lens_cosine.format_version import FORMAT_VERSION
from sae_lens_cosine.host_seams import SEAMS, Seam, moved_seams


def test_nothing_has_moved():
    assert not moved_seams(), "\n".join(moved_seams())


def test_the_check_can_fail():
    gone = Seam("sae_lens.registry", "NOT_THERE", "used for this test")
    nowhere = Seam("sae_lens.not_there", "x", "used for this test")
    changed = Seam("sae_lens.registry", "get_sae_class", "called", ("a", "b"))
    messages = moved_seams((gone, nowhere, changed))
    assert len(messages) == 3
    assert re.search(
        r"NOT_THERE \(read in sae_lens 6.* is gone; it is used", messages[0]
    )
    assert "not_there.x" in messages[1]
    assert "now takes ('architecture',), not ('a', 'b'); it is called" in messages[2]


def test_private_names_of_saelens_in_the_code_are_listed():
    listed = {
        part
        for seam in SEAMS
        for part in (*seam.name.split("."), *seam.module.split("."))
    }
    folder = Path(sae_lens_cosine.__file__).parent
    for path in folder.rglob("*.py"):
        for line in path.read_text().splitlines():
            if found := re.match(r"\s*from (sae_lens\.[\w.]+) import (.*)", line):
                names = re.findall(
                    r"\b_\w+", found[1].replace(".", " ") + " " + found[2]
                )
                assert set(names) <= listed, f"{path.name}: {line}"


@pytest.mark.parametrize("save", ["save_model", "save_inference_model"])
def test_a_newer_format_is_refused_by_name(tmp_path, save):
    getattr(training_sae("cosine_topk"), save)(tmp_path)
    path = tmp_path / "cfg.json"
    cfg = json.loads(path.read_text())
    assert cfg["format_version"] == FORMAT_VERSION
    path.write_text(json.dumps(cfg | {"format_version": FORMAT_VERSION + 1}))
    kind = TrainingSAE if save == "save_model" else SAE
    with pytest.raises(ValueError, match=r"format_version=2: .* formats up to 1.*pip"):
        kind.load_from_disk(tmp_path)


def test_an_sae_without_a_format_is_of_the_first(tmp_path):
    training_sae("cosine_topk").save_inference_model(tmp_path)
    path = tmp_path / "cfg.json"
    cfg = json.loads(path.read_text())
    del cfg["format_version"]
    path.write_text(json.dumps(cfg))
    assert SAE.load_from_disk(tmp_path).cfg.format_version == 1
