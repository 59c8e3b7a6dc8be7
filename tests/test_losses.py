"""The auxiliary loss and the norm-weighted losses, by worked numbers."""

import pytest
import torch
from helpers import (
    D_SAE,
    TOPK_ARCHITECTURES,
    TRAINING_ARCHITECTURES,
    activations,
    step,
    train,
    training_sae,
)
from sae_lens import SAE, JumpReLUSAE, TrainingSAE, TrainingSAEConfig

from sae_lens_cosine.aux_loss import aux_loss
from sae_lens_cosine.loss_weighting import token_weights

CONTROL = "reweighted_batchtopk"
# Two tokens and two dead latents, 2 and 3, in two dimensions.
SAE_IN = torch.tensor([[4.0, 0.0], [0.0, 2.0]])
SAE_OUT = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
DEAD_PRE = torch.tensor([[2.0, 1.0], [-1.0, 0.5]])
DEAD_ROWS = torch.tensor([[5.0, 0.0], [0.0, 0.1]])
B_DEC = torch.zeros(2)


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        # d_in / 2 = 1 dead latent a token, the best: latent 2 (2.0) and 3 (0.5), with
        # unit rows: reconstructions (2, 0) and (0, 0.5) of residuals (3, 0) and (0, 1).
        # Squared errors 1 and 0.25, mean 0.625.
        ("none", 0.625),
        # Residuals have mean (1.5, 0.5) and squared distances 2.5 each: 0.625 / 2.5.
        ("residual_variance", 0.25),
        # Squared norms of the inputs are 16 and 4, their (lower) median 4: 0.25 * 4.
        ("relative", 1.0),
    ],
)
def test_worked_aux_loss(normalization, expected):
    loss = aux_loss(SAE_IN, SAE_OUT, DEAD_PRE, DEAD_ROWS, B_DEC, normalization)
    torch.testing.assert_close(loss.item(), expected)


@pytest.mark.parametrize("factor", [1e-2, 1e2])
def test_relative_aux_loss_weighs_the_same_at_every_scale(factor):
    def share(scale: float) -> torch.Tensor:
        x, out, pre = scale * SAE_IN, scale * SAE_OUT, scale * DEAD_PRE
        aux = aux_loss(x, out, pre, DEAD_ROWS, B_DEC, "relative")
        return aux / (x - out).pow(2).sum(dim=1).mean()

    torch.testing.assert_close(share(factor), share(1.0))


@pytest.mark.parametrize("normalization", ["none", "residual_variance", "relative"])
def test_no_dead_latents_and_no_residual_are_zero(normalization):
    nothing = DEAD_PRE[:, :0], DEAD_ROWS[:0]
    assert aux_loss(SAE_IN, SAE_OUT, *nothing, B_DEC, normalization) == 0
    loss = aux_loss(SAE_IN, SAE_IN, DEAD_PRE, DEAD_ROWS, B_DEC, normalization)
    assert loss.isfinite()


def test_few_dead_latents_scale_saelens_loss():
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    dead_pre = torch.randn(16, 1, generator=torch.Generator().manual_seed(1))
    row = torch.eye(8)[:1]
    loss = aux_loss(x, torch.zeros_like(x), dead_pre, row, torch.zeros(8))
    error = dead_pre @ row - x
    # 1 of d_in / 2 = 4
    torch.testing.assert_close(loss, error.pow(2).sum(dim=1).mean() / 4)


@pytest.mark.parametrize("architecture", TOPK_ARCHITECTURES)
@pytest.mark.parametrize("normalization", ["none", "residual_variance", "relative"])
def test_aux_loss_is_finite_with_zero_decoder_rows(architecture, normalization):
    sae = training_sae(
        architecture, aux_loss_normalization=normalization, aux_loss_coefficient=1 / 32
    )
    sae.W_dec.data[:2] = 0
    output = step(sae, activations(), dead=torch.arange(D_SAE) < 6)
    aux = output.losses["auxiliary_reconstruction_loss"]
    output.loss.backward()
    grads = [p.grad for p in sae.parameters() if p.grad is not None]
    assert all(grad.isfinite().all() for grad in grads)
    assert aux.isfinite()
    assert aux > 0


@pytest.mark.parametrize("architecture", ["topk", "batchtopk", "abstopk"])
def test_default_aux_loss_is_saelens_own(architecture):
    # Same weights, unit rows, exponent 1: only the auxiliary loss is compared.
    ours = training_sae(f"cosine_{architecture}", initial_exponent=1.0)
    fields = {"architecture": architecture, "d_in": 8, "d_sae": D_SAE, "k": 3}
    theirs = TrainingSAE.from_dict(TrainingSAEConfig.from_dict(fields).to_dict())
    dead = torch.arange(D_SAE) < 6
    x = activations()
    step(ours, x)
    theirs.load_state_dict(
        {
            key: value
            for key, value in ours.state_dict().items()
            if key in theirs.state_dict()
        }
    )
    losses = [
        step(sae, x, dead=dead).losses["auxiliary_reconstruction_loss"]
        for sae in (ours, theirs)
    ]
    assert losses[0] > 0
    torch.testing.assert_close(*losses)


