"""Probing one SAE after another on the same prompts, under the same masks."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sae_bench.evals.sparse_probing.eval_config import SparseProbingEvalConfig
from sae_bench.evals.sparse_probing.eval_output import (
    EVAL_TYPE_ID_SPARSE_PROBING,
    SparseProbingEvalOutput,
)
from tqdm.auto import tqdm

from sae_lens_cosine.saebench import results
from sae_lens_cosine.saebench.activations import (
    ActivationCache,
    PromptActivations,
    TokenizedTexts,
)
from sae_lens_cosine.saebench.arm import Arm
from sae_lens_cosine.saebench.baseline import baselines
from sae_lens_cosine.saebench.files import FORCE, reading, write_atomically
from sae_lens_cosine.saebench.fingerprint import (
    fingerprint,
    fingerprint_sae,
    package_versions,
)
from sae_lens_cosine.saebench.handover import Hook, copy_for_saebench
from sae_lens_cosine.saebench.pooling import Pooler
from sae_lens_cosine.saebench.prober import Answers, Prober
from sae_lens_cosine.saebench.results import Metrics, PerClass
from sae_lens_cosine.saebench.sinks import MaskedPrompts, SinkMasking, mask_sinks


class _Pooled(NamedTuple):
    """A data set as one SAE sees it, by masking."""

    acts: PromptActivations
    masks: list[MaskedPrompts]
    latents: list[torch.Tensor]


class Probed(NamedTuple):
    """What came out for one SAE under one way of masking."""

    output: SparseProbingEvalOutput
    answers: Answers


class ArmProber:
    """SAEBench's probing under one configuration, with results kept in a folder.

    Args:
        config: SAEBench's settings.
        cache: of activations, with the model.
        texts: the data sets.
        maskings: ways of masking sinks; an SAE encodes once for all of them.
        repeats: runs of the probes.
        output: where results are written and found again, if anywhere.
        force: do not use results that exist.
    """

    def __init__(
        self,
        config: SparseProbingEvalConfig,
        cache: ActivationCache,
        texts: Sequence[TokenizedTexts],
        maskings: Sequence[SinkMasking],
        repeats: int,
        output: Path | None,
        force: bool,
    ) -> None:
        self.config = config
        self.cache = cache
        self.texts = texts
        self.maskings = maskings
        self.repeats = repeats
        self.output = output
        self.force = force
        self.device = torch.device(cache.model.cfg.device or "cpu")

    def probe(self, arm: Arm, bar: "tqdm[Any]") -> dict[SinkMasking, Probed]:
        """Results of one SAE by masking, read where they exist and else computed."""
        content = fingerprint(fingerprint_sae(arm.sae), arm.candidates)
        keys: dict[SinkMasking, str] = {
            masking: self._key(content, arm.hook, masking) for masking in self.maskings
        }
        probed: dict[SinkMasking, Probed | None] = {
            m: self._read(arm.name, key) for m, key in keys.items()
        }
        missing: list[SinkMasking] = [m for m in self.maskings if probed[m] is None]
        if missing:
            computed = self._compute(arm, {m: keys[m] for m in missing}, bar)
            for masking, result in computed.items():
                self._write(arm.name, keys[masking], result)
                probed[masking] = result
        else:
            bar.update(sum(len(texts.ids) for texts in self.texts))
        return {m: found for m, found in probed.items() if found is not None}

    def _key(self, content: str, hook: Hook, masking: SinkMasking) -> str:
        """Name of a result: a hash of all that its numbers depend on."""
        digest = fingerprint(
            content,
            [self.cache.key(texts, hook) for texts in self.texts],
            [masking, self.repeats],
            asdict(self.config),
            package_versions(),
        )[:12]
        return digest if masking == "none" else f"{masking}-{digest}"

    def _compute(
        self, arm: Arm, keys: dict[SinkMasking, str], bar: "tqdm[Any]"
    ) -> dict[SinkMasking, Probed]:
        sae = copy_for_saebench(arm.name, arm.sae, self.cache.model)
        probers = {m: Prober(self.config, self.repeats, self.device) for m in keys}
        llm: dict[SinkMasking, dict[str, tuple[Metrics, PerClass]]] = {
            m: {} for m in keys
        }
        notes: dict[SinkMasking, dict[str, Any]] = {m: {} for m in keys}
        pooler = Pooler(
            sae,
            self.texts,
            batch_size=self.config.sae_batch_size,
            device=self.device,
            candidates=arm.candidates if len(arm.candidates) < sae.cfg.d_sae else None,
        )

        # Memory-mapped. The language model, if it has to run, does so in this thread.
        cached = {t.name: self.cache.get(t, arm.hook) for t in self.texts}

        def pool(texts: TokenizedTexts) -> _Pooled:
            acts = cached[texts.name]
            masks = [mask_sinks(texts, acts, masking) for masking in keys]
            return _Pooled(
                acts, masks, pooler.pool(texts.name, acts, masks, bar.update)
            )

        # SAEBench's probes are one small step after another, which leaves processors
        # idle: the next data set is encoded meanwhile.
        with ThreadPoolExecutor(max_workers=1) as encoder:
            ahead = encoder.submit(pool, self.texts[0])
            for texts, following in zip_longest(self.texts, self.texts[1:]):
                pooled = ahead.result()
                if following is not None:
                    ahead = encoder.submit(pool, following)
                folder = self.cache.folder(texts, arm.hook)
                of_llm = baselines(
                    texts, pooled.acts, pooled.masks, self.config, folder, self.device
                )
                for mask, latents, baseline in zip(
                    pooled.masks, pooled.latents, of_llm, strict=True
                ):
                    probers[mask.masking].probe(texts.name, mask.rows, latents)
                    llm[mask.masking][texts.name] = baseline
                    notes[mask.masking][texts.name] = _notes(texts, mask)
        return {
            masking: Probed(
                results.build_output(
                    arm.name,
                    key,
                    sae,
                    self.config,
                    {d: llm[masking][d][0] | m for d, m in prober.metrics.items()},
                    {d: llm[masking][d][1] | p for d, p in prober.per_class.items()},
                    {
                        "hook": arm.hook.name,
                        "mask_sinks": masking,
                        "sink_latents_left_out": len(arm.left_out),
                        "candidates": len(arm.candidates),
                        "probe_seeds": self.repeats,
                        "datasets": notes[masking],
                    },
                ),
                prober.answers,
            )
            for (masking, key), prober in zip(
                keys.items(), probers.values(), strict=True
            )
        }

    def _paths(self, name: str, key: str) -> tuple[Path, Path] | None:
        """Of SAEBench's result, and of the answers beside it."""
        if self.output is None:
            return None
        path = results.results_path(self.output, EVAL_TYPE_ID_SPARSE_PROBING, name, key)
        return path, self.output / "answers" / path.with_suffix(".npz").name

    def _read(self, name: str, key: str) -> Probed | None:
        paths = self._paths(name, key)
        if paths is None or self.force or not all(path.exists() for path in paths):
            return None
        output = results.read_results(paths[0])
        with reading(paths[1], FORCE):
            return Probed(output, Answers.load(paths[1]))

    def _write(self, name: str, key: str, probed: Probed) -> None:
        if paths := self._paths(name, key):
            write_atomically(paths[1], probed.answers.save)
            results.write_results(probed.output, paths[0])


def _notes(texts: TokenizedTexts, mask: MaskedPrompts) -> dict[str, Any]:
    """What SAEBench's result has no field for."""
    return {
        "rows": {
            split: {label: len(prompts) for label, prompts in by_label.items()}
            for split, by_label in mask.rows.items()
        },
        "dropped": texts.dropped
        | {f"{s} prompts of sinks only": n for s, n in mask.dropped.items()},
        "masked_share": mask.masked_share,
        "norm_limit": mask.norm_limit,
    }
