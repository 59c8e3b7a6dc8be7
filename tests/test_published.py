"""The paper's own checkpoints: their format, converted and opened by name, offline."""

import functools
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import activations
from sae_lens import SAE, JumpReLUSAE
from sae_lens.loading.pretrained_sae_loaders import (
    NAMED_PRETRAINED_SAE_CONFIG_GETTERS,
    load_sae_config_from_huggingface,
)
from sae_lens.loading.pretrained_saes_directory import get_pretrained_saes_directory
from torch.nn import functional

from sae_lens_cosine import (
    CosineJumpReLUSAE,
    calibrate_threshold,
    cosine_scored_saes_disk_loader,
    cosine_scored_saes_huggingface_loader,
)
from sae_lens_cosine.published import CONVERTER, METADATA, RELEASE, REPO_ID
from sae_lens_cosine.registration import register

D_IN, D_SAE = 8, 24
ARMS = ("standard", "global-a", "perfeature")


def checkpoint(arm: str, threshold: float = 0.5) -> dict[str, torch.Tensor]:
    """A state dict as the authors' classes write it, rows unnormalised."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    state = {
        "W_enc": normal(D_SAE, D_IN),
        "b_enc": 0.1 * normal(D_SAE),
        "W_dec": functional.normalize(normal(D_SAE, D_IN), dim=1),
        "b_dec": normal(D_IN),
        "threshold": torch.tensor(threshold),
    }
    if arm == "global-a":
        state |= {"scale_a": torch.tensor(0.26), "scale_b": torch.tensor(0.9)}
    elif arm == "perfeature":
        state |= {"scale_a": 0.2 * normal(D_SAE), "scale_b": 1 + 0.1 * normal(D_SAE)}
    elif arm == "base-delta":
        state |= {
            "scale_a_base": torch.tensor(0.1),
            "scale_a_delta": 0.2 * normal(D_SAE),
            "scale_b": 1 + 0.1 * normal(D_SAE),
        }
    return state


def expected(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The paper's equation, one token and one latent at a time."""
    acts = torch.zeros(len(x), D_SAE)
    a = state.get("scale_a", state.get("scale_a_base", torch.tensor(0.0)))
    a = (a + state.get("scale_a_delta", torch.tensor(0.0))).expand(D_SAE)
    b = state.get("scale_b", torch.tensor(0.0)).expand(D_SAE)
    for t, row in enumerate(x):
        x_c = row - state["b_dec"]
        for i, w in enumerate(state["W_enc"]):
            if "scale_b" in state:
                cos = (x_c @ w / (x_c.norm() * w.norm())).item()
                score = math.exp(a[i] * math.log(x_c.norm()) + b[i]) * cos
            else:
                score = (x_c @ w).item()
            score += state["b_enc"][i].item()
            acts[t, i] = score if score > state["threshold"].item() else 0.0
    return acts


