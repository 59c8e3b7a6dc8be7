"""The command line: `sae-lens-cosine`, or `python -m sae_lens_cosine`."""

import runpy
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from sae_lens_cosine.card import model_card
from sae_lens_cosine.interruption import (
    Interrupted,
    interruptible_training,
    resume_command,
)
from sae_lens_cosine.recipes import load_recipe

app = typer.Typer(
    help="Cosine-scored sparse autoencoders for SAELens.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def train(
    context: typer.Context,
    recipe: Annotated[
        str | None, typer.Option(help="'paper', or a YAML file of a recipe.")
    ] = None,
) -> None:
    """Train with SAELens's own command line: all its flags, our architectures too.

    For example: sae-lens-cosine train --architecture cosine_batchtopk --help

    A recipe sets the flags that are not given. On SIGINT or SIGTERM a complete
    checkpoint is written at the end of the step.
    """
    # SAELens finds architectures in its registry, which the import of this package
    # has filled; from here on the process is its command line.
    module = "sae_lens.llm_sae_training_runner"
    arguments = list(context.args)
    if "--help" in arguments:
        typer.echo(
            "--recipe NAME|FILE  'paper', or a YAML file of a recipe: sets the flags "
            "that are not given.\nAll other flags are SAELens's:\n"
        )
    if recipe is not None:
        arguments = load_recipe(recipe).arguments(arguments)
    sys.argv = [f"{context.command_path}", *arguments]
    try:
        with warnings.catch_warnings(), interruptible_training():
            # runpy points out that the module is imported already, which is harmless.
            warnings.filterwarnings("ignore", f".*{module}.*", RuntimeWarning)
            runpy.run_module(module, run_name="__main__")
    except Interrupted as interrupted:
        typer.echo(f"Interrupted by {interrupted}.", err=True)
        if interrupted.checkpoint is not None:
            command = resume_command(arguments, interrupted.checkpoint)
            typer.echo(f"Go on with: {command}", err=True)
        raise typer.Exit(128 + interrupted.signal_number) from None


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="New folder for results, SAEs and report.")
    ] = Path("demo-output"),
    tokens: Annotated[int, typer.Option(help="Training tokens.")] = 150_000,
    layer: Annotated[int, typer.Option(help="Residual stream after this layer.")] = 15,
    d_sae: Annotated[int, typer.Option(help="Latents of each SAE.")] = 2304,
    k: Annotated[int, typer.Option(help="Latents a token, on average.")] = 32,
    seed: Annotated[int, typer.Option(help="Of weights, text and probes.")] = 0,
    arms: Annotated[
        str | None, typer.Option(help="SAEs to train, with commas; all by default.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing --out.")
    ] = False,
) -> None:
    """Train, evaluate and probe SAEs on SmolLM2-135M: 12 minutes on 2 CPU cores."""
    from rich.console import Console

    from sae_lens_cosine.demo.rows import terminal_table
    from sae_lens_cosine.demo.run import DemoOptions, run_demo

    chosen = (
        {} if arms is None else {"arms": tuple(arm.strip() for arm in arms.split(","))}
    )
    options = DemoOptions(
        tokens=tokens, layer=layer, d_sae=d_sae, k=k, seed=seed, **chosen
    )
    try:
        results = run_demo(options, out, overwrite)
    except KeyboardInterrupt:
        typer.echo(
            f"\nInterrupted. The same command goes on from {out}.unfinished: SAEs that "
            "are trained are kept, and an unfinished training begins again.",
            err=True,
        )
        raise typer.Exit(130) from None
    console = Console()
    console.print(terminal_table(results.model_dump(mode="json")))
    console.print(f"Report: {out / 'report.html'}", soft_wrap=True)


@app.command()
def card(
    repo_id: Annotated[str, typer.Argument(help="Owner and name on the Hub.")],
    saes: Annotated[list[Path], typer.Argument(help="Folders of inference SAEs.")],
) -> None:
    """Print a model card for SAEs that are loaded under their folders' names.

    For example: sae-lens-cosine card me/my-saes output/layer_15 > README.md
    """
    named = {path.resolve().name: path for path in saes}
    if len(named) < len(saes):
        raise ValueError(
            "Two of the folders have the same name, under which both would be "
            "published: rename one."
        )
    typer.echo(model_card(repo_id, named), nl=False)


@app.command()
def probe(
    sae: Annotated[
        list[str],
        typer.Option(help="Folder of an SAE, NAME=FOLDER, or RELEASE:SAE_ID; repeat."),
    ],
    model: Annotated[str, typer.Option(help="'demo', a folder, or a model's name.")],
    out: Annotated[Path, typer.Option(help="Folder for results and activations.")],
    suite: Annotated[
        str | None,
        typer.Option(help="'offline', 'saebench' (from the hub), or 'sae_probes'."),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="A data set by name, or a CSV, Parquet, JSONL file; repeat."),
    ] = None,
    mask_sinks: Annotated[
        str, typer.Option(help="Tokens to leave out: none, norm or first_token.")
    ] = "none",
    include_sink_latents: Annotated[
        bool, typer.Option("--include-sink-latents", help="As candidates of probes.")
    ] = False,
    probe_seeds: Annotated[int, typer.Option(help="Repeats of the probes.")] = 1,
    ks: Annotated[str, typer.Option(help="Latents a probe may use.")] = "1,2,5",
    train_rows: Annotated[int, typer.Option(help="Of each task.")] = 4000,
    test_rows: Annotated[int, typer.Option(help="Of each task.")] = 1000,
    context_size: Annotated[int, typer.Option(help="Tokens of a text to read.")] = 128,
    seed: Annotated[int, typer.Option(help="Of rows and probes.")] = 42,
    text_column: Annotated[str, typer.Option(help="In files.")] = "text",
    label_column: Annotated[str, typer.Option(help="In files.")] = "label",
    activations: Annotated[
        Path | None, typer.Option(help="Cache; <out>/activations by default.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compute existing results again.")
    ] = False,
) -> None:
    """Sparse probing of SAEs with SAEBench's own code, offline or on its data."""
    from sae_lens_cosine.saebench import command

    command.probe(
        saes=sae,
        model=model,
        suite=suite,
        datasets=dataset or [],
        out=out,
        mask_sinks=mask_sinks,  # type: ignore[arg-type] # checked where it is used
        include_sink_latents=include_sink_latents,
        probe_seeds=probe_seeds,
        ks=ks,
        train_rows=train_rows,
        test_rows=test_rows,
        context_size=context_size,
        seed=seed,
        text_column=text_column,
        label_column=label_column,
        activations=activations,
        force=force,
    )


