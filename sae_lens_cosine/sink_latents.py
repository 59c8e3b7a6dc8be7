"""Latents reserved for attention sinks, in training and inference SAEs alike."""

from abc import ABC
from typing import Any, ClassVar

import torch
from sae_lens.saes.sae import SAE
from typing_extensions import override

from sae_lens_cosine.precision import KeepsPrecision
from sae_lens_cosine.score import row_norms
from sae_lens_cosine.validation import check_activations


def with_signs(directions: torch.Tensor | None) -> torch.Tensor | None:
    """``v_1..v_r, -v_1..-v_r`` of ``[sink_rank, d_in]`` whose rows beyond r are zero.

    None where all are.
    """
    if directions is None:
        return None
    r = int((directions != 0).any(dim=1).sum())
    return torch.cat([directions[:r], -directions[:r]]) if r else None


class SinkLatents(KeepsPrecision, SAE[Any], ABC):
    """An SAE that rebuilds attention sinks through latents of their own.

    With orthonormal directions ``v_1..v_r`` and a norm limit, a token with
    ``||x|| > limit`` has its coefficients ``c_j = <x - b_dec, v_j>`` taken out before
    the other latents are scored. They come back through the last ``2 r`` latents,
    ``relu(c_1)..relu(c_r), relu(-c_1)..relu(-c_r)``, whose decoder rows are ``v_j``
    and ``-v_j``: plain latents to whoever calls `encode` and `decode` apart. Tokens
    within the limit are untouched, and so is every token while ``r = 0``.

    ``cfg.sink_rank`` bounds ``r``. The buffers have a shape of their own, whatever was
    found, so that SAELens can load them strictly.
    """

    precision_floors: ClassVar[dict[str, torch.dtype]] = {
        "sink_directions": torch.float32,
        "sink_limit": torch.float32,
    }

    sink_directions: torch.Tensor | None  # [sink_rank, d_in], zero rows beyond r
    sink_limit: torch.Tensor | None  # scalar

    @override
    def initialize_weights(self) -> None:
        super().initialize_weights()
        directions = limit = None
        if self.cfg.sink_rank > 0:
            shape = (self.cfg.sink_rank, self.cfg.d_in)
            directions = torch.zeros(shape, dtype=torch.float32, device=self.device)
            limit = torch.zeros((), dtype=torch.float32, device=self.device)
        self.register_buffer("sink_directions", directions)
        self.register_buffer("sink_limit", limit)

    @property
    def sink_latents(self) -> list[int]:
        """Indices of the reserved latents; empty where no sinks were found."""
        signed = self.signed_sink_directions
        n = self.cfg.d_sae
        return list(range(n - (0 if signed is None else len(signed)), n))

    @property
    def sink_norm_limit(self) -> float | None:
        """Uncentred norm above which a token is a sink; None without reserved latents."""
        if self.signed_sink_directions is None:
            return None
        assert self.sink_limit is not None
        return self.sink_limit.item()

    @property
    def signed_sink_directions(self) -> torch.Tensor | None:
        """``v_1..v_r, -v_1..-v_r``: ``[2 r, d_in]``, the order of the latents.

        None where no sinks were found.
        """
        return with_signs(self.sink_directions)

    def read(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Centre activations and take the sink part out.

        Args:
            x: ``[..., d_in]`` (``[..., n_heads, d_head]`` for hook_z).

        Returns:
            What the ordinary latents score, ``[..., d_in]``, and the signed
            coefficients ``c, -c`` of the reserved ones, ``[..., 2 r]``, zero for
            tokens within the limit; None instead where nothing is reserved.

        Raises:
            ValueError: on a wrong width, or on NaN or infinite rows.
        """
        check_activations(x, self.cfg.d_in, self.hook_z_reshaping_mode)
        sae_in = self.hook_sae_input(self.reshape_fn_in(x.to(self.dtype)))
        sae_in = self.run_time_activation_norm_fn_in(sae_in)
        flat = sae_in.reshape(-1, sae_in.shape[-1])
        bias = self.b_dec * self.cfg.apply_b_dec_to_input
        rows = flat - bias
        signed = self.signed_sink_directions
        if signed is None:
            return rows.reshape(sae_in.shape), None
        signed = signed.to(torch.promote_types(rows.dtype, signed.dtype))
        assert self.sink_limit is not None
        is_sink = (row_norms(sae_in) > self.sink_limit).flatten()
        # The others, 99% of the rows, are left alone.
        sinks = is_sink.nonzero().squeeze(1)
        # Centred anew: the gradient of a choice among `rows` has the size of the batch.
        wide = (flat.index_select(0, sinks) - bias).to(signed.dtype)
        # Without autocast: a bfloat16 coefficient leaves 0.4% of a norm of 24,000,
        # more than an ordinary token.
        with torch.autocast(x.device.type, enabled=False):
            of_sinks = wide @ signed.T
            # c v and (-c)(-v) each give the sink part once
            sink_part = 0.5 * of_sinks @ signed
        coefficients = signed.new_zeros(len(rows), len(signed))
        coefficients.index_copy_(0, sinks, of_sinks)
        if rows.dtype == signed.dtype:
            rows.index_add_(0, sinks, sink_part, alpha=-1)  # whose gradient is no copy
        else:
            rows.index_copy_(0, sinks, (wide - sink_part).to(rows.dtype))
        leading = sae_in.shape[:-1]
        return rows.reshape(sae_in.shape), coefficients.reshape(*leading, len(signed))

    @override
    @torch.no_grad()
    def fold_activation_norm_scaling_factor(self, scaling_factor: float) -> None:
        super().fold_activation_norm_scaling_factor(scaling_factor)
        if self.sink_limit is not None:
            self.sink_limit /= scaling_factor

    @override
    def process_state_dict_for_loading(self, state_dict: dict[str, Any]) -> None:
        """Make directions orthonormal again that a cast has bent.

        SAELens casts the weights on loading; rounded to bfloat16, the directions
        would leave 42 of a norm of 24,000 behind. What they span is kept to 2^-9.
        """
        super().process_state_dict_for_loading(state_dict)
        directions = state_dict.get("sink_directions")
        if directions is None or directions.dtype not in (
            torch.float16,
            torch.bfloat16,
        ):
            return
        directions = directions.float()
        found = (directions != 0).any(dim=1)
        left, _, right = torch.linalg.svd(directions[found], full_matrices=False)
        directions[found] = left @ right
        state_dict["sink_directions"] = directions
