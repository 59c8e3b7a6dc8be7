"""`cosine_matryoshka_batchtopk`: nested dictionaries on the cosine score."""

from collections.abc import Generator
from dataclasses import dataclass
from itertools import pairwise

import torch
from sae_lens.saes.matryoshka_batchtopk_sae import (
    MatryoshkaBatchTopKTrainingSAE,
    MatryoshkaBatchTopKTrainingSAEConfig,
)
from typing_extensions import override

from sae_lens_cosine.aux_loss import aux_loss
from sae_lens_cosine.batchtopk_sae import (
    CosineBatchTopKTrainingSAE,
    CosineBatchTopKTrainingSAEConfig,
)


@dataclass(kw_only=True)
class CosineMatryoshkaBatchTopKTrainingSAEConfig(
    CosineBatchTopKTrainingSAEConfig, MatryoshkaBatchTopKTrainingSAEConfig
):
    """
    Configuration for training a CosineMatryoshkaBatchTopKTrainingSAE; see CosineTrainingSAEConfig.

    Args:
        matryoshka_widths: numbers of leading latents that each reconstruct on their own, strictly increasing; d_sae is added at the end.
        use_matryoshka_aux_loss: whether dead latents reconstruct what their own level misses, rather than what the whole SAE does.
    """

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        widths = [0, *self.matryoshka_widths]
        increasing = all(a < b for a, b in pairwise(widths))
        if not increasing or widths[-1] > self.d_sae:
            raise ValueError(
                f"matryoshka_widths={self.matryoshka_widths} must be strictly "
                f"increasing, above 0 and at most d_sae={self.d_sae}."
            )

    @override
    @classmethod
    def architecture(cls) -> str:
        return "cosine_matryoshka_batchtopk"


class CosineMatryoshkaBatchTopKTrainingSAE(
    CosineBatchTopKTrainingSAE, MatryoshkaBatchTopKTrainingSAE
):
    """Nested BatchTopK on the cosine score; saved as `cosine_jumprelu`.

    The loss is the sum of those of the prefixes of the dictionary, so that general
    features come first (arXiv 2503.17547).
    """

    cfg: CosineMatryoshkaBatchTopKTrainingSAEConfig  # type: ignore[assignment]

    def __init__(
        self,
        cfg: CosineMatryoshkaBatchTopKTrainingSAEConfig,
        use_error_term: bool = False,
    ):
        if not cfg.matryoshka_widths:
            raise ValueError(
                "matryoshka_widths is empty: give the nested widths, for example "
                f"[{cfg.d_sae // 16}, {cfg.d_sae // 4}, {cfg.d_sae}], or use the "
                "architecture 'cosine_batchtopk'."
            )
        if cfg.matryoshka_widths[-1] != cfg.d_sae:  # SAELens does so with a warning
            cfg.matryoshka_widths = [*cfg.matryoshka_widths, cfg.d_sae]
        super().__init__(cfg, use_error_term)

    @override
    def _iterable_decode(
        self, feature_acts: torch.Tensor, include_outer_loss: bool = False
    ) -> Generator[tuple[int, torch.Tensor], None, None]:
        """Reconstructions of the nested prefixes, from unit rows as in `decode`.

        Latents reserved for sinks belong to every prefix: without them, a sink's
        error would be 10,000 times an ordinary token's.
        """
        W_dec = self.unit_W_dec
        widths = self.cfg.matryoshka_widths
        n_ordinary = self.cfg.d_sae - len(self.sink_latents)

        def decode(start: int, end: int) -> torch.Tensor:
            return self.weighted_rows(feature_acts, W_dec, start, end)

        decoded, start = self.b_dec, 0
        if self.sink_latents:
            decoded = decoded + decode(n_ordinary, self.cfg.d_sae)
        for width in widths if include_outer_loss else widths[:-1]:
            end = min(width, n_ordinary)
            decoded, start = decoded + decode(start, end), end
            yield width, decoded

    @override
    def calculate_matryoshka_aux_loss(
        self,
        sae_in: torch.Tensor,
        sae_out: torch.Tensor,
        feature_acts: torch.Tensor,
        hidden_pre: torch.Tensor,
        dead_neuron_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """The auxiliary losses of the levels, each on what the level misses, summed."""
        total, start = sae_out.new_tensor(0.0), 0
        if dead_neuron_mask is None or not dead_neuron_mask.any():
            return total
        dead = dead_neuron_mask.nonzero().squeeze(1)
        dead_pre = self.scores_of(dead, sae_in, hidden_pre)
        dead_rows = self.W_dec.index_select(0, dead)
        for end, level_out in self._iterable_decode(
            feature_acts, include_outer_loss=True
        ):
            level = (start <= dead) & (dead < end)
            total = total + aux_loss(
                sae_in,
                level_out,
                dead_pre[:, level],
                dead_rows[level],
                self.b_dec,
                self.cfg.aux_loss_normalization,
            )
            start = end
        return self.cfg.aux_loss_coefficient * total
