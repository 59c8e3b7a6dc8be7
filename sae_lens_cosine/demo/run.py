"""The main job: train SAEs on a real model, evaluate and probe them, write a report."""

import logging
import os
import platform
import resource
import shutil
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from sae_lens import (
    SAE,
    HookedSAETransformer,
    LoggingConfig,
    MultiSAETrainingRunner,
    MultiSAETrainingRunnerConfig,
    TrainingSAEConfig,
)
from sae_lens.training._interruption import InterruptedException
from tqdm.auto import tqdm

from sae_lens_cosine.demo.contexts import activations_at, pack_contexts
from sae_lens_cosine.demo.model import DEMO_MODEL_NAME, load_demo_model
from sae_lens_cosine.demo.options import TRAIN_BATCH, DemoOptions
from sae_lens_cosine.demo.report import write_report
from sae_lens_cosine.demo.results import (
    ArmResults,
    Results,
    Settings,
    learned_values,
)
from sae_lens_cosine.demo.text import (
    DEMO_TASKS,
    evaluation_rows,
    probing_task,
    training_rows,
)
from sae_lens_cosine.evaluation import (
    evaluate_reconstruction,
    norm_quartile_edges,
    sink_norm_limit,
)
from sae_lens_cosine.loss_recovered import cross_entropy_recovered
from sae_lens_cosine.output_folder import check_output, check_own, move_into_place

CONTEXT_SIZE = 128
EVALUATION_TOKENS = 16_384
LOSS_TOKENS = 4_096
PROBING_ROWS = {"train_per_class": 60, "test_per_class": 30}
PROBING_CONTEXT_SIZE = 64  # half of SAEBench's, for half the time
KS = (1, 2, 5)
WRITES = (
    "results.json",
    "report.html",
    "options.json",  # removed last
    "saes/runner_cfg.json",
    "saes/*/cfg.json",
    "saes/*/*.safetensors",
)
"""The files of a complete run."""
UNFINISHED = ("options.json", *WRITES, "training/**/*", "activations/**/*")
"""Those of an interrupted one."""


def run_demo(options: DemoOptions, out: Path, overwrite: bool = False) -> Results:
    """Train, evaluate, probe and report; ``out`` appears when all is done.

    Until then everything lies in ``<out>.unfinished``, from where the same call goes
    on after an interruption: trained SAEs are not trained again.

    Args:
        options: see :class:`DemoOptions`.
        out: new folder for ``results.json``, ``report.html`` and ``saes/<arm>``.
        overwrite: replace ``out`` if it exists (once the new run is complete), and
            begin again if a run with other options was interrupted; neither where
            there are files that no run has written.

    Raises:
        FileExistsError: naming the way out; nothing has changed then.
        ImportError: naming the extra that is missing.
    """
    start = time.perf_counter()
    for package in ("sae_bench", "gguf", "plotly"):
        if find_spec(package) is None:
            raise ImportError(
                f"The demo needs {package}, which is not installed: "
                'pip install "sae-lens-cosine[demo]"'
            )
    out = out.resolve()
    work = _open_work_folder(options, out, overwrite)
    # Here and not above: SAEBench takes seconds to import.
    from sae_lens_cosine.saebench import run_sparse_probing

    model = load_demo_model()
    configs = options.sae_configs(model.cfg.d_model)
    folders = {arm: work / "saes" / arm for arm in configs}
    if not (work / "saes").exists():
        _train(options, configs, model, work)
    saes = {arm: SAE.load_from_disk(folder) for arm, folder in folders.items()}

    arms = evaluate(saes, model, options)
    tasks = [
        probing_task(name, **PROBING_ROWS, seed=options.seed) for name in DEMO_TASKS
    ]
    probed = run_sparse_probing(
        saes,
        model=model,
        datasets=tasks,
        artifacts_dir=work / "activations",
        ks=KS,
        context_size=PROBING_CONTEXT_SIZE,
        sae_batch_size=16,
        seed=options.seed,
    )
    for arm, output in probed.items():
        arms[arm].probing = {
            detail.dataset_name.removesuffix("_results"): {
                str(k): getattr(detail, f"sae_top_{k}_test_accuracy") for k in KS
            }
            for detail in output.eval_result_details
        }
    results = Results(settings=_settings(options, model, start), arms=arms)
    _finish(results, work, out, overwrite)
    return results


