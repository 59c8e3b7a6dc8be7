"""What the training SAEs with a cosine score share."""

import math
from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sae_lens.saes.sae import TrainStepInput, TrainStepOutput
from torch import nn
from typing_extensions import override

from sae_lens_cosine.inference import EXPONENT_MODES, ExponentMode
from sae_lens_cosine.initialization import (
    BIAS_INITS,
    LOG_SCALE_INITS,
    BiasInit,
    LogScaleInit,
    bias_from,
    typical_norm,
)
from sae_lens_cosine.score import cosine_score, inverse_norms, unit
from sae_lens_cosine.sink_training import SinkTrainingSAE, SinkTrainingSAEConfig
from sae_lens_cosine.sparse_step import Entries
from sae_lens_cosine.validation import check_choice, check_normalization


@dataclass(kw_only=True)
class CosineTrainingSAEConfig(SinkTrainingSAEConfig, ABC):
    """
    Configuration shared by the training SAEs with a cosine score.

    Args:
        exponent_mode: "global" for one exponent and scale, "per_feature" for a shared base plus one offset (and one scale) a latent.
        initial_exponent: where the exponent starts: 0 is the cosine, 1 the inner product with unit rows.
        train_exponent: whether the exponent is learned; frozen at 0 or 1 it gives the pure cosine and the unit-row control.
        train_log_scale: whether the log scale is learned.
        log_scale_init: norm at which a score starts as large as the activation: "sqrt_d", "median_norm" of the first batch, or "auto", the former unless the latter is more than twice away.
        initial_log_scale: a number to start the log scale at, instead of log_scale_init.
        b_dec_init_method: "geometric_median", "mean" of the first batch, or "zeros".
        decoder_init_norm: decoder rows are kept at unit norm, so only 1.0 (or None, the same) is possible.
    """

    exponent_mode: ExponentMode = "global"
    initial_exponent: float = 0.0
    train_exponent: bool = True
    train_log_scale: bool = True
    log_scale_init: LogScaleInit = "auto"
    initial_log_scale: float | None = None
    b_dec_init_method: BiasInit = "geometric_median"
    decoder_init_norm: float | None = 1.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("exponent_mode", self.exponent_mode, EXPONENT_MODES)
        check_choice("log_scale_init", self.log_scale_init, LOG_SCALE_INITS)
        check_choice("b_dec_init_method", self.b_dec_init_method, BIAS_INITS)
        check_normalization(self.normalize_activations)
        for name in ("initial_exponent", "initial_log_scale"):
            value = getattr(self, name)
            if value is not None and not abs(value) <= 50:
                raise ValueError(
                    f"{name}={value} must be a number between -50 and 50: the score "
                    "is a power of e, and of the norm, by it."
                )
        if self.decoder_init_norm not in (None, 1.0):
            raise ValueError(
                f"decoder_init_norm={self.decoder_init_norm} has no effect: a cosine "
                "SAE keeps its decoder rows at unit norm. Leave it at 1.0."
            )
        if not getattr(self, "rescale_acts_by_decoder_norm", True):
            raise ValueError(
                "rescale_acts_by_decoder_norm=False has no effect: a cosine SAE is "
                "trained with unit decoder rows. Leave it at True."
            )


