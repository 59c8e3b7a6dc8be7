"""Training recipes: the paper's numbers, checked, as a complete SAELens config."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator
from sae_lens import LanguageModelSAERunnerConfig, LoggingConfig
from sae_lens.registry import get_sae_training_class

from sae_lens_cosine.aux_loss import AuxLossNormalization
from sae_lens_cosine.inference import ExponentMode

# What SAELens calls fields of the recipe that others follow from.
SAELENS_NAMES = {
    "train_batch_size_tokens": "batch_tokens",
    "lr_warm_up_steps": "warm_up_steps",
    "store_batch_size_prompts": "prompts_in_forward_pass",
}


def _field_names(config_class: type) -> set[str]:
    """What its constructor takes: class variables are in ``__dataclass_fields__``."""
    return {field.name for field in dataclasses.fields(config_class)}


class Recipe(BaseModel):
    """How to train, apart from what on; the defaults are the paper's.

    SAELens can express all of it but for these, which are its own: dead latents are
    counted in steps (``dead_after_tokens`` is divided by the batch size), the learning
    rate warms up from ``1 / warm_up_steps`` of itself and not from 0, gradients are
    clipped at norm 1.0 (the paper's number, fixed in SAELens), and outliers are found
    in a training batch rather than in the 4 documents of a forward pass. The authors
    read the FineWeb subset "sample-10BT" and cut documents at 8192 characters; SAELens
    names no subsets, reads the default one and concatenates documents.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: str = "cosine_batchtopk"
    """A training architecture of this package or of SAELens."""
    k: float = Field(default=80, gt=0)
    """Latents a token, on average over the batch."""
    exponent_mode: ExponentMode = "per_feature"
    """The paper reports both; per feature is its headline."""
    lr: float = Field(default=5e-5, gt=0)
    """Of Adam, with betas 0.9 and 0.999."""
    warm_up_steps: int = Field(default=1000, ge=0)
    """Steps in which the learning rate grows."""
    decay_share: float = Field(default=0.2, ge=0, lt=1)
    """Last share of the steps, in which the learning rate falls to 0 on a line."""
    batch_tokens: PositiveInt = 2048
    """Tokens a training step."""
    context_size: PositiveInt = 2048
    """Tokens a sequence."""
    aux_loss_coefficient: float = Field(default=1 / 32, ge=0)
    """Weight of the loss that revives dead latents."""
    aux_loss_normalization: AuxLossNormalization = "residual_variance"
    """What that loss is divided by."""
    dead_after_tokens: PositiveInt = 10_000_000
    """Tokens without an activation after which a latent is dead."""
    outlier_norm_multiple: float | None = Field(default=10.0, gt=1)
    """Tokens whose norm exceeds this times the median are not trained on."""
    topk_threshold_lr: float = Field(default=1e-3, gt=0, le=1)
    """1 minus the decay of the running threshold, 0.999."""
    threshold_start_step: int = Field(default=1000, ge=0)
    """Step at which the threshold starts to be averaged."""
    dataset_path: str = "HuggingFaceFW/fineweb"
    """Of untokenized text."""
    buffer_tokens: PositiveInt = 500_000
    """Activations that are shuffled together."""
    prompts_in_forward_pass: PositiveInt = 4
    """Sequences a forward pass of the model."""
    seed: int = 42
    """Of the SAE's weights and of the data order."""
    prepend_bos: bool = False
    """The paper's Qwen3 has no such token."""
    model_name: str = "Qwen/Qwen3-8B"
    hook_name: str = "blocks.18.hook_resid_post"
    d_in: PositiveInt = 4096
    d_sae: PositiveInt = 65_536
    training_tokens: PositiveInt = 500_000_000

    @model_validator(mode="after")
    def check_schedule(self) -> "Recipe":
        if self.warm_up_steps + self.decay_steps() > self.steps():
            raise ValueError(
                f"warm_up_steps={self.warm_up_steps} and decay_share="
                f"{self.decay_share} do not fit into the {self.steps()} steps of "
                f"training_tokens={self.training_tokens} and "
                f"batch_tokens={self.batch_tokens}: lower one, or train longer."
            )
        return self

    def steps(self) -> int:
        return self.training_tokens // self.batch_tokens

    def decay_steps(self) -> int:
        return round(self.decay_share * self.steps())

    def runner_fields(self) -> dict[str, Any]:
        """The recipe as fields of `LanguageModelSAERunnerConfig`, but for the SAE."""
        return {
            "model_name": self.model_name,
            "hook_name": self.hook_name,
            "dataset_path": self.dataset_path,
            "is_dataset_tokenized": False,
            "streaming": True,
            "prepend_bos": self.prepend_bos,
            "context_size": self.context_size,
            "training_tokens": self.training_tokens,
            "train_batch_size_tokens": self.batch_tokens,
            "store_batch_size_prompts": self.prompts_in_forward_pass,
            "n_batches_in_buffer": max(
                1,
                self.buffer_tokens
                // (self.prompts_in_forward_pass * self.context_size),
            ),
            "lr": self.lr,
            "lr_scheduler_name": "constant",
            "lr_warm_up_steps": self.warm_up_steps,
            "lr_decay_steps": self.decay_steps(),
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "dead_feature_window": max(1, self.dead_after_tokens // self.batch_tokens),
            "seed": self.seed,
        }

    def sae_fields(self) -> dict[str, Any]:
        """The recipe as fields of the SAE config, those that its architecture has."""
        fields = {
            "d_in": self.d_in,
            "d_sae": self.d_sae,
            "k": self.k,
            "exponent_mode": self.exponent_mode,
            "aux_loss_coefficient": self.aux_loss_coefficient,
            "aux_loss_normalization": self.aux_loss_normalization,
            "outlier_norm_multiple": self.outlier_norm_multiple,
            "topk_threshold_lr": self.topk_threshold_lr,
            "threshold_start_step": self.threshold_start_step,
            "b_dec_init_method": "geometric_median",
            "decoder_init_norm": 1.0,
        }
        _, config_class = get_sae_training_class(self.architecture)
        known = _field_names(config_class)
        if "k" in known and "batchtopk" not in self.architecture:
            fields["k"] = int(self.k)
        return {name: value for name, value in fields.items() if name in known}

    def config(self, **overrides: Any) -> LanguageModelSAERunnerConfig[Any]:
        """A complete runner config.

        Args:
            **overrides: fields of the recipe, from which others follow, of the runner
                config, or of the SAE config.

        Raises:
            TypeError: on a field that none of them has.
        """
        recipe = self.changed(overrides)
        runner = {"logger": LoggingConfig(log_to_wandb=False), **recipe.runner_fields()}
        sae = recipe.sae_fields()
        _, config_class = get_sae_training_class(recipe.architecture)
        for name, value in overrides.items():
            if name in Recipe.model_fields or name in SAELENS_NAMES:
                continue
            if name in _field_names(LanguageModelSAERunnerConfig):
                runner[name] = value
            elif name in _field_names(config_class):
                sae[name] = value
            else:
                raise TypeError(
                    f"{name}={value!r} is no field of the recipe, of SAELens's runner "
                    f"config or of {config_class.__name__}."
                )
        return LanguageModelSAERunnerConfig(sae=config_class(**sae), **runner)

    def arguments(self, given: Sequence[str]) -> list[str]:
        """Flags of SAELens's command line: the recipe's, then those ``given``.

        The given ones win, and those that others follow from (tokens, batch size,
        architecture) are put into the recipe first.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--architecture", "--sae")
        for name in ("training_tokens", "context_size", *SAELENS_NAMES):
            parser.add_argument(f"--{name}", type=int)
        known, _ = parser.parse_known_args(list(given))
        changes = {name: value for name, value in vars(known).items() if value}
        recipe = self.changed(changes)
        flags = ["--architecture", recipe.architecture]
        for name, value in (recipe.runner_fields() | recipe.sae_fields()).items():
            flags += [f"--{name}", str(value)]
        return [*flags, *given]

    def changed(self, changes: dict[str, Any]) -> "Recipe":
        """This recipe with the fields that ``changes`` names, checked again."""
        own = {SAELENS_NAMES.get(name, name): value for name, value in changes.items()}
        own = {key: value for key, value in own.items() if key in Recipe.model_fields}
        return Recipe.model_validate(self.model_dump() | own)


PAPER = Recipe()
RECIPES: dict[str, Recipe] = {"paper": PAPER}


def paper_config(
    model_name: str,
    hook_name: str,
    d_in: int,
    d_sae: int,
    training_tokens: int,
    **overrides: Any,
) -> LanguageModelSAERunnerConfig[Any]:
    """The paper's recipe for another model, hook and budget.

    Args:
        model_name: as SAELens takes it.
        hook_name: as SAELens takes it.
        d_in: width of the hook.
        d_sae: number of latents.
        training_tokens: all of them; the last fifth of the steps decays.
        **overrides: see `Recipe.config`.
    """
    return PAPER.config(
        model_name=model_name,
        hook_name=hook_name,
        d_in=d_in,
        d_sae=d_sae,
        training_tokens=training_tokens,
        **overrides,
    )


def load_recipe(name: str) -> Recipe:
    """A recipe by name, or from a YAML file with fields of `Recipe`.

    Raises:
        ValueError: if there is neither, or the file has unknown or impossible fields.
    """
    if name in RECIPES:
        return RECIPES[name]
    path = Path(name)
    if not path.is_file():
        names = ", ".join(repr(known) for known in RECIPES)
        raise ValueError(
            f"recipe={name!r} is neither one of {names} nor a YAML file that exists."
        )
    content = yaml.safe_load(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping of recipe fields.")
    return Recipe.model_validate(content)