def test_worked_token_weights():
    # Norms 1, 2, 4: 1/n has mean 7/12, 1/n^2 has mean 21/48.
    x_c = torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 0.0]])
    inverse = token_weights(x_c, "inverse_norm").flatten()
    torch.testing.assert_close(inverse, torch.tensor([12.0, 6.0, 3.0]) / 7)
    squared = token_weights(x_c, "inverse_norm_squared").flatten()
    torch.testing.assert_close(squared, torch.tensor([48.0, 12.0, 3.0]) / 21)
    assert torch.equal(token_weights(x_c, "none"), torch.ones(3, 1))


@pytest.mark.parametrize("weighting", ["inverse_norm", "inverse_norm_squared"])
def test_token_weights_stay_finite(weighting):
    for scale in (1e-18, 1e18):
        x_c = scale * torch.tensor([[1.0, 0.0], [0.0, 0.0], [3.0, 0.0]])
        weights = token_weights(x_c, weighting)
        assert weights.isfinite().all()
        assert weights[1] == 0
        torch.testing.assert_close(weights.mean(), torch.tensor(1.0))
    assert torch.equal(token_weights(torch.zeros(2, 2), weighting), torch.zeros(2, 1))


@pytest.mark.parametrize("weighting", ["inverse_norm", "inverse_norm_squared"])
@pytest.mark.parametrize("architecture", [*TRAINING_ARCHITECTURES, CONTROL])
def test_weighted_loss_of_a_step(architecture, weighting):
    sae = training_sae(architecture, loss_weighting=weighting)
    output = step(sae, x := activations())
    n = (x - sae.b_dec).norm(dim=1).detach()
    weight = 1 / n if weighting == "inverse_norm" else 1 / n**2
    weight = weight / weight.mean()
    error = (output.sae_out - x).pow(2).sum(dim=1)
    torch.testing.assert_close(output.losses["mse_loss"], (weight * error).mean())
    output.loss.backward()
    assert sae.b_dec.grad is not None


def test_the_weights_carry_no_gradient():
    # A token that is reconstructed exactly but for b_dec: were the weight part of the
    # graph, b_dec would gain by moving away.
    sae = training_sae(CONTROL, loss_weighting="inverse_norm")
    x = activations()
    weights = token_weights(x - sae.b_dec, "inverse_norm")
    assert not weights.requires_grad


def test_control_is_saelens_batchtopk_without_weights():
    control = training_sae(
        CONTROL, outlier_norm_multiple=None, b_dec_init_method="zeros"
    )
    fields = {"architecture": "batchtopk", "d_in": 8, "d_sae": D_SAE, "k": 3}
    plain = TrainingSAE.from_dict(
        TrainingSAEConfig.from_dict(fields | {"decoder_init_norm": 1.0}).to_dict()
    )
    weights = control.state_dict()
    weights.pop("n_batches_trained")
    plain.load_state_dict(weights)
    for i in range(3):
        x = activations(seed=i)
        outputs = [step(sae, x) for sae in (control, plain)]
        torch.testing.assert_close(outputs[0].loss, outputs[1].loss)
    # all but the running threshold, which the control corrects for its start
    assert control.topk_threshold > plain.topk_threshold


def test_control_is_saved_as_plain_jumprelu(tmp_path):
    sae = train(training_sae(CONTROL, loss_weighting="inverse_norm"))
    live = {key: value.clone() for key, value in sae.state_dict().items()}
    sae.save_inference_model(tmp_path)
    for key, value in sae.state_dict().items():
        assert torch.equal(value, live[key]), key
    loaded = SAE.load_from_disk(tmp_path)
    assert type(loaded) is JumpReLUSAE
    torch.testing.assert_close(loaded.W_dec.norm(dim=1), torch.ones(D_SAE))
    x = activations(seed=99)
    acts = loaded.encode(x)
    assert acts.count_nonzero() > 0
    _, hidden_pre = sae.encode_with_hidden_pre(x)
    torch.testing.assert_close(acts, hidden_pre * (hidden_pre > loaded.threshold))


def test_control_drops_sinks_and_starts_from_the_median():
    sae = training_sae(CONTROL)
    x = activations()
    x[0] *= 1000
    assert torch.equal(step(sae, x).sae_in, x[1:])
    assert sae.b_dec.norm() > 0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("loss_weighting", "norm", "loss_weighting='norm' is unknown.*'inverse_norm'"),
        ("aux_loss_normalization", "x", "aux_loss_normalization='x' is unknown"),
        ("k", 0, "k=0 must be above 0"),
        ("outlier_norm_multiple", 1.0, "outlier_norm_multiple=1.0 must be a number"),
        ("b_dec_init_method", "max", "b_dec_init_method='max' is unknown"),
        ("rescale_acts_by_decoder_norm", False, "unit decoder rows"),
        ("normalize_activations", "layer_norm", "cannot be combined"),
    ],
)
def test_control_names_the_bad_value(field, value, message):
    with pytest.raises(ValueError, match=message):
        training_sae(CONTROL, **{field: value})


@pytest.mark.parametrize("architecture", [CONTROL, "cosine_matryoshka_batchtopk"])
def test_training_only_checkpoints_say_what_to_do(architecture, tmp_path):
    training_sae(architecture).save_model(tmp_path)
    with pytest.raises(ValueError, match=r"training checkpoint.*save_inference"):
        SAE.load_from_disk(tmp_path)