SaeOption = typer.Option(help="Folder of an SAE, NAME=FOLDER, or RELEASE:SAE_ID.")
ModelOption = typer.Option(help="'demo', a folder, or a model's name.")
OutOption = typer.Option(help="New folder for analysis.json and report.html.")
TextOption = typer.Option(
    help="A text, CSV, Parquet or JSONL file; embedded held-out text by default."
)
TextColumnOption = typer.Option(help="In a table.")
TokensOption = typer.Option(help="Tokens of text to measure on.")
ContextOption = typer.Option(help="Tokens of a context.")
OverwriteOption = typer.Option("--overwrite", help="Replace an existing --out.")


@app.command()
def diagnose(
    sae: Annotated[str, SaeOption],
    model: Annotated[str, ModelOption],
    out: Annotated[Path, OutOption],
    text: Annotated[Path | None, TextOption] = None,
    text_column: Annotated[str, TextColumnOption] = "text",
    tokens: Annotated[int, TokensOption] = 16_384,
    context_size: Annotated[int, ContextOption] = 128,
    overwrite: Annotated[bool, OverwriteOption] = False,
) -> None:
    """What token norms do to an SAE: reconstruction, latents, decoder, exponents."""
    _analyse([sae], model, out, text, text_column, tokens, context_size, overwrite)


@app.command()
def compare(
    sae: Annotated[list[str], SaeOption],
    model: Annotated[str, ModelOption],
    out: Annotated[Path, OutOption],
    text: Annotated[Path | None, TextOption] = None,
    text_column: Annotated[str, TextColumnOption] = "text",
    tokens: Annotated[int, TokensOption] = 16_384,
    context_size: Annotated[int, ContextOption] = 128,
    overwrite: Annotated[bool, OverwriteOption] = False,
) -> None:
    """Diagnose two or more SAEs of one hook, and match their features.

    For example: sae-lens-cosine compare --sae runs/a --sae runs/b --model demo --out ab
    """
    if len(sae) < 2:
        raise ValueError(f"--sae={sae[0]}: give two SAEs or more, or use `diagnose`.")
    _analyse(sae, model, out, text, text_column, tokens, context_size, overwrite)


def _analyse(
    saes: list[str],
    model: str,
    out: Path,
    text: Path | None,
    text_column: str,
    tokens: int,
    context_size: int,
    overwrite: bool,
) -> None:
    from sae_lens_cosine.analysis import command

    try:
        command.run(
            saes, model, out, text, text_column, tokens, context_size, overwrite
        )
    except KeyboardInterrupt:
        typer.echo("\nInterrupted: nothing was written.", err=True)
        raise typer.Exit(130) from None


@app.command()
def core(
    sae: Annotated[
        list[str],
        typer.Option(help="Folder of an SAE, NAME=FOLDER, or RELEASE:SAE_ID; repeat."),
    ],
    model: Annotated[str, typer.Option(help="'demo', a folder, or a model's name.")],
    out: Annotated[Path, typer.Option(help="Folder for results.")],
    text: Annotated[Path | None, TextOption] = None,
    text_column: Annotated[str, TextColumnOption] = "text",
    contexts: Annotated[int, typer.Option(help="How many; a multiple of 8.")] = 32,
    context_size: Annotated[int, typer.Option(help="Tokens of each.")] = 128,
    force: Annotated[
        bool, typer.Option("--force", help="Compute existing results again.")
    ] = False,
) -> None:
    """Reconstruction, loss recovered, L0: SAEBench's core eval, and ours beside it."""
    from sae_lens_cosine.saebench import command

    command.core(
        saes=sae,
        model=model,
        out=out,
        text=text,
        text_column=text_column,
        contexts=contexts,
        context_size=context_size,
        force=force,
    )


def main() -> None:
    """Run the command line; bad input ends with one line and exit code 2."""
    warnings.formatwarning = _format_warning
    try:
        app()
    except ValidationError as error:
        for problem in error.errors():
            name = "-".join(str(part) for part in problem["loc"]).replace("_", "-")
            value = problem["input"]
            given = ",".join(value) if isinstance(value, tuple) else value
            reason = problem["msg"].removeprefix("Value error, ")
            _refuse(f"--{name}={given}: {reason}" if name else reason)
    except (ImportError, ValueError, TypeError, OSError) as error:
        _refuse(str(error))


def _format_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> str:
    """Without the line of code, which tells a user of the command line nothing."""
    return f"{category.__name__}: {message}\n"


def _refuse(message: str) -> None:
    print(f"sae-lens-cosine: {message}", file=sys.stderr)
    raise SystemExit(2)
