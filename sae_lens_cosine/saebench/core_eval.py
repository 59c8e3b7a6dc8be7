"""SAEBench's ``core`` eval on any text, next to figures that can be relied on.

Two of SAEBench's 0.6 figures are off: ``explained_variance`` subtracts the square of
the mean square instead of the square of the mean, so that its denominator can be
negative; ``cossim`` is NaN, written as -1, as soon as one reconstruction is zero.
They are reported as they are, under SAEBench's names; ours stand beside them.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text
from sae_bench.evals.core import main as saebench
from sae_bench.evals.core.eval_config import CoreEvalConfig
from sae_bench.sae_bench_utils import (
    general_utils,
    get_eval_uuid,
    get_sae_bench_version,
    get_sae_lens_version,
)

from sae_lens_cosine.demo.contexts import activations_at, pack_contexts
from sae_lens_cosine.evaluation import (
    evaluate_reconstruction,
    norm_quartile_edges,
    sink_norm_limit,
)
from sae_lens_cosine.loss_recovered import cross_entropy_recovered
from sae_lens_cosine.output_folder import check_writable
from sae_lens_cosine.saebench.files import FORCE, reading, write_atomically
from sae_lens_cosine.saebench.fingerprint import (
    fingerprint,
    fingerprint_model,
    fingerprint_sae,
    package_versions,
)
from sae_lens_cosine.saebench.handover import copy_for_saebench, open_saes
from sae_lens_cosine.saebench.host import quiet, saebench_session
from sae_lens_cosine.saebench.results import NOTES, results_path, warn_if_misread
from sae_lens_cosine.saebench.sources import ModelSource, SAESource
from sae_lens_cosine.token_wise import check_reconstructs_input
from sae_lens_cosine.validation import check_context_size, check_count


class _FixedTokens:
    """Stands where SAEBench expects SAELens's activation store: the same tokens for
    every SAE and for our own figures."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens
        self.context_size = tokens.shape[1]
        self._next = 0

    def reset_input_dataset(self) -> None:
        self._next = 0

    def get_batch_tokens(self, batch_size: int) -> torch.Tensor:
        start, self._next = self._next, self._next + batch_size
        return self.tokens[start : self._next]


def run_core(
    saes: Mapping[str, SAESource] | Sequence[SAESource],
    *,
    model: ModelSource,
    texts: Sequence[str],
    output: str | Path,
    contexts: int = 32,
    context_size: int = 128,
    batch_size: int = 8,
    force: bool = False,
) -> dict[str, dict[str, Any]]:
    """Reconstruction, loss recovered, L0 and share of latents alive.

    Args:
        saes: as in :func:`.run_sparse_probing`.
        model: likewise.
        texts: packed into contexts, as SAELens does in training.
        output: results go to ``<output>/core/``, in SAEBench's format.
        contexts: how many; a multiple of ``batch_size``.
        context_size: tokens each.
        batch_size: contexts in one forward pass.
        force: compute results that exist again.

    Returns:
        SAE's name -> ``{"saebench": its metrics, "sae_lens_cosine": ours}``; the file
        has ours in ``eval_result_unstructured``.

    Raises:
        TypeError, ValueError: as :func:`.run_sparse_probing`, for a transcoder, or for
            too few texts. Nothing is written.
        OSError: if nothing can be written in ``output``; nothing was computed.
    """
    check_count("contexts", contexts)
    check_count("batch_size", batch_size)
    if contexts < batch_size or contexts % batch_size:
        raise ValueError(
            f"contexts={contexts} must be a multiple of batch_size={batch_size}."
        )
    check_writable(f"output={output}", Path(output))
    loaded, model, hooks = open_saes(saes, model)
    for name, sae in loaded.items():
        check_reconstructs_input(name, sae)
    check_context_size(context_size, model)
    tokens = pack_contexts(model, texts, context_size, contexts)
    model_key = fingerprint_model(model)
    found: dict[str, dict[str, Any]] = {}
    paths: list[Path] = []
    for name, sae in loaded.items():
        key = fingerprint(
            model_key, fingerprint_sae(sae), tokens, batch_size, package_versions()
        )[:12]
        path = results_path(Path(output), "core", name, key)
        paths.append(path)
        if force or not path.exists():
            prepared = copy_for_saebench(name, sae, model)
            result = _saebench(name, key, prepared, model, tokens, batch_size)
            ours = _ours(prepared, model, hooks[name].name, hooks[name].layer, tokens)
            result["eval_result_unstructured"] = {NOTES: ours}
            text = json.dumps(result, indent=1)
            write_atomically(path, lambda target, t=text: target.write_text(t))
        with reading(path, FORCE):
            result = json.loads(path.read_text())
            found[name] = {
                "saebench": result["eval_result_metrics"],
                NOTES: result["eval_result_unstructured"][NOTES],
            }
    warn_if_misread(paths)
    return found


