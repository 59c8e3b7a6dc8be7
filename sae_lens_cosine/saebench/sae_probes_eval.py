"""SAEBench's ``sparse_probing_sae_probes``: 113 binary tasks on a prompt's last token.

SAEBench's own ``run_eval`` runs here. What would go wrong around it:

- it loads the model by name: the activations are written first, where it looks;
- it takes any result of the same name for its own, whatever SAE, seed or model made
  it: every folder is called by a hash of what its content depends on;
- binarized probes are written under a name that it never reads: they are made first
  and put under the other name as well;
- it writes for all SAE objects as ``custom_sae``, and not atomically.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import sae_probes
import torch
from pydantic import TypeAdapter
from sae_bench.evals.sparse_probing_sae_probes import main as saebench
from sae_bench.evals.sparse_probing_sae_probes.eval_config import (
    SparseProbingSaeProbesEvalConfig,
)
from sae_bench.evals.sparse_probing_sae_probes.eval_output import (
    SparseProbingSaeProbesEvalOutput,
)
from sae_probes.constants import RegType
from sae_probes.generate_model_activations import ensure_dataset_activations
from sae_probes.run_sae_evals import get_save_metrics_path, run_sae_evals
from tqdm.auto import tqdm

from sae_lens_cosine.output_folder import check_writable
from sae_lens_cosine.saebench.arm import Arm
from sae_lens_cosine.saebench.files import FORCE, reading, write_atomically
from sae_lens_cosine.saebench.fingerprint import (
    fingerprint,
    fingerprint_model,
    fingerprint_sae,
    package_versions,
)
from sae_lens_cosine.saebench.handover import Hook, copy_for_saebench, open_saes
from sae_lens_cosine.saebench.host import quiet, saebench_session
from sae_lens_cosine.saebench.results import results_path, warn_if_misread
from sae_lens_cosine.saebench.sources import ModelSource, SAESource
from sae_lens_cosine.validation import check_choice, check_count

EVAL = "sparse_probing_sae_probes"
_MAX_TOKENS = 1024  # of sae-probes


def run_sae_probes(
    saes: Mapping[str, SAESource] | Sequence[SAESource],
    *,
    model: ModelSource,
    output: str | Path,
    datasets: Sequence[str] | None = None,
    ks: Sequence[int] = (1, 2, 5),
    reg_type: RegType = "l1",
    binarize: bool = False,
    llm_baseline: bool = True,
    seed: int = 42,
    llm_batch_size: int = 32,
    artifacts_dir: str | Path | None = None,
    force: bool = False,
    show_progress: bool = True,
) -> dict[str, SparseProbingSaeProbesEvalOutput]:
    """Probe the latents of each prompt's last token, as SAEBench does with sae-probes.

    Args:
        saes: as in :func:`.run_sparse_probing`.
        model: likewise.
        output: results go to ``<output>/sparse_probing_sae_probes/``.
        datasets: names of data sets; all 113 by default.
        ks: how many latents a probe may use; any numbers up to d_sae.
        reg_type: regularisation of the probes.
        binarize: whether probes see only which latents are active.
        llm_baseline: whether to probe the model's activations as well.
        seed: of rows and probes.
        llm_batch_size: prompts in one forward pass.
        artifacts_dir: cache of activations; ``<output>/activations`` by default.
        force: compute again what exists, activations apart.
        show_progress: whether to draw a bar over data sets.

    Returns:
        SAE's name -> SAEBench's result.

    Raises:
        TypeError, ValueError: as :func:`.run_sparse_probing`, or for an unknown data
            set. Nothing is written.
        OSError: if nothing can be written in ``output``; nothing was computed.
    """
    names = list(sae_probes.DATASETS if datasets is None else datasets)
    unknown = sorted(set(names) - set(sae_probes.DATASETS))
    if unknown or not names:
        raise ValueError(
            f"datasets={unknown or names}: name at least one of the "
            f"{len(sae_probes.DATASETS)} of sae-probes, such as {sae_probes.DATASETS[0]}."
        )
    if not isinstance(ks, Sequence) or not ks:
        raise ValueError(f"ks={ks!r}: give a list of at least one k.")
    for k in ks:
        check_count("k", k)
    check_choice("reg_type", reg_type, get_args(RegType))
    check_count("seed", seed, 0)
    check_count("llm_batch_size", llm_batch_size)
    check_writable(f"output={output}", Path(output))
    loaded, model, hooks = open_saes(saes, model)
    for name, sae in loaded.items():
        Arm(name, sae).check(ks)
    root = Path(artifacts_dir or Path(output) / "activations") / "sae-probes"
    device = torch.device(model.cfg.device or "cpu")
    model_key = fingerprint_model(model)
    settings = [list(ks), reg_type, binarize, seed, package_versions()]
    outputs: dict[str, SparseProbingSaeProbesEvalOutput] = {}
    paths: list[Path] = []
    with saebench_session(device):
        for name, sae in loaded.items():
            key = fingerprint(model_key, list(hooks[name]), str(model.cfg.dtype))
            cache = root / fingerprint(key, llm_batch_size)
            _warm(model, names, hooks[name], cache, llm_batch_size, show_progress)
            result = fingerprint(
                fingerprint_sae(sae), cache.name, names, llm_baseline, settings
            )[:12]
            path = results_path(Path(output), EVAL, name, result)
            paths.append(path)
            if force or not path.exists():
                config = SparseProbingSaeProbesEvalConfig(
                    model_name=model.cfg.model_name,
                    random_seed=seed,
                    dataset_names=names,
                    reg_type=reg_type,
                    ks=list(ks),
                    binarize=binarize,
                    model_cache_path=str(cache),
                    include_llm_baseline=llm_baseline,
                )
                prepared = copy_for_saebench(name, sae, model)
                found = _run(config, name, prepared, device, result)
                write_atomically(path, lambda t, f=found: f.to_json_file(str(t)))
            with reading(path, FORCE):
                outputs[name] = TypeAdapter(
                    SparseProbingSaeProbesEvalOutput
                ).validate_json(path.read_bytes())
    warn_if_misread(paths)
    return outputs


def _warm(
    model: Any,
    datasets: Sequence[str],
    hook: Hook,
    cache: Path,
    batch_size: int,
    show_progress: bool,
) -> None:
    """Write the activations of each data set where sae-probes looks for them."""
    folder = cache / f"model_activations_{model.cfg.model_name}"
    tokenizer = model.tokenizer
    sides = tokenizer.truncation_side, tokenizer.padding_side
    try:
        for dataset in tqdm(
            datasets, desc="sae-probes activations", disable=not show_progress
        ):
            path = folder / f"{dataset}_{hook.name}.pt"
            if path.exists():
                continue
            with tempfile.TemporaryDirectory() as scratch, quiet():
                ensure_dataset_activations(
                    model_name=model.cfg.model_name,
                    dataset_short_names=[dataset],
                    hook_names=[hook.name],
                    model_cache_path=scratch,
                    device=str(model.cfg.device),
                    max_seq_len=min(_MAX_TOKENS, model.cfg.n_ctx),
                    batch_size=batch_size,
                    model=model,
                )
                made = Path(scratch) / folder.name / path.name
                write_atomically(path, lambda t, m=made: shutil.copyfile(m, t))
    finally:
        # sae-probes turns the tokenizer round: truncation on the left.
        tokenizer.truncation_side, tokenizer.padding_side = sides


def _run(
    config: SparseProbingSaeProbesEvalConfig,
    name: str,
    sae: Any,
    device: torch.device,
    key: str,
) -> SparseProbingSaeProbesEvalOutput:
    """SAEBench's ``run_eval`` in an empty folder, with our key as the SAE's id."""
    with tempfile.TemporaryDirectory() as scratch, quiet():
        # Single results are kept only until this SAE is done.
        config.results_path = scratch
        if config.binarize:
            _binarized_under_both_names(config, sae, device, Path(scratch))
        (result,) = saebench.run_eval(
            config, [("sae", sae)], str(device), str(Path(scratch) / "output")
        ).values()
    config.results_path = ""
    return TypeAdapter(SparseProbingSaeProbesEvalOutput).validate_python(
        result
        | {
            "sae_lens_id": key,
            "sae_lens_release_id": name,
            "eval_config": asdict(config),
            "sae_cfg_dict": sae.cfg.to_dict(),
        }
    )


def _binarized_under_both_names(
    config: SparseProbingSaeProbesEvalConfig,
    sae: Any,
    device: torch.device,
    scratch: Path,
) -> None:
    folder = scratch / "sae_custom_sae"  # as `run_eval` calls it
    run_sae_evals(
        sae=sae,
        model_name=config.model_name,
        hook_name=sae.cfg.hook_name,
        reg_type=config.reg_type,  # type: ignore[arg-type]
        setting="normal",
        ks=config.ks,
        binarize=True,
        results_path=folder,
        model_cache_path=config.model_cache_path,
        datasets=config.dataset_names,
        device=str(device),
        seed=config.random_seed,
    )
    for dataset in config.dataset_names:
        written, read = (
            get_save_metrics_path(
                dataset,
                sae.cfg.hook_name,
                config.reg_type,  # type: ignore[arg-type]
                config.model_name,
                folder,
                binarize=binarize,
            )
            for binarize in (True, False)
        )
        shutil.copyfile(written, read)
