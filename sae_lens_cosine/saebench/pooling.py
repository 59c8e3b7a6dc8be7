"""Mean latents of every prompt, as SAEBench pools them, in bounded memory.

SAEBench encodes batches of 125 padded prompts, which are arrays of hundreds of megabytes
for every step of the encoder. Here a few hundred real tokens are encoded at a time, whose
latents stay in the processor's cache; each is encoded once, for all masks, and a prompt
that several data sets share once for all of them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from sae_lens_cosine.saebench.activations import PromptActivations, TokenizedTexts
from sae_lens_cosine.saebench.sinks import MaskedPrompts

TOKENS_AT_ONCE = 512
"""Encoded together, in whole prompts: larger batches leave the cache, smaller ones waste
the matrix product (measured on a CPU at d_in 576, d_sae 4608)."""


class Lookup:
    """Stands where SAEBench expects an SAE and returns rows computed before."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows
        self.dtype = rows.dtype

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        """``[batch, 1, 1]`` numbers, counted from 1, to ``[batch, 1, width]``."""
        return self.rows[numbers[..., 0] - 1]


class ChannelsAsLatents:
    """Stands where SAEBench expects an SAE and returns the model's own channels.

    Probing it is SAEBench's LLM baseline, run by the same code as every SAE.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _Known(NamedTuple):
    """A prompt that was pooled, for another data set that has it too."""

    acts: torch.Tensor
    """``[tokens, d_model]``, memory-mapped."""
    keep: torch.Tensor
    """``[masks, tokens]``."""
    means: torch.Tensor
    """``[masks, latents]``."""


class Pooler:
    """Mean latents of one SAE, on one data set after another.

    Args:
        sae: has ``encode`` and ``dtype``; encodes row by row.
        texts: the data sets that will be pooled, each once. Means of prompts that a
            later one has too are kept until then.
        batch_size: prompts encoded at once, at most.
        device: where the SAE is.
        candidates: the latents that the result contains; all by default.
    """

    def __init__(
        self,
        sae: Any,
        texts: Sequence[TokenizedTexts],
        *,
        batch_size: int,
        device: torch.device,
        candidates: Sequence[int] | None = None,
    ) -> None:
        self.sae = sae
        self.batch_size = batch_size
        self.device = device
        self.candidates = None if candidates is None else torch.tensor(candidates)
        self._prompts = {t.name: _contents(t) for t in texts}
        self._to_come = Counter(
            p for prompts in self._prompts.values() for p in prompts
        )
        self._known: dict[bytes, _Known] = {}

    @torch.no_grad()
    def pool(
        self,
        dataset: str,
        acts: PromptActivations,
        masks: Sequence[MaskedPrompts],
        on_batch: Callable[[int], object] = lambda _: None,
    ) -> list[torch.Tensor]:
        """Latents of each prompt, averaged over the tokens that a mask keeps.

        Like SAEBench, a mean leaves out tokens whose activations sum to exactly 0.

        Args:
            dataset: its name.
            acts: activations of its prompts.
            masks: ways of masking.
            on_batch: called with the number of prompts after each batch.

        Returns:
            For each mask ``[prompts, latents]``, on the CPU. Prompts without a token
            are NaN.
        """
        contents = self._prompts[dataset]
        keep = torch.stack([mask.keep for mask in masks])
        ends = acts.real.sum(dim=1).cumsum(0).tolist()
        spans = list(zip([0, *ends], ends, strict=False))
        pooled: torch.Tensor | None = None
        new = []
        known = {}
        for prompt, (start, end) in enumerate(spans):
            same = self._known.get(contents[prompt])
            tokens = slice(start, end)
            # The language model may round a prompt otherwise in another batch.
            if (
                same is not None
                and torch.equal(same.keep, keep[:, tokens])
                and torch.equal(same.acts, acts.acts[tokens])
            ):
                known[prompt] = same.means
            else:
                new.append(prompt)
        on_batch(len(known))
        for prompts in _batches(new, spans, self.batch_size):
            slices = [slice(*spans[p]) for p in prompts]
            batch = torch.cat([acts.acts[s] for s in slices])
            means = self._means(
                batch.to(self.device),
                torch.cat([keep[:, s] for s in slices], dim=1).to(self.device),
                [acts.real[p].nonzero()[:, 0] for p in prompts],
            )
            if pooled is None:
                pooled = means.new_empty(len(masks), len(spans), means.shape[-1])
            pooled[:, prompts] = means
            on_batch(len(prompts))
        if pooled is None:
            shape = next(iter(known.values())).shape
            pooled = torch.empty(shape[0], len(spans), shape[-1], dtype=self.sae.dtype)
        for prompt, means in known.items():
            pooled[:, prompt] = means
        self._to_come.subtract(contents)
        for prompt, content in enumerate(contents):
            self._known.pop(content, None)
            if self._to_come[content] > 0:
                tokens = slice(*spans[prompt])
                self._known[content] = _Known(
                    acts.acts[tokens], keep[:, tokens], pooled[:, prompt].clone()
                )
        return list(pooled)

    def _means(
        self, batch: torch.Tensor, keep: torch.Tensor, places: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """``[masks, prompts, latents]`` of ``[tokens, d_in]`` and ``[masks, tokens]``.

        ``places`` says for each prompt where in the context its tokens stand.
        """
        latents = self.sae.encode(batch[None])[0]
        kept = (keep & (batch.sum(-1) != 0)).to(self.sae.dtype)
        means: list[torch.Tensor] = []
        start = 0
        for place in places:
            tokens = slice(start, start := start + len(place))
            rows = _at_their_places(latents[tokens], place)
            means += [
                _mean(rows, _at_their_places(of_mask[tokens], place))
                for of_mask in kept
            ]
        stacked = torch.stack(means).unflatten(0, (len(places), len(kept)))
        found = stacked.transpose(0, 1).cpu()
        return found if self.candidates is None else found[..., self.candidates]


def _mean(rows: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """SAEBench's mean of one prompt, to the last bit.

    Bits matter: latents that an attention sink blows up make the logistic regression so
    ill-conditioned that rounding changes accuracies. So the sum runs over all rows, with
    zeros, in their order, as SAEBench's does; padding at the end changes nothing.
    """
    masked = rows if kept.all() else rows * kept[:, None]
    return masked.sum(0) / kept.sum()


def _at_their_places(values: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """``values`` with zeros for BOS, PAD and EOS tokens that precede or interrupt them."""
    if len(place) == 0 or int(place[-1]) + 1 == len(place):
        return values
    out = values.new_zeros(int(place[-1]) + 1, *values.shape[1:])
    out[place.to(values.device)] = values
    return out


def _contents(texts: TokenizedTexts) -> list[bytes]:
    """For each prompt its real tokens, and where they stand."""
    ids = texts.ids.cpu()
    return [
        row[real].numpy().tobytes() + real.nonzero().numpy().tobytes()
        for row, real in zip(ids, texts.real, strict=True)
    ]


def _batches(
    prompts: Sequence[int], spans: Sequence[tuple[int, int]], size: int
) -> Iterator[list[int]]:
    batch: list[int] = []
    tokens = 0
    for prompt in prompts:
        length = spans[prompt][1] - spans[prompt][0]
        if batch and (len(batch) == size or tokens + length > TOKENS_AT_ONCE):
            yield batch
            batch, tokens = [], 0
        batch.append(prompt)
        tokens += length
    if batch:
        yield batch