def evaluate(
    saes: dict[str, SAE[Any]], model: HookedSAETransformer, options: DemoOptions
) -> dict[str, ArmResults]:
    """Reconstruction and loss recovered on held-out text, the same for every arm."""
    rows = evaluation_rows(EVALUATION_TOKENS, options.seed)["text"]
    tokens = pack_contexts(model, rows, CONTEXT_SIZE, EVALUATION_TOKENS // CONTEXT_SIZE)
    hook = options.hook_name
    batches = activations_at(
        model, tokens, [hook], options.layer + 1, "Held-out activations"
    )
    activations = torch.cat([batch[hook] for batch in batches])
    limit = sink_norm_limit(activations)
    edges = norm_quartile_edges(activations, limit)
    with tqdm(total=LOSS_TOKENS, desc="Loss recovered", unit="token") as bar:
        losses = cross_entropy_recovered(
            model,
            saes,
            hook,
            tokens[: LOSS_TOKENS // CONTEXT_SIZE],
            sink_norm_limit=limit,
            on_batch=lambda n: bar.update(n * CONTEXT_SIZE),
        )
    return {
        arm: ArmResults(
            architecture=sae.cfg.architecture(),
            reconstruction=evaluate_reconstruction(
                sae,
                activations.split(TRAIN_BATCH),
                sink_norm_limit=limit,
                quartile_edges=edges,
            ),
            loss=losses[arm],
            **learned_values(sae),
        )
        for arm, sae in saes.items()
    }


def _train(
    options: DemoOptions,
    configs: dict[str, TrainingSAEConfig],
    model: HookedSAETransformer,
    work: Path,
) -> None:
    """All arms on one shared forward pass, saved in SAELens's format."""
    torch.manual_seed(options.seed)
    saved = work / "training"
    shutil.rmtree(saved, ignore_errors=True)
    config = MultiSAETrainingRunnerConfig(
        saes=configs,
        hook_names=options.hook_name,
        model_name=DEMO_MODEL_NAME,
        model_from_pretrained_kwargs={},
        dataset_path="sae-probes",
        context_size=CONTEXT_SIZE,
        prepend_bos=False,
        training_tokens=options.tokens,
        train_batch_size_tokens=TRAIN_BATCH,
        store_batch_size_prompts=16,
        n_batches_in_buffer=64,
        lr=1e-3,
        lr_warm_up_steps=10,
        lr_decay_steps=options.tokens // TRAIN_BATCH // 5,
        dead_feature_window=50,
        seed=options.seed,
        checkpoint_path=None,
        output_path=str(saved),
        logger=LoggingConfig(log_to_wandb=False),
    )
    with _quiet_host():
        # A fifth more text than tokens, for what packing into contexts leaves over.
        text = training_rows(options.tokens * 6 // 5, options.seed)
        runner = MultiSAETrainingRunner(
            config, override_model=model, override_dataset=text
        )
        runner.run()
    os.replace(saved, work / "saes")


@contextmanager
def _quiet_host() -> Iterator[None]:
    """Without SAELens's advice on data sets and overrides, and its signal handlers.

    Its runner leaves them installed, where they turn Ctrl-C into an exception of its
    own for the rest of the process.
    """
    host = logging.getLogger("sae_lens")
    level = host.level
    handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    host.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    except InterruptedException:
        raise KeyboardInterrupt from None
    finally:
        host.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _open_work_folder(options: DemoOptions, out: Path, overwrite: bool) -> Path:
    check_output(out, WRITES, overwrite)
    work = out.with_name(out.name + ".unfinished")
    noted = work / "options.json"
    if work.exists():
        same = noted.exists() and noted.read_text() == options.model_dump_json()
        if not same and not overwrite:
            raise FileExistsError(
                f"{work} holds an interrupted run with other options: give the same "
                "options to go on with it, or discard it with --overwrite."
            )
        if not same:
            check_own(work, UNFINISHED)
            shutil.rmtree(work)
    work.mkdir(parents=True, exist_ok=True)
    noted.write_text(options.model_dump_json())
    return work


def _settings(
    options: DemoOptions, model: HookedSAETransformer, start: float
) -> Settings:
    packages = ("sae-lens-cosine", "sae-lens", "sae-bench", "transformer-lens", "torch")
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Settings(
        model=DEMO_MODEL_NAME,
        layer=options.layer,
        hook_name=options.hook_name,
        training_tokens=options.tokens,
        evaluation_tokens=EVALUATION_TOKENS,
        d_in=model.cfg.d_model,
        d_sae=options.d_sae,
        k=options.k,
        seed=options.seed,
        versions={name: version(name) for name in packages},
        machine=f"{os.cpu_count()} CPU cores, {platform.machine()}",
        loss_tokens=LOSS_TOKENS,  # type: ignore[call-arg]
        probing_rows_per_class=PROBING_ROWS,  # type: ignore[call-arg]
        probing_context_size=PROBING_CONTEXT_SIZE,  # type: ignore[call-arg]
        minutes=round((time.perf_counter() - start) / 60, 1),  # type: ignore[call-arg]
        peak_memory_gib=round(kibibytes / 2**20, 1),  # type: ignore[call-arg]
    )


def _finish(results: Results, work: Path, out: Path, overwrite: bool) -> None:
    """Write the results and give the folder its final name."""
    (work / "results.json").write_text(results.model_dump_json(indent=1))
    write_report(results.model_dump(mode="json"), work / "report.html")
    shutil.rmtree(work / "activations")
    move_into_place(work, out, overwrite)
    (out / "options.json").unlink()