def save(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """A Hugging Face cache on disk that holds the release, and no network."""
    repo = tmp_path / f"models--{REPO_ID.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    for arm in ARMS:
        content = {"state_dict": checkpoint(arm), "step": 244_140}
        save(repo / "snapshots" / ("0" * 40) / arm / "sae_final.pt", content)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.mark.parametrize("arm", [*ARMS, "base-delta"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_file_on_disk_gives_the_papers_scores(tmp_path, arm, wrapped):
    state = checkpoint(arm)
    content = {"state_dict": state, "step": 3} if wrapped else state
    file = save(tmp_path / arm / "sae_final.pt", content)
    x = activations(16)
    for path in (file, file.parent, str(file)):
        sae = SAE.load_from_disk(path, converter=cosine_scored_saes_disk_loader)
        assert type(sae) is (JumpReLUSAE if arm == "standard" else CosineJumpReLUSAE)
        acts = expected(state, x)
        assert 0 < acts.count_nonzero() < 0.8 * acts.numel()
        torch.testing.assert_close(sae.encode(x), acts, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            sae(x), acts @ state["W_dec"] + state["b_dec"], rtol=1e-5, atol=1e-5
        )
        sae.fold_W_dec_norm()
        torch.testing.assert_close(sae.encode(x), acts, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arm", ARMS)
def test_the_release_opens_by_name_and_by_repository(hub, arm):
    assert hub.exists()
    state, x = checkpoint(arm), activations(16)
    by_name = SAE.from_pretrained(RELEASE, arm)
    with pytest.warns(UserWarning, match=RELEASE):
        by_repository = SAE.from_pretrained(
            REPO_ID, arm, converter=cosine_scored_saes_huggingface_loader
        )
    for sae in (by_name, by_repository):
        assert sae.cfg.architecture() == (
            "jumprelu" if arm == "standard" else "cosine_jumprelu"
        )
        assert sae.cfg.metadata.model_name == "Qwen/Qwen3-8B"
        assert sae.cfg.metadata.hook_name == "blocks.18.hook_resid_post"
        assert sae.cfg.metadata.k == 80
        torch.testing.assert_close(
            sae.encode(x), expected(state, x), rtol=1e-5, atol=1e-5
        )


def test_an_opened_release_saves_as_any_sae(hub, tmp_path):
    assert hub.exists()
    sae = SAE.from_pretrained(RELEASE, "perfeature")
    sae.save_model(tmp_path / "copy")
    again = SAE.load_from_disk(tmp_path / "copy")
    x = activations(16)
    assert torch.equal(again.encode(x), sae.encode(x))
    assert again.cfg.metadata.hook_name == METADATA["hook_name"]


def test_dtype_casts_all_but_scalars(hub):
    assert hub.exists()
    sae = SAE.from_pretrained(RELEASE, "perfeature", dtype="bfloat16")
    assert sae.W_enc.dtype == sae.encode(activations()).dtype == torch.bfloat16
    assert sae.threshold.dtype == sae.exponent.dtype == torch.float32
    assert torch.equal(sae.exponent, checkpoint("perfeature")["scale_a"])


def test_the_directory_knows_the_release():
    register()
    entry = get_pretrained_saes_directory()[RELEASE]
    assert entry.repo_id == REPO_ID
    assert list(entry.saes_map) == list(ARMS)
    assert CONVERTER in NAMED_PRETRAINED_SAE_CONFIG_GETTERS
    cfg = load_sae_config_from_huggingface(RELEASE, "perfeature")
    assert (cfg["d_in"], cfg["d_sae"]) == (4096, 65_536)
    assert cfg["architecture"] == "cosine_jumprelu"
    assert cfg["exponent_mode"] == "per_feature"
    cfg = load_sae_config_from_huggingface(RELEASE, "standard")
    assert cfg["architecture"] == "jumprelu"


def test_saebench_selects_the_release_by_pattern():
    selection = pytest.importorskip("sae_bench.sae_bench_utils.sae_selection_utils")
    found = selection.get_saes_from_regex(r"cosine-scored-.*", r".*")
    assert found == [(RELEASE, arm) for arm in ARMS]


def test_another_release_of_the_name_is_a_clear_error(monkeypatch):
    directory = get_pretrained_saes_directory()
    other = next(value for key, value in directory.items() if key != RELEASE)
    monkeypatch.setitem(directory, RELEASE, other)
    with pytest.raises(ValueError, match=f"already has a release '{RELEASE}'"):
        register()


class Harmful:
    def __reduce__(self):
        return (pickle.loads, (b"never read",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("b_enc"), r"lacks \['b_enc'\]"),
        (lambda s: s.pop("scale_b"), r"lacks \['scale_b'\]"),
        (lambda s: s.pop("scale_a"), r"lacks \['scale_a'\]"),
        (lambda s: s.update(bias=torch.zeros(1)), r"has \['bias'\] besides"),
        (lambda s: s.update(W_dec=s["W_dec"].T), r"W_dec \(8, 24\) instead of \(24, 8"),
        (lambda s: s.update(scale_a=torch.zeros(3)), r"scale_a \(3,\) instead"),
        (lambda s: s.update(W_enc=torch.zeros(3)), r"W_enc of shape \(3,\)"),
        (lambda s: s["b_dec"].fill_(math.nan), r"NaN .* in b_dec"),
        (lambda s: s["threshold"].fill_(-1), r"threshold -1\.0.*calibrate_threshold"),
    ],
)
def test_a_bad_file_is_named(tmp_path, change, message):
    state = checkpoint("perfeature")
    change(state)
    file = save(tmp_path / "bad.pt", state)
    with pytest.raises(ValueError, match=message) as caught:
        SAE.load_from_disk(file, converter=cosine_scored_saes_disk_loader)
    assert str(file) in str(caught.value)


def test_code_in_a_file_is_refused_by_name(tmp_path):
    file = save(
        tmp_path / "sae.pt", {"state_dict": checkpoint("global-a"), "x": Harmful()}
    )
    with pytest.raises(ValueError, match=r"refused: .* call _?pickle\.loads"):
        cosine_scored_saes_disk_loader(file)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder that holds sae_final\.pt"):
        cosine_scored_saes_disk_loader(tmp_path)
    with pytest.raises(ValueError, match="holds no state dict"):
        cosine_scored_saes_disk_loader(save(tmp_path / "list.pt", [1, 2]))
    whole = save(tmp_path / "whole.pt", checkpoint("standard")).read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="no complete torch file"):
        cosine_scored_saes_disk_loader(tmp_path / "cut.pt")


@pytest.mark.parametrize("arm", ARMS)
def test_an_uncalibrated_file_can_be_calibrated(tmp_path, arm):
    file = save(tmp_path / "sae.pt", checkpoint(arm, threshold=-1.0))
    open_anyway = functools.partial(
        cosine_scored_saes_disk_loader, allow_uncalibrated=True
    )
    sae = SAE.load_from_disk(file, converter=open_anyway)
    x = activations(200)
    assert (sae.encode(x) > 0).sum() > 5 * len(x)
    threshold = calibrate_threshold(sae, x, k=3, batch_size=64)
    assert (sae.encode(x) > 0).sum() == 3 * len(x)
    assert torch.equal(sae.threshold, torch.full((D_SAE,), threshold))


def test_calibration_of_worked_scores():
    # One column of ones and no bias: with exponent 1 the score is the activation.
    # Scores 1, 2, 3, 4 and k = 1/2: two of four tokens, so the threshold is 2.
    from sae_lens_cosine import CosineJumpReLUSAEConfig

    sae = CosineJumpReLUSAE(CosineJumpReLUSAEConfig(1, 1))
    for tensor, value in ((sae.W_enc, 1), (sae.exponent, 1), (sae.W_dec, 1)):
        tensor.data.fill_(value)
    x = torch.tensor([[3.0], [1.0], [4.0], [2.0]])
    assert calibrate_threshold(sae, x, k=0.5, batch_size=3) == 2.0
    assert sae.encode(x).flatten().tolist() == [3, 0, 4, 0]
    # fewer positive scores than asked for: all of them
    assert calibrate_threshold(sae, -x, k=1) == 0.0


def test_calibration_refuses_and_changes_nothing():
    from helpers import training_sae

    from sae_lens_cosine import CosineJumpReLUSAEConfig

    sae = CosineJumpReLUSAE(CosineJumpReLUSAEConfig(D_IN, D_SAE))
    sae.threshold.data.fill_(0.7)
    bad = activations(4)
    bad[2] = math.inf
    for x, k, message in (
        (bad, 3, "row 2"),
        (activations(4), 0, "k=0"),
        (activations(4), 99, "k=99"),
        (activations(4), 0.1, "less than one"),
        (activations(4)[0], 3, r"shape \(8,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            calibrate_threshold(sae, x, k)
    assert (sae.threshold == 0.7).all()
    with pytest.raises(TypeError, match="CosineTopKTrainingSAE has no threshold"):
        calibrate_threshold(training_sae("cosine_topk"), activations(4), 3)
