"""One SAE of a run, and which of its latents probes may use."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sae_lens import SAE

from sae_lens_cosine.saebench.handover import Hook


@dataclass
class Arm:
    """One SAE to be probed."""

    name: str
    sae: SAE[Any]
    left_out: Sequence[int] = ()
    """Latents that are no candidates."""
    only: Sequence[int] | None = None
    """The only candidates, if not all others."""
    hook: Hook = field(default=Hook("", -1))

    @property
    def candidates(self) -> list[int]:
        """Latents that probes may use."""
        only = range(self.sae.cfg.d_sae) if self.only is None else self.only
        return sorted(set(only) - set(self.left_out))

    def check(self, ks: Sequence[int]) -> None:
        """Refuse latents that the SAE does not have, or a k above their number."""
        if not isinstance(self.sae, SAE):
            return  # the hand-over says what it is instead
        d_sae = self.sae.cfg.d_sae
        for what, given in (
            (f"sink_latents={self.left_out}", self.left_out),
            (f"latents={self.only}", self.only or ()),
        ):
            if any(not 0 <= latent < d_sae for latent in given):
                raise ValueError(
                    f"{what} of {self.name!r} are not latents of an SAE with "
                    f"d_sae={d_sae}."
                )
        left = len(self.candidates)
        if max(ks) > left:
            n_out = len(self.left_out)
            sinks = f" ({n_out} sink latents left out)" if n_out else ""
            number = f"d_sae={left}" if self.only is None else f"{left} latents"
            raise ValueError(
                f"k={max(ks)} is more than the {number} of {self.name!r}{sinks}."
            )


def sink_latents(sae: Any) -> list[int]:
    """Latents that an SAE reserves for attention sinks; most have none."""
    return [int(latent) for latent in getattr(sae, "sink_latents", ())]