class CosineTrainingSAE(SinkTrainingSAE, ABC):
    """A training SAE that scores ``exp(b_i) n^(a_i) cos(x_c, w_i) + b_enc_i``.

    Both sides are read through their directions: encoder columns are normalised in
    every forward pass and so are decoder rows, which makes the decoder's gradient
    orthogonal to the rows, as the paper projects it. Every training step also puts
    the stored decoder rows back to unit norm, which changes no output.

    Concrete classes inherit from this class and from the SAELens class whose
    selector they take.
    """

    precision_floors: ClassVar[dict[str, torch.dtype]] = {
        **SinkTrainingSAE.precision_floors,
        "exponent_base": torch.float32,
        "exponent_delta": torch.float32,
        "log_scale": torch.float32,
    }

    cfg: Any
    b_enc: nn.Parameter
    exponent_base: nn.Parameter  # scalar
    exponent_delta: nn.Parameter | None  # [d_sae], or None if global
    log_scale: nn.Parameter  # b: scalar if global, else [d_sae]

    @override
    def initialize_weights(self) -> None:
        super().initialize_weights()
        cfg = self.cfg
        per_feature = cfg.exponent_mode == "per_feature"

        def parameter(shape: tuple[int, ...], value: float, train: bool):
            tensor = torch.full(shape, value, dtype=torch.float32, device=self.device)
            return nn.Parameter(tensor, requires_grad=train)

        self.exponent_base = parameter((), cfg.initial_exponent, cfg.train_exponent)
        self.exponent_delta = (
            parameter((cfg.d_sae,), 0.0, cfg.train_exponent) if per_feature else None
        )
        log_scale = cfg.initial_log_scale
        if log_scale is None:
            log_scale = (1 - cfg.initial_exponent) * math.log(math.sqrt(cfg.d_in))
        self.log_scale = parameter(
            (cfg.d_sae,) if per_feature else (), log_scale, cfg.train_log_scale
        )

    @property
    def exponent(self) -> torch.Tensor:
        """``a``: a scalar, or ``a_base + delta_i``, ``[d_sae]``.

        Independent exponents collapse where norms are far from sqrt(d): in the
        authors' runs 84% of the features died, against 0.4% with a shared base.
        """
        if self.exponent_delta is None:
            return self.exponent_base
        return self.exponent_base + self.exponent_delta

    @property
    def scaled_W_enc(self) -> torch.Tensor:
        """``[d_in, d_sae]`` with columns ``exp(b_i) u_i``, in the dtype of ``W_enc``.

        Columns of latents reserved for sinks are zero. In memory they are rows, as
        the sparse step reads and adds to them.
        """
        scale = self.log_scale.exp() * self.competes
        rows = self.W_enc.T.contiguous()
        return unit(rows, dim=1, scale=scale).to(self.W_enc.dtype).T

    @override
    def encode_with_hidden_pre(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``feature_acts`` and ``hidden_pre``, both ``[..., d_sae]``.

        ``hidden_pre`` is 0 for latents reserved for sinks.

        Raises:
            ValueError: on a wrong width, or on NaN or infinite rows.
        """
        x_c, sink_pre = self.read(x)
        W_enc, b_enc = self.scaled_W_enc, self.b_enc * self.competes

        def score(at: Entries | None) -> torch.Tensor:
            return cosine_score(x_c, W_enc, self.exponent, b_enc, at)

        return self.select(score, sink_pre)

    def scores_of(
        self, latents: torch.Tensor, sae_in: torch.Tensor, hidden_pre: torch.Tensor
    ) -> torch.Tensor:
        """``hidden_pre`` of some latents with its gradient, ``[n, n_latents]``."""
        if not self.is_sparse_step:
            return hidden_pre.index_select(-1, latents)

        def pick(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.index_select(-1, latents) if tensor.ndim else tensor

        scale = pick(self.log_scale).exp()
        W_enc = unit(pick(self.W_enc), dim=0, scale=scale)
        x_c, _ = self.read(sae_in)
        return cosine_score(x_c, W_enc, pick(self.exponent), pick(self.b_enc))

    @override
    def decode(self, feature_acts: torch.Tensor) -> torch.Tensor:
        """Reconstruction ``[..., d_in]`` of ``feature_acts``, ``[..., d_sae]``."""
        sae_out = self.weighted_rows(feature_acts, self.unit_W_dec) + self.b_dec
        sae_out = self.run_time_activation_norm_fn_out(self.hook_sae_recons(sae_out))
        return self.reshape_fn_out(sae_out, self.d_head)

    @override
    @torch.no_grad()
    def prepare_step(self, x: torch.Tensor) -> None:
        if self.n_batches_trained == 0:
            self.initialize_from(x)
        self.W_dec.mul_(inverse_norms(self.W_dec, dim=1))

    @override
    def training_forward_pass(self, step_input: TrainStepInput) -> TrainStepOutput:
        """A training step; see `SinkTrainingSAE` for the rows that it sees.

        Raises:
            ValueError: on a wrong width, or on NaN or infinite rows; nothing has
                changed then.
        """
        output = super().training_forward_pass(step_input)
        output.metrics |= self.exponent_metrics()
        return output

    @torch.no_grad()
    def initialize_from(self, x: torch.Tensor) -> None:
        """Set ``b_dec`` and the log scale from the first batch, ``[n, d_in]``."""
        self.b_dec.copy_(bias_from(x, self.cfg.b_dec_init_method))
        if self.cfg.initial_log_scale is None:
            x_c = x - self.b_dec * self.cfg.apply_b_dec_to_input
            norm = typical_norm(x_c, self.cfg.log_scale_init)
            self.log_scale.fill_((1 - self.cfg.initial_exponent) * math.log(norm))

    @torch.no_grad()
    def exponent_metrics(self) -> dict[str, torch.Tensor]:
        """What the score has learned, for the training log."""
        exponent = self.exponent
        return {
            "exponent_mean": exponent.mean(),
            "exponent_min": exponent.min(),
            "exponent_max": exponent.max(),
            "scale_mean": self.log_scale.exp().mean(),
        }

    @override
    @torch.no_grad()
    def log_histograms(self) -> dict[str, Any]:
        histograms = super().log_histograms()
        if self.exponent_delta is not None:
            histograms["weights/exponent"] = self.exponent.float().cpu().numpy()
        return histograms

    @override
    @torch.no_grad()
    def fold_W_dec_norm(self) -> None:
        """Normalise the stored decoder rows; no output depends on their norm."""
        self.W_dec.copy_(unit(self.W_dec, dim=1))

    @override
    @torch.no_grad()
    def fold_activation_norm_scaling_factor(self, scaling_factor: float) -> None:
        """Read raw activations instead of ``scaling_factor`` times them.

        With unit decoder rows the activations come out divided by the factor, as
        SAELens's do with `rescale_acts_by_decoder_norm`:
        ``s_i(x) = s_i_before(factor x) / factor``.
        """
        # SAELens rescales both weights, of which only the directions count here.
        super().fold_activation_norm_scaling_factor(scaling_factor)
        self.W_dec.copy_(unit(self.W_dec, dim=1))
        self.b_enc.div_(scaling_factor)
        self.log_scale.add_((self.exponent - 1) * math.log(scaling_factor))

    @override
    def fold_activation_whitening(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "Whitening cannot be folded into a cosine score: the norm of a whitened "
            "activation is not a function of the activation's norm."
        )

    @override
    @torch.no_grad()
    def process_state_dict_for_saving_inference(
        self, state_dict: dict[str, Any]
    ) -> None:
        """Replace the training tensors by those of the inference convention.

        The entries of a state dict alias the live weights, so all are cloned.
        """
        for key in ("exponent_base", "exponent_delta", "log_scale"):
            state_dict.pop(key, None)
        state_dict |= {
            "W_enc": self.scaled_W_enc.contiguous(),
            "W_dec": unit(self.W_dec, dim=1).to(self.W_dec.dtype),
            "b_enc": self.b_enc.detach().clone(),
            "b_dec": self.b_dec.detach().clone(),
            "exponent": self.exponent.detach().clone(),
        }
        self.export_sinks(state_dict)

    @override
    def process_state_dict_for_loading(self, state_dict: dict[str, Any]) -> None:
        super().process_state_dict_for_loading(state_dict)
        if "exponent" in state_dict:
            raise ValueError(
                f"This is an inference SAE, not a training checkpoint of "
                f"{self.cfg.architecture()!r}: open it with SAE.load_from_disk(path). "
                "Training continues from a checkpoint folder."
            )
