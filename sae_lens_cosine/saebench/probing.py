"""Sparse probing by SAEBench's own code, on any labelled text and any model."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from sae_bench.evals.sparse_probing.eval_config import SparseProbingEvalConfig
from sae_bench.sae_bench_utils import general_utils
from tqdm.auto import tqdm

from sae_lens_cosine.output_folder import check_writable
from sae_lens_cosine.saebench import results
from sae_lens_cosine.saebench.activations import ActivationCache, tokenize
from sae_lens_cosine.saebench.arm import Arm, sink_latents
from sae_lens_cosine.saebench.arms import ArmProber, Probed
from sae_lens_cosine.saebench.datasets import DatasetSource, load_datasets
from sae_lens_cosine.saebench.files import write_atomically
from sae_lens_cosine.saebench.handover import check_hook, copy_for_saebench
from sae_lens_cosine.saebench.host import saebench_session
from sae_lens_cosine.saebench.sinks import SINK_MASKINGS, SinkMasking
from sae_lens_cosine.saebench.sources import (
    ModelSource,
    SAESource,
    load_model,
    load_saes,
)
from sae_lens_cosine.saebench.summary import ProbingReport
from sae_lens_cosine.validation import check_choice, check_context_size, check_count


def run_sparse_probing(
    saes: Mapping[str, SAESource] | Sequence[SAESource],
    *,
    model: ModelSource,
    datasets: DatasetSource | Sequence[DatasetSource],
    output: str | Path | None = None,
    artifacts_dir: str | Path | None = None,
    mask_sinks: SinkMasking = "none",
    include_sink_latents: bool = False,
    latents: Mapping[str, Sequence[int]] | None = None,
    probe_seeds: int = 1,
    ks: Sequence[int] = (1, 2, 5),
    train_rows: int = 4000,
    test_rows: int = 1000,
    context_size: int = 128,
    seed: int = 42,
    llm_batch_size: int = 32,
    sae_batch_size: int = 125,
    force: bool = False,
    show_progress: bool = True,
) -> ProbingReport:
    """Probe SAEs for the classes of labelled texts, as SAEBench does.

    For each class against the rest, SAEBench averages the latents over a prompt,
    takes the ``k`` whose class means differ most, and reports the test accuracy of a
    logistic regression on them; likewise for the model's own channels (``llm_*``).
    Choice of latents and probes are SAEBench's code, and the numbers equal those of its
    ``run_eval_single_sae`` on the same rows, to the last digit. The same call
    gives the same numbers, on a cold or a warm cache, in any process.

    Args:
        saes: SAELens inference SAEs, folders that hold one, or ``(release, sae_id)``;
            in a dictionary by name, or in a list. Objects are never modified: copies
            are probed, in the model's dtype and on its device.
        model: runs on the texts up to the hook in each SAE's ``cfg.metadata``: a
            loaded ``HookedTransformer`` or ``TransformerBridge``, the folder of a
            Hugging Face model, ``"demo"``, or a name that SAEBench could load.
        datasets: texts with labels, or where to find them, see
            :func:`.datasets.load_datasets`: the suites ``"saebench"`` and
            ``"offline"``, names of single data sets, tables, :class:`.LabelledTexts`.
        output: folder for results: ``sparse_probing/`` in SAEBench's format, and
            ``probing_summary_<key>.json``, one for each choice of SAEs and settings. A
            result of the same SAE with the same settings is read from there.
        artifacts_dir: cache of model activations (4 bytes x tokens x d_model in
            float32), shared by all SAEs and settings of the probes. By default
            ``<output>/activations``.
        mask_sinks: tokens that are left out of a prompt's mean, for every SAE alike
            (:func:`.sinks.mask_sinks`). Other than ``"none"``, the results without
            a mask are computed as well and stand beside it.
        include_sink_latents: whether probes may use latents that an SAE reserves for
            attention sinks (its ``sink_latents``).
        latents: SAE's name -> the only latents its probes may use, such as those
            that match another SAE's; all latents of SAEs that it does not name.
        probe_seeds: repeats of the probes, over random numbers and training prompts;
            the first one is SAEBench's run and its result file.
        ks: how many latents a probe may use; values that SAEBench's schema knows.
        train_rows: rows of a one-against-rest task of a data set that is given by its
            name: half of them positive, half from the other classes.
        test_rows: likewise for the test.
        context_size: tokens of a prompt that are kept, at most as many as the model
            reads.
        seed: of the probes and the choice of rows; the caller's random state is left
            as it was.
        llm_batch_size: prompts in one forward pass of the model.
        sae_batch_size: prompts encoded at once, at most; never more than a few
            hundred tokens.
        force: compute again, and replace, results that exist in ``output``.
        show_progress: whether to draw progress bars.

    Returns:
        A mapping name -> SAEBench's result object, in the order of ``saes``, with
        ``summary`` (both columns, statistics) and ``tables()``.

    Raises:
        TypeError: for a training SAE, an object that is no SAE or no model.
        ValueError: for no SAE or data set, two data sets of one name, a ``k`` outside
            SAEBench's schema or above d_sae, a number that is out of range, an SAE that does not fit the model, or
            one that SAEBench could not probe faithfully. Nothing is written.
        OSError: if nothing can be written in ``output``; nothing was computed.
    """
    if artifacts_dir is None:
        if output is None:
            raise ValueError(
                "Give output, artifacts_dir, or both: folders to write to."
            )
        artifacts_dir = Path(output) / "activations"
    if output is not None:
        check_writable(f"output={output}", Path(output))
    if not Path(artifacts_dir).is_dir():  # a full cache is only read
        check_writable(f"artifacts_dir={artifacts_dir}", Path(artifacts_dir))
    check_choice("mask_sinks", mask_sinks, SINK_MASKINGS)
    _check_ks(ks)
    for option, value in {
        "probe_seeds": probe_seeds,
        "llm_batch_size": llm_batch_size,
        "sae_batch_size": sae_batch_size,
    }.items():
        check_count(option, value)
    check_count("seed", seed, 0)
    loaded, latents = load_saes(saes), latents or {}
    if unknown := sorted(set(latents) - set(loaded)):
        raise ValueError(
            f"latents={unknown} are not among the SAEs: {', '.join(loaded)}."
        )
    arms = [
        Arm(
            name,
            sae,
            left_out=[] if include_sink_latents else sink_latents(sae),
            only=latents.get(name),
        )
        for name, sae in loaded.items()
    ]
    for arm in arms:
        arm.check(ks)
    labelled = load_datasets(datasets, train_rows, test_rows, seed)
    model = load_model(model)
    check_context_size(context_size, model)
    for arm in arms:
        # Copied here only to check it: one copy at a time stays in memory.
        copied = copy_for_saebench(arm.name, arm.sae, model)
        arm.hook = check_hook(arm.name, copied, model)

    maskings: list[SinkMasking] = ["none"]
    if mask_sinks != "none":
        maskings.append(mask_sinks)
    with saebench_session(torch.device(model.cfg.device or "cpu")):
        texts = [tokenize(dataset, model, context_size) for dataset in labelled]
        config = SparseProbingEvalConfig(
            random_seed=seed,
            dataset_names=[t.name for t in texts],
            probe_train_set_size=max(t.rows_per_task("train") for t in texts),
            probe_test_set_size=max(t.rows_per_task("test") for t in texts),
            context_length=context_size,
            sae_batch_size=sae_batch_size,
            llm_batch_size=llm_batch_size,
            llm_dtype=general_utils.dtype_to_str(model.cfg.dtype),
            model_name=model.cfg.model_name,
            k_values=list(ks),
        )
        prober = ArmProber(
            config,
            ActivationCache(model, Path(artifacts_dir), llm_batch_size, show_progress),
            texts,
            maskings,
            probe_seeds,
            None if output is None else Path(output),
            force,
        )
        with tqdm(
            total=len(arms) * sum(len(t.ids) for t in texts),
            desc="Sparse probing",
            unit="prompt",
            disable=not show_progress,
        ) as bar:
            probed: dict[str, dict[SinkMasking, Probed]] = {}
            for arm in arms:
                bar.set_postfix_str(arm.name)
                probed[arm.name] = prober.probe(arm, bar)
    report = ProbingReport(
        {
            m: {name: found[m].output for name, found in probed.items()}
            for m in maskings
        },
        {
            m: {name: found[m].answers for name, found in probed.items()}
            for m in maskings
        },
        mask_sinks,
        probe_seeds,
    )
    if output is not None:
        text = report.summary.model_dump_json(indent=1)
        path = Path(output) / report.summary_filename
        write_atomically(path, lambda temporary: temporary.write_text(text))
        results.warn_if_misread(
            results.results_path(
                Path(output), found.eval_type_id, name, str(found.sae_lens_id)
            )
            for by_name in report.outputs.values()
            for name, found in by_name.items()
        )
    return report


def _check_ks(ks: Sequence[int]) -> None:
    known = results.schema_ks()
    listed = isinstance(ks, Sequence)
    if not listed or not ks or len(set(ks)) < len(ks) or not set(ks) <= set(known):
        raise ValueError(
            f"ks={ks!r}: give a list of at least one k, each once, of those that "
            f"SAEBench's results have a field for: {known}."
        )
