import pytest
import torch
from helpers import EXPONENT_MODES, K, activations, step, train, training_sae
from sae_lens import SAE

from sae_lens_cosine import CosineTopKSAE


def test_k_latents_a_token():
    acts = step(training_sae("cosine_topk"), activations()).feature_acts
    assert torch.equal((acts > 0).sum(dim=1), torch.full((64,), K))


@pytest.mark.parametrize("mode", EXPONENT_MODES)
def test_saved_for_inference_gives_the_same_activations(mode, tmp_path):
    sae = train(training_sae("cosine_topk", exponent_mode=mode))
    sae.save_inference_model(tmp_path)
    loaded = SAE.load_from_disk(tmp_path)
    assert isinstance(loaded, CosineTopKSAE)
    x = activations(seed=9)
    acts = sae.encode(x)
    assert (loaded.encode(x) - acts).abs().max() <= 1e-6 * acts.abs().max()
    torch.testing.assert_close(loaded(x), sae(x))
    loaded.fold_W_dec_norm()
    torch.testing.assert_close(loaded(x), sae(x))


def test_a_fraction_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"k=2.5 must be a whole .*cosine_batchtopk"):
        training_sae("cosine_topk", k=2.5)
