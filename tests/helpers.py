"""Shared by the tests: small SAEs, batches and training steps."""

from dataclasses import replace
from typing import Any

import torch
from sae_lens import (
    StandardSAE,
    StandardSAEConfig,
    TrainingSAE,
    TrainingSAEConfig,
)
from sae_lens.saes.sae import TrainStepInput, TrainStepOutput

import sae_lens_cosine  # noqa: F401  (registers the architectures)

D_IN, D_SAE, K = 8, 24, 3
# Every training architecture with the cosine score, and what it needs to be told.
SELECTORS: dict[str, dict[str, Any]] = {
    "cosine_batchtopk": {"k": K},
    "cosine_topk": {"k": K},
    "cosine_abstopk": {"k": K},
    "cosine_matryoshka_batchtopk": {"k": K, "matryoshka_widths": [6, 12, 24]},
    "cosine_jumprelu": {
        "jumprelu_sparsity_loss_mode": "quadratic",
        "target_l0": 3.0,
        "jumprelu_init_threshold": 1.0,
        "jumprelu_bandwidth": 1.0,
    },
}
TRAINING_ARCHITECTURES = tuple(SELECTORS)
TOPK_ARCHITECTURES = tuple(name for name in SELECTORS if "k" in SELECTORS[name])
EXPONENT_MODES = ("global", "per_feature")


def training_sae(architecture: str = "cosine_batchtopk", **cfg: Any) -> TrainingSAE:
    """An SAE by name, as SAELens builds it from a config file."""
    torch.manual_seed(0)
    selector = SELECTORS.get(architecture, {"k": K})
    fields = {"architecture": architecture, "d_in": D_IN, "d_sae": D_SAE, **selector}
    return TrainingSAE.from_dict(TrainingSAEConfig.from_dict(fields | cfg).to_dict())


def activations(n: int = 64, seed: int = 0, d_in: int = D_IN) -> torch.Tensor:
    """Rows of norms spread around 20, centred off the origin."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d_in, generator=generator)
    spread = torch.exp(0.5 * torch.randn(n, 1, generator=generator))
    return 5 * spread * x + 1.5


def step(
    sae: TrainingSAE, x: torch.Tensor, dead: torch.Tensor | None = None
) -> TrainStepOutput:
    """A training step, its activations dense for reading."""
    output = sae.training_forward_pass(
        TrainStepInput(
            sae_in=x,
            coefficients={"l0": 1.0},
            dead_neuron_mask=dead,
            n_training_steps=0,
            is_logging_step=False,
        )
    )
    return replace(output, feature_acts=output.feature_acts.to_dense())


def train(sae: TrainingSAE, n_steps: int = 10, lr: float = 1e-2) -> TrainingSAE:
    """Some steps of Adam, the last one taken: the weights are off every constraint."""
    optimizer = torch.optim.Adam(sae.parameters(), lr=lr)
    for i in range(n_steps):
        step(sae, activations(seed=i)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return sae


def linear_sae(
    d_in: int, scale: float = 1.0, dtype: str = "float64", **cfg: Any
) -> StandardSAE:
    """``x_hat = scale * x``: latents relu(x) and relu(-x), each with its own row."""
    sae = StandardSAE(StandardSAEConfig(d_in=d_in, d_sae=2 * d_in, dtype=dtype, **cfg))
    identity = torch.eye(d_in, dtype=sae.dtype)
    sae.W_enc.data = torch.cat([identity, -identity], dim=1)
    sae.W_dec.data = torch.cat([scale * identity, -scale * identity])
    return sae
