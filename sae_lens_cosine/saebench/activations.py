"""Activations of labelled prompts at one hook: computed once, kept on disk for all SAEs.

Tokenization, masking and the forward pass are SAEBench's. Only the layout is ours:
SAEBench keeps ``[prompts, context, d_model]`` with rows of zeros for BOS, PAD and EOS
tokens, which add nothing to a mean; here they are left out.
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

from sae_lens_cosine.labelled_texts import LabelledTexts, check_class_sizes
from sae_lens_cosine.saebench.files import reading, write_atomically
from sae_lens_cosine.saebench.fingerprint import fingerprint, fingerprint_model
from sae_lens_cosine.saebench.handover import Hook
from sae_lens_cosine.validation import check_activations

Rows = dict[str, dict[str, torch.Tensor]]
"""Split (``train``, ``test``) -> class label -> numbers of its prompts."""

FEW_TEST_ROWS = 10
"""With fewer in a class, an accuracy moves by more than 5% with a single prompt."""


@dataclass(frozen=True)
class TokenizedTexts:
    """A data set as SAEBench tokenizes it: truncated and padded to one length."""

    name: str
    ids: torch.Tensor
    """``[prompts, context]``, classes one after another, train before test."""
    real: torch.Tensor
    """Like ``ids``: whether a token is none of BOS, PAD and EOS."""
    rows: Rows
    dropped: dict[str, int]
    """What was removed on the way, with counts: texts that could not be used."""

    def rows_per_task(self, split: str) -> int:
        """Rows of the largest one-against-rest task (half of them positive)."""
        return 2 * max(len(prompts) for prompts in self.rows[split].values())


def tokenize(dataset: LabelledTexts, model: Any, context_size: int) -> TokenizedTexts:
    """Tokenize with SAEBench's own function, without prompts it could not pool.

    Warns where a class has fewer than :data:`FEW_TEST_ROWS` test rows.

    A prompt of nothing but BOS, PAD and EOS tokens has no token left to average over
    and would become NaN. Such prompts are dropped with a warning that counts them,
    and the classes of that split cut to the smallest.

    Raises:
        ValueError: if nothing is left of a class.
    """
    parts: list[torch.Tensor] = []
    rows: Rows = {}
    dropped = dict(dataset.dropped)
    for split, texts in (("train", dataset.train), ("test", dataset.test)):
        # Its progress bars go to standard error, two for every data set.
        with contextlib.redirect_stderr(io.StringIO()):
            tokenized = dataset_utils.tokenize_data_dictionary(
                {label: list(prompts) for label, prompts in texts.items()},
                model.tokenizer,
                context_size,
                str(model.cfg.device),
            )
        rows[split] = {}
        for label, values in tokenized.items():
            start = sum(map(len, parts))
            parts.append(values["input_ids"])
            rows[split][label] = torch.arange(start, start + len(parts[-1]))
    ids = torch.cat(parts)
    real = activation_collection.get_bos_pad_eos_mask(ids, model.tokenizer).cpu()
    rows, lost = poolable(dataset.name, rows, real.any(dim=1))
    for split, count in lost.items():
        smallest = min(map(len, rows[split].values()))
        warnings.warn(
            f"Data set {dataset.name!r}, {split}: dropped {count} prompts without "
            f"a token other than BOS, PAD and EOS; {smallest} rows a class are left.",
            stacklevel=2,
        )
        dropped[f"{split} prompts without a token"] = count
    if (fewest := min(map(len, rows["test"].values()))) < FEW_TEST_ROWS:
        warnings.warn(
            f"Data set {dataset.name!r}: the smallest class has {fewest} test rows, so "
            f"that one prompt moves an accuracy by {0.5 / fewest:.2g}. Give more texts.",
            stacklevel=2,
        )
    return TokenizedTexts(dataset.name, ids, real, rows, dropped)


def poolable(
    name: str, rows: Rows, has_tokens: torch.Tensor
) -> tuple[Rows, dict[str, int]]:
    """Rows that have a token to average over, and how many of each split have none.

    Where a split loses a prompt, its classes are cut to the smallest.

    Raises:
        ValueError: if a class loses all its prompts.
    """
    kept: Rows = {}
    lost: dict[str, int] = {}
    for split, by_label in rows.items():
        kept[split] = {label: p[has_tokens[p]] for label, p in by_label.items()}
        count = sum(map(len, by_label.values())) - sum(map(len, kept[split].values()))
        if count:
            lost[split] = count
            smallest = min(map(len, kept[split].values()))
            kept[split] = {label: p[:smallest] for label, p in kept[split].items()}
        sizes = {label: len(prompts) for label, prompts in kept[split].items()}
        check_class_sizes(name, split, sizes)
    return kept, lost


@dataclass(frozen=True)
class PromptActivations:
    """Activations of the real tokens of all prompts, one prompt after another."""

    acts: torch.Tensor
    """``[tokens, d_model]``; may lie on disk (memory-mapped)."""
    norms: torch.Tensor
    """``[tokens]``, float32."""
    real: torch.Tensor
    """``[prompts, context]``: where the tokens belong."""

    @property
    def prompt_of_token(self) -> torch.Tensor:
        """``[tokens]``: number of the prompt each token belongs to."""
        return self.real.nonzero()[:, 0]

    def batches(self, size: int) -> list[torch.Tensor]:
        """Prompt numbers in batches of similar length, the shortest first."""
        return list(self.real.sum(dim=1).argsort(stable=True).split(size))

    def tokens_of(self, prompts: torch.Tensor) -> torch.Tensor:
        """Numbers of the tokens of ``prompts``, in their order."""
        ends = self.real.sum(dim=1).cumsum(0).tolist()
        spans = [(ends[p - 1] if p else 0, ends[p]) for p in prompts.tolist()]
        return torch.cat([torch.arange(start, end) for start, end in spans])


class ActivationCache:
    """Activation files on disk, one folder for each combination of inputs.

    The folder's name is a hash of the model (weights and architecture), hook, token
    ids (and with them tokenizer, texts and context), dtype, kind of device and batch
    size. SAE, mask of sinks, seed and ``k`` of the probes do not matter, so all of
    them share one file.

    Args:
        model: runs on the texts on a cache miss.
        root: folder of the cache.
        batch_size: prompts in one forward pass.
        show_progress: whether to draw a bar while the model runs.
    """

    def __init__(
        self, model: Any, root: Path, batch_size: int, show_progress: bool
    ) -> None:
        self.model = model
        self.root = root
        self.batch_size = batch_size
        self.show_progress = show_progress
        self._model_key = fingerprint_model(model)
        self._keys: dict[tuple[str, Hook], str] = {}

    def key(self, texts: TokenizedTexts, hook: Hook) -> str:
        """32 hex digits that name the folder."""
        if (texts.name, hook) not in self._keys:
            cfg = self.model.cfg
            tokenizer = self.model.tokenizer
            self._keys[texts.name, hook] = fingerprint(
                self._model_key,
                list(hook),
                # The order of classes too: probes use random numbers in this order.
                [[split, list(rows)] for split, rows in texts.rows.items()],
                texts.rows,
                texts.ids,
                [getattr(tokenizer, f"{t}_token_id") for t in ("bos", "pad", "eos")],
                getattr(tokenizer, "padding_side", None),
                [str(cfg.dtype), torch.device(cfg.device or "cpu").type],
                self.batch_size,
            )
        return self._keys[texts.name, hook]

    def folder(self, texts: TokenizedTexts, hook: Hook) -> Path:
        """Where the files of ``texts`` are, whether they exist or not."""
        return self.root / self.key(texts, hook)

    def get(self, texts: TokenizedTexts, hook: Hook) -> PromptActivations:
        """The activations of ``texts``, computed and written if absent.

        Raises:
            ValueError: if the file is damaged.
        """
        name = f"{texts.name}_activations.pt".replace("/", "_")
        path = self.folder(texts, hook) / name
        if not path.exists():
            stored = self._collect(texts, hook)
            write_atomically(path, lambda temporary: torch.save(stored, temporary))
        with reading(path, "delete it to compute it again"):
            stored = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            return PromptActivations(stored["acts"], stored["norms"], texts.real)

    @torch.no_grad()
    def _collect(self, texts: TokenizedTexts, hook: Hook) -> dict[str, torch.Tensor]:
        stored: dict[str, torch.Tensor] = {}
        layout = PromptActivations(torch.empty(0), torch.empty(0), texts.real)
        n_tokens = int(texts.real.sum())
        lost = 0
        with tqdm(
            total=len(texts.ids),
            desc=f"LLM activations of {texts.name}",
            unit="prompt",
            disable=not self.show_progress,
        ) as bar:
            for prompts in layout.batches(self.batch_size):
                real = texts.real[prompts]
                length = max(_used_length(real), 1)
                ids = texts.ids[prompts.to(texts.ids.device), :length]
                acts = activation_collection.get_llm_activations(
                    ids,
                    self.model,
                    self.batch_size,
                    hook.layer,
                    hook.name,
                    mask_bos_pad_eos_tokens=True,
                    show_progress=False,
                )[real[:, :length]].cpu()
                check_activations(acts, acts.shape[-1])
                lost += int((acts.sum(-1) == 0).sum())
                if not stored:
                    stored["acts"] = acts.new_empty(n_tokens, acts.shape[-1])
                    stored["norms"] = torch.empty(n_tokens)
                tokens = layout.tokens_of(prompts)
                stored["acts"][tokens] = acts
                stored["norms"][tokens] = acts.double().norm(dim=-1).float()
                bar.update(len(prompts))
        if lost:
            warnings.warn(
                f"{lost} tokens have activations that sum to exactly 0, which SAEBench "
                "takes for masked ones. Models loaded with centred weights do that: "
                "use HookedTransformer.from_pretrained_no_processing.",
                stacklevel=3,
            )
        return stored


def _used_length(real: torch.Tensor) -> int:
    """Length without the positions at the end that no prompt uses."""
    used = real.any(dim=0).nonzero()
    return int(used.max()) + 1 if len(used) else 0
