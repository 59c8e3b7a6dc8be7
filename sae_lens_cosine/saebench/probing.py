"""Sparse probing by SAEBench's own code, on any labelled text and any model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sae_bench.evals.sparse_probing.eval_config import SparseProbingEvalConfig
from sae_bench.evals.sparse_probing.eval_output import SparseProbingEvalOutput
from sae_bench.sae_bench_utils import general_utils
from sae_lens import SAE
from tqdm.auto import tqdm
from transformer_lens import HookedTransformer

from sae_lens_cosine.labelled_texts import LabelledTexts
from sae_lens_cosine.saebench import results
from sae_lens_cosine.saebench.activations import ActivationCache, tokenize
from sae_lens_cosine.saebench.handover import Hook, check_hook, copy_for_saebench
from sae_lens_cosine.saebench.host import saebench_session
from sae_lens_cosine.saebench.prober import Prober


def run_sparse_probing(
    saes: Mapping[str, SAE[Any]],
    *,
    model: HookedTransformer,
    datasets: Sequence[LabelledTexts],
    artifacts_dir: str | Path,
    output_dir: str | Path | None = None,
    ks: Sequence[int] = (1, 2, 5),
    context_size: int = 128,
    seed: int = 42,
    llm_batch_size: int = 32,
    sae_batch_size: int = 125,
    force: bool = False,
    show_progress: bool = True,
) -> dict[str, SparseProbingEvalOutput]:
    """Probe SAEs for the classes of labelled texts, as SAEBench does.

    For each class against the rest, SAEBench averages the latents over a prompt,
    takes the ``k`` whose class means differ most, and reports the test accuracy of a
    logistic regression on them; likewise for the model's own channels (``llm_*``).
    Everything from the activations on is SAEBench's code, and the numbers equal those
    of its ``run_eval_single_sae`` on the same rows, to the last digit. The same call
    gives the same numbers, on a cold or a warm cache.

    Args:
        saes: name -> SAELens inference SAE. Never modified: copies are probed, in the
            model's dtype and on its device.
        model: runs on the texts up to the hook in each SAE's ``cfg.metadata``. SAEBench
            uses ``HookedTransformer.from_pretrained_no_processing``.
        datasets: the texts. SAEBench's own tasks have 2000 train and 500 test rows a
            class.
        artifacts_dir: cache of model activations (4 bytes x rows x ``context_size`` x
            d_model in float32), shared by all SAEs and settings of the probes.
        output_dir: if given, results are written to ``<output_dir>/sparse_probing/``,
            and read from there if the same SAE was probed with the same settings.
        ks: how many latents a probe may use; values that SAEBench's schema knows.
        context_size: tokens of a prompt that are kept.
        seed: of the probes; the caller's random state is left as it was.
        llm_batch_size: prompts in one forward pass of the model.
        sae_batch_size: prompts encoded at once; bounds the memory, at
            ``sae_batch_size`` x ``context_size`` x d_sae activations.
        force: compute again, and replace, results that exist in ``output_dir``.
        show_progress: whether to draw progress bars.

    Returns:
        name -> SAEBench's result object, in the order of ``saes``.

    Raises:
        TypeError: for a training SAE, an object that is no SAE, or a model that is no
            ``HookedTransformer``.
        ValueError: for no SAE or data set, two data sets of one name, a ``k`` outside
            SAEBench's schema or above d_sae, an SAE that does not fit the model, or
            one that SAEBench could not probe faithfully. Nothing is written.
    """
    _check_request(saes, model, datasets, ks)
    hooks: dict[str, Hook] = {}
    for name, sae in saes.items():
        # Copied here only to check it: one copy at a time stays in memory.
        hooks[name] = check_hook(name, copy_for_saebench(name, sae, model), model)

    device = torch.device(model.cfg.device or "cpu")
    outputs: dict[str, SparseProbingEvalOutput] = {}
    with saebench_session(device):
        texts = [tokenize(dataset, model, context_size) for dataset in datasets]
        cache = ActivationCache(
            model, Path(artifacts_dir), llm_batch_size, show_progress
        )
        config = SparseProbingEvalConfig(
            random_seed=seed,
            dataset_names=[t.name for t in texts],
            probe_train_set_size=max(t.rows_per_task["train"] for t in texts),
            probe_test_set_size=max(t.rows_per_task["test"] for t in texts),
            context_length=context_size,
            sae_batch_size=sae_batch_size,
            llm_batch_size=llm_batch_size,
            llm_dtype=general_utils.dtype_to_str(model.cfg.dtype),
            model_name=model.cfg.model_name,
            k_values=list(ks),
        )
        prober = Prober(config, model, cache, texts)
        with tqdm(
            total=len(saes) * len(texts),
            desc="Sparse probing",
            unit="data set",
            disable=not show_progress,
        ) as bar:
            for name, sae in saes.items():
                bar.set_postfix_str(name)
                key = prober.result_key(sae, hooks[name])
                path = output_dir and results.results_path(Path(output_dir), name, key)
                if path and path.exists() and not force:
                    outputs[name] = results.read_results(path)
                    bar.update(len(texts))
                    continue
                prepared = copy_for_saebench(name, sae, model)
                outputs[name] = prober.probe(name, key, prepared, hooks[name], bar)
                if path:
                    results.write_results(outputs[name], path)
    return outputs


def _check_request(
    saes: Mapping[str, SAE[Any]],
    model: HookedTransformer,
    datasets: Sequence[LabelledTexts],
    ks: Sequence[int],
) -> None:
    if not isinstance(model, HookedTransformer):
        raise TypeError(
            f"The model is a {type(model).__name__}: pass a HookedTransformer."
        )
    if model.tokenizer is None:
        raise ValueError("The model has no tokenizer: call model.set_tokenizer first.")
    if not saes:
        raise ValueError("There is no SAE to probe.")
    if not datasets:
        raise ValueError("There is no data set to probe on.")
    # SAEBench writes "/" in names as "_".
    names = [dataset.name.replace("/", "_") for dataset in datasets]
    if len(set(names)) < len(names):
        raise ValueError(f"Two data sets have the same name, among {names}.")
    known = results.schema_ks()
    if not ks or len(set(ks)) < len(ks) or not set(ks) <= set(known):
        raise ValueError(
            f"ks={tuple(ks)}: give at least one k, each once, of those that SAEBench's "
            f"results have a field for: {known}."
        )
    for name, sae in saes.items():
        if isinstance(sae, SAE) and max(ks) > sae.cfg.d_sae:
            raise ValueError(
                f"k={max(ks)} is more than the d_sae={sae.cfg.d_sae} of {name!r}."
            )
