"""Which rows a training step sees: outliers dropped, or given latents of their own."""

import logging
import math
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from sae_lens.saes.sae import (
    TrainingSAE,
    TrainingSAEConfig,
    TrainStepInput,
    TrainStepOutput,
)
from torch import nn
from typing_extensions import override

from sae_lens_cosine.format_version import Versioned
from sae_lens_cosine.score import row_norms, unit
from sae_lens_cosine.sink_estimation import SinkEstimator, is_outlier
from sae_lens_cosine.sink_latents import SinkLatents, with_signs
from sae_lens_cosine.sparse_step import (
    Entries,
    merge_sorted,
    sparse_product,
    takes_sparse_products,
)
from sae_lens_cosine.validation import check_activations, check_count

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SinkTrainingSAEConfig(Versioned, TrainingSAEConfig, ABC):
    """
    Configuration of how training treats tokens of outlying norm.

    Args:
        outlier_norm_multiple: tokens whose norm exceeds this many times the batch median are outliers: attention sinks, mostly. None treats no token as one.
        sink_rank: most directions that attention sinks may get latents for, two each, of the d_sae; 0 drops outliers from training, as the paper does.
    """

    outlier_norm_multiple: float | None = 10.0
    sink_rank: int = 3

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        multiple, rank = self.outlier_norm_multiple, self.sink_rank
        if multiple is not None and not (
            isinstance(multiple, int | float) and 1 < multiple < math.inf
        ):
            raise ValueError(
                f"outlier_norm_multiple={multiple!r} must be a number above 1, or "
                "ordinary tokens would be taken for outliers (the paper: 10), or None "
                "to treat all tokens alike."
            )
        check_count("sink_rank", rank, 0)
        if rank and multiple is None:
            raise ValueError(
                f"sink_rank={rank} needs outlier_norm_multiple, which says "
                "what a sink is: set it (the paper: 10), or set sink_rank=0."
            )


@dataclass(frozen=True)
class _Step:
    """What holds throughout a training step, worked out once."""

    is_sparse: bool
    signed_sink_directions: torch.Tensor | None


