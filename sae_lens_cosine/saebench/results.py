"""SAEBench's result object: built, named, written and read back."""

import time
import warnings
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from sae_bench.evals.sparse_probing.eval_config import SparseProbingEvalConfig
from sae_bench.evals.sparse_probing.eval_output import (
    SparseProbingEvalOutput,
    SparseProbingLlmMetrics,
    SparseProbingMetricCategories,
    SparseProbingResultDetail,
    SparseProbingSaeMetrics,
)
from sae_bench.sae_bench_utils import (
    general_utils,
    get_eval_uuid,
    get_sae_bench_version,
    get_sae_lens_version,
)
from sae_lens import SAE

from sae_lens_cosine.saebench.files import FORCE, reading, write_atomically

Metrics = dict[str, float]
"""Metric -> its mean over classes, as in ``sae_top_1_test_accuracy``."""

PerClass = dict[str, dict[str, float]]
"""Metric -> class label -> accuracy."""

NOTES = "sae_lens_cosine"
"""Where in ``eval_result_unstructured`` rows, mask and dropped prompts stand."""


def schema_ks() -> list[int]:
    """The values of k for which SAEBench's result has a field."""
    parts = (field.name.split("_") for field in fields(SparseProbingSaeMetrics))
    return [int(p[2]) for p in parts if p[:2] == ["sae", "top"]]


def build_output(
    name: str,
    key: str,
    sae: SAE[Any],
    config: SparseProbingEvalConfig,
    metrics: dict[str, Metrics],
    per_class: dict[str, PerClass],
    notes: dict[str, Any],
) -> SparseProbingEvalOutput:
    """Fill SAEBench's schema as its ``run_eval`` does.

    Args:
        name: becomes ``sae_lens_release_id``.
        key: becomes ``sae_lens_id`` (SAEBench calls every SAE object
            ``custom_sae``, so that two of one name would be one result).
        sae: the copy that was probed.
        config: the settings it was probed with.
        metrics: data set -> means over its classes.
        per_class: data set -> accuracies of single classes.
        notes: what SAEBench's schema has no field for; goes under :data:`NOTES` into
            its free-form part.
    """
    # SAEBench's own keys carry this suffix, in the details as well.
    by_result = {f"{dataset}_results": values for dataset, values in metrics.items()}
    means = general_utils.average_results_dictionaries(by_result, config.dataset_names)
    of_llm = {k: v for k, v in means.items() if k.startswith("llm_")}
    of_sae = {k: v for k, v in means.items() if k.startswith("sae_")}
    return SparseProbingEvalOutput(
        eval_config=config,
        eval_id=get_eval_uuid(),
        datetime_epoch_millis=int(time.time() * 1000),
        eval_result_metrics=SparseProbingMetricCategories(
            llm=SparseProbingLlmMetrics(**of_llm),
            sae=SparseProbingSaeMetrics(**of_sae),
        ),
        eval_result_details=[
            SparseProbingResultDetail(dataset_name=result, **values)
            for result, values in by_result.items()
        ],
        eval_result_unstructured={
            **{f"{d}_results": v for d, v in per_class.items()},
            NOTES: notes,
        },
        sae_bench_commit_hash=get_sae_bench_version(),
        sae_lens_id=key,
        sae_lens_release_id=name,
        sae_lens_version=get_sae_lens_version(),
        sae_cfg_dict=sae.cfg.to_dict(),
    )


def results_path(output: Path, evaluation: str, name: str, key: str) -> Path:
    """``<output>/<evaluation>/<name>_<key>_eval_results.json``.

    SAEBench's graphing code tells evals apart by the folder in the path.
    """
    folder = str(output / evaluation)
    return Path(general_utils.get_results_filepath(folder, name, key))


def warn_if_misread(paths: Iterable[Path]) -> None:
    """Let SAEBench's graphing code read result files, and warn where it cannot.

    It looks for names of evals anywhere in a path, so that ``/scratch/run/core/...``
    is SCR to it, and fails on the metrics that are not there.
    """
    from sae_bench.sae_bench_utils import graphing_utils  # imports matplotlib

    misread = []
    for path in paths:
        try:
            graphing_utils.get_eval_results([str(path)])
        except (KeyError, TypeError):
            misread.append(path)
    if misread:
        more = f" (and {len(misread) - 1} more)" if len(misread) > 1 else ""
        warnings.warn(
            f"SAEBench's graphing code takes {misread[0]}{more} for results of another "
            "eval, because it looks for names of evals (as 'scr' in 'scratch') anywhere "
            "in a path. The file is sound: give the graphing code a path relative to "
            f"{misread[0].parent.parent}, or move that folder; if an SAE's name is the "
            "cause, rename the SAE.",
            stacklevel=3,
        )


def write_results(output: SparseProbingEvalOutput, path: Path) -> None:
    """Write SAEBench's JSON, whole or not at all."""
    write_atomically(path, lambda temporary: output.to_json_file(str(temporary)))


def read_results(path: Path) -> SparseProbingEvalOutput:
    """Read a result back, validated against SAEBench's schema.

    Raises:
        ValueError: if the file is damaged or follows another schema.
    """
    with reading(path, FORCE):
        return TypeAdapter(SparseProbingEvalOutput).validate_json(path.read_bytes())
