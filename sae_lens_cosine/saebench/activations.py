"""The activation files that SAEBench's sparse probing reads instead of its hub data.

``run_eval_single_dataset`` looks for ``<folder>/<dataset>_activations.pt`` and, if it
exists, takes everything from it: ``train`` and ``test`` (class label -> activations
``[prompts, context, d_model]``, rows of BOS, PAD and EOS tokens zeroed) and
``llm_results``. Writing that file is how any text and any model reach SAEBench's code.
"""

import contextlib
import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sae_bench.sae_bench_utils import activation_collection, dataset_utils
from tqdm.auto import tqdm
from transformer_lens import HookedTransformer

from sae_lens_cosine.labelled_texts import LabelledTexts, check_class_sizes
from sae_lens_cosine.saebench.files import write_atomically
from sae_lens_cosine.saebench.fingerprint import fingerprint, fingerprint_model
from sae_lens_cosine.saebench.handover import Hook
from sae_lens_cosine.validation import check_activations

TokensByLabel = dict[str, torch.Tensor]
"""Class label -> token ids ``[prompts, context]``."""


@dataclass(frozen=True)
class TokenizedTexts:
    """A data set as SAEBench tokenizes it: truncated and padded to one length."""

    name: str
    splits: dict[str, TokensByLabel]
    """``"train"`` and ``"test"``."""

    @property
    def rows_per_task(self) -> dict[str, int]:
        """Split -> rows of its largest one-against-rest task (half of them positive)."""
        return {
            split: 2 * max(len(tokens) for tokens in by_label.values())
            for split, by_label in self.splits.items()
        }


def tokenize(
    dataset: LabelledTexts, model: HookedTransformer, context_size: int
) -> TokenizedTexts:
    """Tokenize with SAEBench's own function, without prompts it could not pool.

    A prompt of nothing but BOS, PAD and EOS tokens has no token left to average over
    and would become NaN. Such prompts are dropped with a warning that counts them,
    and the classes of that split cut to the smallest.

    Raises:
        ValueError: if nothing is left of a class.
    """
    splits: dict[str, TokensByLabel] = {}
    for split, texts in (("train", dataset.train), ("test", dataset.test)):
        # Its progress bars go to standard error, two for every data set.
        with contextlib.redirect_stderr(io.StringIO()):
            tokenized = dataset_utils.tokenize_data_dictionary(
                {label: list(rows) for label, rows in texts.items()},
                model.tokenizer,  # type: ignore[arg-type]
                context_size,
                str(model.cfg.device),
            )
        all_tokens = {label: t["input_ids"] for label, t in tokenized.items()}
        tokens = {
            label: ids[_real_tokens(ids, model).any(dim=1)]
            for label, ids in all_tokens.items()
        }
        dropped = sum(map(len, all_tokens.values())) - sum(map(len, tokens.values()))
        if dropped:
            smallest = min(map(len, tokens.values()))
            warnings.warn(
                f"Data set {dataset.name!r}, {split}: dropped {dropped} prompts without "
                f"a token other than BOS, PAD and EOS; {smallest} rows a class are left.",
                stacklevel=2,
            )
            tokens = {label: ids[:smallest] for label, ids in tokens.items()}
        sizes = {label: len(ids) for label, ids in tokens.items()}
        check_class_sizes(dataset.name, split, sizes)
        splits[split] = tokens
    return TokenizedTexts(dataset.name, splits)


class ActivationCache:
    """Activation files on disk, one folder for each combination of inputs.

    The folder's name is a hash of the model (weights and architecture), hook, token
    ids (and with them tokenizer, texts and context), dtype, kind of device and batch
    size. Neither the SAE nor the probes' seed or ``k`` matter, so all of them share
    one file. It carries no LLM probe results (``llm_results`` is empty) for the same
    reason: those depend on seed and ``k``.

    Args:
        model: runs on the texts on a cache miss.
        root: folder of the cache.
        batch_size: prompts in one forward pass.
        show_progress: whether to draw a bar while the model runs.
    """

    def __init__(
        self, model: HookedTransformer, root: Path, batch_size: int, show_progress: bool
    ) -> None:
        self.model = model
        self.root = root
        self.batch_size = batch_size
        self.show_progress = show_progress
        self._model_key = fingerprint_model(model)

    def key(self, texts: TokenizedTexts, hook: Hook) -> str:
        """32 hex digits that name the folder."""
        tokenizer = self.model.tokenizer
        return fingerprint(
            self._model_key,
            list(hook),
            # The order of classes too: probes consume random numbers in this order.
            [[split, list(tokens)] for split, tokens in texts.splits.items()],
            texts.splits,
            [getattr(tokenizer, f"{t}_token_id") for t in ("bos", "pad", "eos")],
            getattr(tokenizer, "padding_side", None),
            [
                str(self.model.cfg.dtype),
                torch.device(self.model.cfg.device or "cpu").type,
            ],
            self.batch_size,
        )

    def folder(self, texts: TokenizedTexts, hook: Hook) -> Path:
        """What SAEBench calls the artifacts folder, whether it exists or not."""
        return self.root / self.key(texts, hook)

    def warm(self, texts: TokenizedTexts, hook: Hook) -> Path:
        """Return :meth:`folder` with the file of ``texts`` in it, computed if absent."""
        folder = self.folder(texts, hook)
        path = folder / f"{texts.name}_activations.pt".replace("/", "_")
        if not path.exists():
            acts = {**self._collect(texts, hook), "llm_results": {}}
            write_atomically(path, lambda temporary: torch.save(acts, temporary))
        return folder

    def _collect(
        self, texts: TokenizedTexts, hook: Hook
    ) -> dict[str, dict[str, torch.Tensor]]:
        prompts = sum(len(t) for s in texts.splits.values() for t in s.values())
        with tqdm(
            total=prompts,
            desc=f"LLM activations of {texts.name}",
            unit="prompt",
            disable=not self.show_progress,
        ) as bar:
            return {
                split: {
                    label: self._collect_class(ids, hook, bar)
                    for label, ids in tokens.items()
                }
                for split, tokens in texts.splits.items()
            }

    def _collect_class(
        self, tokens: torch.Tensor, hook: Hook, bar: "tqdm[Any]"
    ) -> torch.Tensor:
        """``[prompts, context]`` token ids to ``[prompts, context, d_model]``."""
        batches = []
        lost = 0
        for ids in tokens.split(self.batch_size):
            acts = activation_collection.get_llm_activations(
                ids,
                self.model,
                self.batch_size,
                hook.layer,
                hook.name,
                mask_bos_pad_eos_tokens=True,
                show_progress=False,
            )
            check_activations(acts, acts.shape[-1])
            lost += int((_real_tokens(ids, self.model) & (acts.sum(-1) == 0)).sum())
            batches.append(acts)
            bar.update(len(ids))
        if lost:
            warnings.warn(
                f"{lost} tokens have activations that sum to exactly 0, which SAEBench "
                "takes for masked ones. Models loaded with centred weights do that: "
                "use HookedTransformer.from_pretrained_no_processing.",
                stacklevel=2,
            )
        return torch.cat(batches)


def _real_tokens(ids: torch.Tensor, model: HookedTransformer) -> torch.Tensor:
    """Which tokens are not BOS, PAD or EOS, like ``ids`` ``[prompts, context]``."""
    return activation_collection.get_bos_pad_eos_mask(ids, model.tokenizer)