class SinkTrainingSAE(SinkLatents, TrainingSAE[Any], ABC):
    """A training SAE that estimates the sinks' directions on its first batches.

    Until then every latent is an ordinary one and outliers are dropped. Then the last
    ``2 r`` latents convert, and sinks are trained on like all tokens. Where no sinks
    are found nothing converts, and the SAE stays, bit for bit, one with
    ``sink_rank=0``.
    """

    precision_floors: ClassVar[dict[str, torch.dtype]] = {
        **SinkLatents.precision_floors,
        "n_batches_trained": torch.float64,
    }

    b_enc: nn.Parameter
    # Trainer counters count steps from where SAELens saved them, which is one short.
    n_batches_trained: torch.Tensor
    sink_estimator: SinkEstimator | None
    _has_warned = False
    _step: _Step | None = None

    @override
    def initialize_weights(self) -> None:
        super().initialize_weights()
        self.sink_estimator = (
            SinkEstimator(self.cfg.d_in, self.device) if self.cfg.sink_rank else None
        )
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        self.register_buffer("n_batches_trained", zero)

    @override
    def training_forward_pass(self, step_input: TrainStepInput) -> TrainStepOutput:
        """A training step on the rows that are not outliers.

        The rows are replaced here, in the outermost pass, so that whatever a parent
        compares with (a loss, nested reconstructions, the trainer's metrics) is the
        same set.

        Raises:
            ValueError: on a wrong width, or on NaN or infinite rows; nothing has
                changed then.
        """
        check_activations(step_input.sae_in, self.cfg.d_in)
        x, dropped_share = self._rows_to_train_on(step_input.sae_in)
        self.prepare_step(x)
        if self.sink_estimator is not None:
            self._estimate_sinks(step_input.sae_in, x)
        signed = self.signed_sink_directions
        n_reserved = 0 if signed is None else len(signed)
        dead = step_input.dead_neuron_mask
        if dead is not None and n_reserved:
            dead = dead.clone()
            dead[-n_reserved:] = False  # silent without sinks, but not dead
        self._step = _Step(self.takes_sparse_steps, signed)
        try:
            self.write_sink_weights()
            output = super().training_forward_pass(
                replace(step_input, sae_in=x, dead_neuron_mask=dead)
            )
        finally:
            self._step = None
        self.n_batches_trained += 1
        output.metrics["dropped_token_share"] = dropped_share
        if n_reserved:
            acts = output.feature_acts
            output.metrics |= {
                "n_sink_latents": n_reserved,
                "l0_without_sink_latents": lambda: (
                    acts.to_dense()[..., :-n_reserved].count_nonzero() / acts.shape[0]
                ),
            }
        return output

    @property
    @override
    def signed_sink_directions(self) -> torch.Tensor | None:
        if self._step is not None:
            return self._step.signed_sink_directions
        return with_signs(self.sink_directions)

    @property
    def is_sparse_step(self) -> bool:
        """Whether a training step is under way that follows the selected entries alone."""
        return self._step is not None and self._step.is_sparse

    @property
    def takes_sparse_steps(self) -> bool:
        """Whether a training step follows the selected entries alone."""
        return (
            getattr(self.cfg, "use_sparse_activations", False)
            and hasattr(self.activation_fn, "select")
            and takes_sparse_products(
                self, (self.hook_sae_acts_pre, self.hook_sae_acts_post)
            )
        )

    def prepare_step(self, x: torch.Tensor) -> None:
        """Called with the rows ``[n, d_in]`` of each training step before it."""

    def write_sink_weights(self) -> None:
        """Put the directions into the weights of the reserved latents.

        Their gradients are zero, but Adam's momentum from before the conversion moves
        them still (by 0.06 in a test), so they are written in every step.
        """
        signed = self.signed_sink_directions
        if signed is None:
            return
        with torch.no_grad():
            self.W_dec[-len(signed) :] = signed.to(self.W_dec.dtype)
            self.W_enc[:, -len(signed) :] = signed.T.to(self.W_enc.dtype)
            self.b_enc[-len(signed) :] = 0

    @torch.no_grad()
    def _rows_to_train_on(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Rows to keep and the share that is dropped."""
        if self.cfg.outlier_norm_multiple is None:
            return x, 0.0
        limit = self.sink_norm_limit
        if limit is None:
            dropped = is_outlier(x, self.cfg.outlier_norm_multiple)
        else:
            # A sink's remainder is small, or one of its directions is a new one.
            dropped = row_norms(x) > limit
            dropped[dropped.clone()] = self._remainder_norms(x[dropped]) > limit
            if not self._has_warned and dropped.any():
                self._has_warned = True
                found, wanted = len(self.sink_latents) // 2, self.cfg.sink_rank
                logger.warning(
                    "%d tokens are beyond the norm limit %.3g even without their part "
                    "in the %d sink directions of the first batches, so training drops "
                    "them (logged as dropped_token_share).%s",
                    int(dropped.sum()),
                    limit,
                    found,
                    " If they are many, raise sink_rank." if found == wanted else "",
                )
        if dropped.all():
            raise ValueError(
                f"All {len(x)} tokens of a batch are beyond the norm limit {limit}, "
                "with norms unlike those that it was estimated from, so nothing is "
                "left to train on: is it the same hook, and the same scaling?"
            )
        if not dropped.any():
            return x, 0.0
        return x[~dropped], dropped.float().mean()

    def _remainder_norms(self, sinks: torch.Tensor) -> torch.Tensor:
        assert self.sink_directions is not None
        x_c = (sinks - self.b_dec * self.cfg.apply_b_dec_to_input).float()
        directions = self.sink_directions.float()
        return row_norms(x_c - x_c @ directions.T @ directions)

    @torch.no_grad()
    def _estimate_sinks(self, x: torch.Tensor, ordinary: torch.Tensor) -> None:
        estimator = self.sink_estimator
        assert estimator is not None
        if estimator.is_done:
            return
        multiple = self.cfg.outlier_norm_multiple
        estimator.collect(x, multiple)
        if not estimator.is_ready:
            return
        bias = self.b_dec * self.cfg.apply_b_dec_to_input
        directions, limit = estimator.estimate(
            bias,
            ordinary_norm=row_norms(ordinary - bias).median().item(),
            multiple=multiple,
            # at least k latents stay ordinary
            max_rank=min(self.cfg.sink_rank, int(self.cfg.d_sae - self.cfg.k) // 2),
        )
        assert self.sink_directions is not None
        assert self.sink_limit is not None
        self.sink_directions[: len(directions)] = directions
        self.sink_limit.fill_(limit)

    @property
    def competes(self) -> torch.Tensor:
        """True for ordinary latents, False for reserved ones, ``[d_sae]`` or a scalar.

        Multiplied into the scale and bias of the score, it keeps reserved latents at
        a score of 0, which no selector prefers, at no cost in batch-sized tensors.
        """
        n_reserved = len(self.sink_latents)
        if n_reserved == 0:
            return torch.ones((), dtype=torch.bool, device=self.W_enc.device)
        mask = torch.ones(self.cfg.d_sae, dtype=torch.bool, device=self.W_enc.device)
        mask[-n_reserved:] = False
        return mask

    def select(
        self,
        score: Callable[[Entries | None], torch.Tensor],
        sink_pre: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``feature_acts`` and ``hidden_pre`` of what the selector keeps.

        In a sparse training step ``feature_acts`` is a COO tensor and gradients reach
        the kept scores through it alone; ``hidden_pre`` has none.

        Args:
            score: gives ``hidden_pre``, ``[..., d_sae]``, or ``[m]`` at the entries.
            sink_pre: signed coefficients of the reserved latents, ``[..., 2 r]``.
        """
        if not self.is_sparse_step:
            hidden_pre = self.hook_sae_acts_pre(score(None))
            return self.hook_sae_acts_post(
                self.activate(hidden_pre, sink_pre)
            ), hidden_pre
        with torch.no_grad():
            hidden_pre = score(None)
        n_rows, d_sae = hidden_pre.shape
        flat = self.activation_fn.select(hidden_pre)
        if sink_pre is None:
            entries = Entries.of_flat(flat, (n_rows, d_sae))
            return entries.to_sparse(score(entries)), hidden_pre
        reserved = sink_pre.relu()
        rows, columns = reserved.nonzero(as_tuple=True)
        first = d_sae - reserved.shape[-1]
        flat, places = merge_sorted(flat, rows * d_sae + first + columns)
        entries = Entries.of_flat(flat, (n_rows, d_sae))
        values = score(entries)
        of_sinks = reserved[rows, columns].to(values.dtype)
        return entries.to_sparse(values.index_copy(0, places, of_sinks)), hidden_pre

    def activate(
        self, hidden_pre: torch.Tensor, sink_pre: torch.Tensor | None
    ) -> torch.Tensor:
        """The selector's dense activations, with the sinks' in the reserved latents.

        Those are written in place: a batch of activations is too large to copy.
        """
        acts = self.activation_fn(hidden_pre)
        if sink_pre is not None:
            acts[..., -sink_pre.shape[-1] :] = sink_pre.relu().to(acts.dtype)
        return acts

    @property
    def unit_W_dec(self) -> torch.Tensor:
        """``[d_sae, d_in]``: decoder rows of unit norm, constants where reserved."""
        signed = self.signed_sink_directions
        return unit(self.W_dec, dim=1, last_rows=signed).to(self.W_dec.dtype)

    def weighted_rows(
        self,
        feature_acts: torch.Tensor,
        W_dec: torch.Tensor,
        first: int = 0,
        end: int | None = None,
    ) -> torch.Tensor:
        """Sum over latents of activation times decoder row, ``[..., d_in]``.

        Args:
            feature_acts: ``[..., d_sae]``, dense or COO.
            W_dec: ``[d_sae, d_in]``, the sinks' directions as constants where latents
                are reserved: that keeps the gradients of sinks, 100 times those of
                other tokens, out of the clipped gradient norm.
            first: first latent of the sum.
            end: the one after the last.
        """
        stop = self.cfg.d_sae if end is None else end
        if not feature_acts.is_sparse:
            return feature_acts[..., first:stop] @ W_dec[first:stop]
        acts = feature_acts.coalesce()
        entries, values = Entries.of_sparse(acts), acts.values()
        if (first, stop) != (0, self.cfg.d_sae):
            entries, kept = entries.between(first, stop)
            values = values.index_select(0, kept)
        return sparse_product(values, W_dec, entries)

    @override
    @torch.no_grad()
    def fold_activation_norm_scaling_factor(self, scaling_factor: float) -> None:
        super().fold_activation_norm_scaling_factor(scaling_factor)
        if self.sink_estimator is not None:
            self.sink_estimator.rescale(1 / scaling_factor)

    def export_sinks(self, state_dict: dict[str, Any]) -> None:
        """Turn sink buffers of a training state dict into those for inference.

        ``state_dict`` must hold clones; reserved latents get unit columns, exponent 1
        and no bias.
        """
        del state_dict["n_batches_trained"]
        for key in [key for key in state_dict if key.startswith("sink_estimator.")]:
            del state_dict[key]
        signed = self.signed_sink_directions
        if signed is None:
            return
        n_reserved = len(signed)
        state_dict["W_enc"][:, -n_reserved:] = signed.T
        state_dict["W_dec"][-n_reserved:] = signed
        state_dict["b_enc"][-n_reserved:] = 0
        if state_dict["exponent"].ndim:
            state_dict["exponent"][-n_reserved:] = 1
