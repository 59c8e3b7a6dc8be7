"""Model cards, and uploads that load back from what was uploaded."""

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import TRAINING_ARCHITECTURES, activations, train, training_sae
from sae_lens import SAE

from sae_lens_cosine.card import model_card, upload

REPO_ID = "someone/their-saes"


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """The Hub as a folder: what is uploaded lands in the cache that is read from."""
    repo = tmp_path / f"models--{REPO_ID.replace('/', '--')}"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def upload_folder(_self, *, folder_path, path_in_repo, allow_patterns, **_):
        for path in Path(folder_path).iterdir():
            if path.name in allow_patterns:
                target = snapshot / path_in_repo / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)

    def upload_file(_self, *, path_or_fileobj, path_in_repo, **_):
        (snapshot / path_in_repo).write_bytes(io.BytesIO(path_or_fileobj).read())

    api = "huggingface_hub.HfApi"
    monkeypatch.setattr(f"{api}.repo_info", lambda _self, repo_id: repo_id)
    monkeypatch.setattr(f"{api}.upload_folder", upload_folder)
    monkeypatch.setattr(f"{api}.upload_file", upload_file)
    return snapshot


def test_uploads_load_back(hub, tmp_path):
    saes = {}
    for name in TRAINING_ARCHITECTURES:
        sae = train(training_sae(name), n_steps=3)
        sae.save_inference_model(tmp_path / "saved" / name)
        saes[name] = tmp_path / "saved" / name
    saes["layer_3/loaded"] = SAE.load_from_disk(saes["cosine_topk"])
    upload(saes, REPO_ID)
    x = activations()
    for sae_id, source in saes.items():
        loaded = SAE.from_pretrained(REPO_ID, sae_id)
        sae = source if isinstance(source, SAE) else SAE.load_from_disk(source)
        assert type(loaded) is type(sae)
        assert torch.equal(loaded.encode(x), sae.encode(x))
    card = (hub / "README.md").read_text()
    assert "import sae_lens_cosine" in card
    assert f'SAE.from_pretrained("{REPO_ID}", "cosine_batchtopk")' in card


def test_the_code_on_the_card_runs(hub, tmp_path):
    assert hub.exists()
    folder = tmp_path / "saved"
    train(training_sae(), n_steps=3).save_inference_model(folder)
    card = model_card(REPO_ID, {"layer_1": folder})
    upload({"layer_1": folder}, REPO_ID)
    code = card.split("```python\n")[1].split("```")[0]
    scope: dict = {}
    exec(code, scope)
    assert scope["sae"].cfg.architecture() == "cosine_jumprelu"


def test_the_table_describes_each_sae(tmp_path):
    sae = training_sae("cosine_topk", exponent_mode="per_feature")
    sae.cfg.metadata.model_name = "some-model"
    sae.cfg.metadata.hook_name = "blocks.3.hook_resid_post"
    sae.save_inference_model(tmp_path)
    card = model_card(REPO_ID, {"a": tmp_path})
    row = (
        "| a | cosine_topk | some-model | blocks.3.hook_resid_post | 8 | 24 "
        "| per_feature | cosine_topk |"
    )
    assert row in card.splitlines()


def test_training_saes_are_refused_before_anything_is_uploaded(hub, tmp_path):
    sae = training_sae()
    sae.save_model(tmp_path / "checkpoint")
    for source in (sae, tmp_path / "checkpoint"):
        with pytest.raises(ValueError, match=r"x is a training SAE .*save_inference_"):
            upload({"x": source}, REPO_ID)
    with pytest.raises(ValueError, match="saes is empty"):
        upload({}, REPO_ID)
    with pytest.raises(ValueError, match=r"x: .*nowhere.* does not exist"):
        upload({"x": tmp_path / "nowhere"}, REPO_ID)
    assert list(hub.iterdir()) == []


def test_the_command_prints_a_card(tmp_path):
    training_sae().save_inference_model(tmp_path / "layer_5")
    command = [sys.executable, "-m", "sae_lens_cosine", "card", REPO_ID]
    result = subprocess.run(
        [*command, str(tmp_path / "layer_5")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == model_card(REPO_ID, {"layer_5": tmp_path / "layer_5"})
