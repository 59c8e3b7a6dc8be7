"""What the inference SAEs with a cosine score share."""

import math
from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from sae_lens.saes.sae import SAEConfig
from torch import nn
from typing_extensions import override

from sae_lens_cosine.format_version import Versioned
from sae_lens_cosine.score import cosine_score, row_norms
from sae_lens_cosine.sink_latents import SinkLatents
from sae_lens_cosine.validation import check_choice, check_normalization

ExponentMode = Literal["global", "per_feature"]
EXPONENT_MODES: tuple[ExponentMode, ...] = ("global", "per_feature")


@dataclass
class CosineSAEConfig(Versioned, SAEConfig, ABC):
    """
    Configuration shared by the inference SAEs with a cosine score.

    Args:
        exponent_mode: "global" for one exponent, "per_feature" for one a latent.
        sink_rank: most directions of attention sinks that have latents of their own.
    """

    exponent_mode: ExponentMode = "global"
    sink_rank: int = 0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("exponent_mode", self.exponent_mode, EXPONENT_MODES)
        check_normalization(self.normalize_activations)


class CosineSAE(SinkLatents, ABC):
    """An inference SAE that scores ``n^(a_i - 1) <x_c, W_enc[:, i]> + b_enc_i``.

    The scale lives in the columns, ``W_enc[:, i] = exp(b_i) u_i``, so that SAELens's
    fold of the decoder norms is right as it stands and, at exponent 1, the SAE is
    SAELens's own of the same name. Latents reserved for sinks score with exponent 1,
    no bias and no threshold. Concrete classes add the selector.
    """

    precision_floors: ClassVar[dict[str, torch.dtype]] = {
        **SinkLatents.precision_floors,
        "exponent": torch.float32,
        "threshold": torch.float32,
    }

    cfg: CosineSAEConfig
    b_enc: nn.Parameter
    exponent: nn.Parameter  # scalar or [d_sae]

    @override
    def initialize_weights(self) -> None:
        super().initialize_weights()
        shape = () if self.cfg.exponent_mode == "global" else (self.cfg.d_sae,)
        self.exponent = nn.Parameter(
            torch.zeros(shape, dtype=torch.float32, device=self.device)
        )

    def score(self, x: torch.Tensor) -> torch.Tensor:
        """``hidden_pre``, ``[..., d_sae]``, of raw activations ``x``, ``[..., d_in]``.

        Raises:
            ValueError: on a wrong width, or on NaN or infinite rows.
        """
        x_c, sink_pre = self.read(x)
        hidden_pre = cosine_score(x_c, self.W_enc, self.exponent, self.b_enc)
        if sink_pre is not None:
            n_reserved = sink_pre.shape[-1]
            # Columns +-v_j: their norm is what folds have made of the unit scale.
            columns = self.W_enc[:, -n_reserved:]
            sink_pre = sink_pre * columns.norm(dim=0, dtype=sink_pre.dtype)
            hidden_pre[..., -n_reserved:] = sink_pre.to(hidden_pre.dtype)
        return self.hook_sae_acts_pre(hidden_pre)

    def select(self, hidden_pre: torch.Tensor) -> torch.Tensor:
        """Selector on the ordinary latents, with which reserved ones do not compete."""
        n_reserved = len(self.sink_latents)
        if n_reserved == 0:
            return self.activation_fn(hidden_pre)
        ordinary = self.activation_fn(hidden_pre[..., :-n_reserved])
        return torch.cat([ordinary, hidden_pre[..., -n_reserved:].relu()], dim=-1)

    @override
    @torch.no_grad()
    def fold_activation_norm_scaling_factor(self, scaling_factor: float) -> None:
        """Make ``encode(x)`` what ``encode(scaling_factor * x)`` was.

        The centred input grows by the factor, so the score does by its power
        ``a_i``: SAELens's fold multiplies the columns by the factor itself, and the
        missing power ``a_i - 1`` is added here.
        """
        super().fold_activation_norm_scaling_factor(scaling_factor)
        power = torch.exp((self.exponent - 1) * math.log(scaling_factor))
        power = power.repeat(self.cfg.d_sae // power.numel())
        power[self.sink_latents] = 1
        self.W_enc.data.copy_(self.W_enc * power)

    @override
    @torch.no_grad()
    def get_W_dec_norm(self) -> torch.Tensor:
        """Decoder norms ``[d_sae]`` in float32 or wider, 1 where a row is zero.

        A zero row thus stays zero and keeps its encoder and threshold through any
        number of folds.
        """
        norm = row_norms(self.W_dec)
        return torch.where(norm > 0, norm, torch.ones_like(norm))

    @override
    def fold_activation_whitening(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "Whitening cannot be folded into a cosine score: the norm of a whitened "
            "activation is not a function of the activation's norm."
        )

    @override
    def process_state_dict_for_loading(self, state_dict: dict[str, Any]) -> None:
        super().process_state_dict_for_loading(state_dict)
        if "exponent_base" in state_dict:
            raise ValueError(
                f"This is a training checkpoint of {self.cfg.architecture()!r}, whose "
                "encoder rows are not scaled yet. Open it with "
                "TrainingSAE.load_from_disk(path), write "
                "sae.save_inference_model(other_path), and load that."
            )
