"""The command line: `sae-lens-cosine`, or `python -m sae_lens_cosine`."""

import runpy
import sys
import warnings

import typer

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
def train(context: typer.Context) -> None:
    """Train with SAELens's own command line: all its flags, our architectures too.

    For example: sae-lens-cosine train --architecture cosine_batchtopk --help
    """
    # SAELens finds architectures in its registry, which the import of this package
    # has filled; from here on the process is its command line.
    module = "sae_lens.llm_sae_training_runner"
    sys.argv = [f"{context.command_path}", *context.args]
    with warnings.catch_warnings():
        # runpy points out that the module is imported already, which is harmless.
        warnings.filterwarnings("ignore", f".*{module}.*", RuntimeWarning)
        runpy.run_module(module, run_name="__main__")


def main() -> None:
    """Run the command line."""
    app()