def core_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """For the terminal: each figure by both sources, where both have it.

    Args:
        found: what :func:`run_core` returned.
    """
    table = Table(title="SAEBench's core eval, and ours beside it", box=SIMPLE)
    table.add_column("SAE")
    table.add_column("figure")
    for source in ("SAEBench", "ours", "without sinks"):
        table.add_column(source, justify="right", no_wrap=True)
    for name, by_source in found.items():
        theirs, ours = by_source["saebench"], by_source[NOTES]
        everything = ours["reconstruction"]["all_tokens"]
        ordinary = ours["reconstruction"]["sinks_excluded"]
        quality = theirs["reconstruction_quality"]
        kept = theirs["model_performance_preservation"]
        table.add_section()
        for figure, values in {
            "explained variance": (
                quality["explained_variance"],
                everything["explained_variance"],
                ordinary["explained_variance"],
            ),
            "L0": (theirs["sparsity"]["l0"], everything["l0"], ordinary["l0"]),
            "loss recovered": (
                kept["ce_loss_score"],
                ours["loss"]["recovered"],
                ours["loss"]["recovered_sinks_kept"],
            ),
            "share alive": (theirs["misc_metrics"]["frac_alive"], None, None),
        }.items():
            cells = ("" if v is None else f"{v:.3f}" for v in values)
            table.add_row(Text(name), figure, *cells)
    return table


def _saebench(
    name: str, key: str, sae: Any, model: Any, tokens: torch.Tensor, batch_size: int
) -> dict[str, Any]:
    """SAEBench's ``run_evals`` and its result file, as a dictionary."""
    batches = len(tokens) // batch_size
    config = CoreEvalConfig(
        model_name=model.cfg.model_name,
        llm_dtype=general_utils.dtype_to_str(model.cfg.dtype),
        batch_size_prompts=batch_size,
        n_eval_reconstruction_batches=batches,
        n_eval_sparsity_variance_batches=batches,
        dataset="texts",
        context_size=tokens.shape[1],
        compute_kl=True,
        compute_ce_loss=True,
        compute_l2_norms=True,
        compute_sparsity_metrics=True,
        compute_variance_metrics=True,
        compute_featurewise_density_statistics=True,
        compute_featurewise_weight_based_metrics=True,
    )
    special = [getattr(model.tokenizer, f"{t}_token_id") for t in ("pad", "eos", "bos")]
    device = torch.device(model.cfg.device or "cpu")
    with saebench_session(device), torch.no_grad(), quiet():
        metrics, features = saebench.run_evals(
            sae,
            _FixedTokens(tokens.to(device)),  # type: ignore[arg-type]
            model,
            config,
            ignore_tokens=set(special),
        )
        metrics["misc_metrics"] = saebench.calculate_misc_metrics(features)
        result = {"eval_cfg": config, "sae_id": key, "sae_set": name}
        cleaned = saebench.replace_nans_with_negative_one(
            {**result, "metrics": metrics, "feature_metrics": features}
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "result.json"
            saebench.save_single_eval_result(
                cleaned,
                get_eval_uuid(),
                get_sae_lens_version(),
                get_sae_bench_version(),
                str(path),
                sae,
            )
            return json.loads(path.read_text())


def _ours(
    sae: Any, model: Any, hook: str, layer: int, tokens: torch.Tensor
) -> dict[str, Any]:
    batches = activations_at(model, tokens, [hook], layer + 1, "Activations")
    activations = torch.cat([batch[hook] for batch in batches])
    limit = sink_norm_limit(activations)
    reconstruction = evaluate_reconstruction(
        sae,
        activations.split(1024),
        sink_norm_limit=limit,
        quartile_edges=norm_quartile_edges(activations, limit),
    )
    loss = cross_entropy_recovered(
        model, {"sae": sae}, hook, tokens, sink_norm_limit=limit
    )["sae"]
    return {
        "reconstruction": reconstruction.model_dump(mode="json"),
        "loss": loss.model_dump(mode="json"),
    }
