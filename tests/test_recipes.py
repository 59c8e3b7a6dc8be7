import json

import pytest
from pydantic import ValidationError
from sae_lens import LanguageModelSAERunnerConfig
from sae_lens.llm_sae_training_runner import _parse_cfg_args

from sae_lens_cosine import CosineBatchTopKTrainingSAEConfig
from sae_lens_cosine.recipes import PAPER, Recipe, load_recipe, paper_config


def without_run_names(cfg: LanguageModelSAERunnerConfig) -> dict:
    fields = cfg.to_dict()
    for name in ("checkpoint_path", "logger"):
        fields.pop(name)
    return fields


def test_every_number_of_the_paper():
    cfg = PAPER.config()
    assert cfg.sae.architecture() == "cosine_batchtopk"
    assert (cfg.sae.d_in, cfg.sae.d_sae, cfg.sae.k) == (4096, 65_536, 80)
    assert cfg.sae.exponent_mode == "per_feature"
    assert cfg.sae.aux_loss_coefficient == 1 / 32
    assert cfg.sae.aux_loss_normalization == "residual_variance"
    assert cfg.sae.outlier_norm_multiple == 10
    assert cfg.sae.topk_threshold_lr == pytest.approx(1 - 0.999)
    assert cfg.sae.threshold_start_step == 1000
    assert cfg.sae.b_dec_init_method == "geometric_median"
    assert cfg.sae.decoder_init_norm == 1.0
    assert (cfg.model_name, cfg.hook_name) == (
        "Qwen/Qwen3-8B",
        "blocks.18.hook_resid_post",
    )
    assert cfg.training_tokens == 500_000_000
    assert (cfg.train_batch_size_tokens, cfg.context_size) == (2048, 2048)
    assert (cfg.lr, cfg.adam_beta1, cfg.adam_beta2) == (5e-5, 0.9, 0.999)
    # 500M / 2048 = 244,140 steps, a fifth of them 48,828
    assert cfg.total_training_steps == 244_140
    assert (cfg.lr_scheduler_name, cfg.lr_warm_up_steps, cfg.lr_decay_steps) == (
        "constant",
        1000,
        48_828,
    )
    # 10M / 2048 steps
    assert cfg.dead_feature_window == 4882


def test_another_model_and_budget():
    cfg = paper_config("tiny", "blocks.0.hook_resid_post", 16, 64, 10_240_000, k=4)
    assert isinstance(cfg.sae, CosineBatchTopKTrainingSAEConfig)
    assert (cfg.sae.d_in, cfg.sae.d_sae, cfg.sae.k) == (16, 64, 4)
    assert cfg.lr_decay_steps == 1000  # a fifth of 5,000 steps
    json.dumps(cfg.to_dict())
    again = LanguageModelSAERunnerConfig.from_dict(cfg.to_dict())
    assert again.sae == cfg.sae


def test_overrides_reach_both_configs_and_what_follows():
    cfg = PAPER.config(
        train_batch_size_tokens=4096, device="cpu", autocast=True, initial_exponent=1.0
    )
    assert cfg.lr_decay_steps == 24_414
    assert cfg.autocast
    assert cfg.sae.initial_exponent == 1.0
    with pytest.raises(TypeError, match=r"learning_rate=0.1 is no field"):
        PAPER.config(learning_rate=0.1)


@pytest.mark.parametrize(
    "architecture",
    ["batchtopk", "cosine_topk", "reweighted_batchtopk", "sink_batchtopk", "topk"],
)
def test_baselines_take_the_recipe(architecture):
    cfg = PAPER.config(architecture=architecture)
    assert cfg.sae.architecture() == architecture
    assert cfg.sae.k == 80
    assert cfg.sae.aux_loss_coefficient == 1 / 32


@pytest.mark.parametrize("architecture", ["cosine_batchtopk", "cosine_topk"])
def test_the_command_line_builds_the_same_config(architecture):
    given = ["--training_tokens", "100000000", "--lr", "1e-4", "--d_sae", "128"]
    given += ["--architecture", architecture]
    parsed = _parse_cfg_args(PAPER.arguments(given))
    expected = PAPER.config(
        training_tokens=100_000_000, lr=1e-4, d_sae=128, architecture=architecture
    )
    assert without_run_names(parsed) == without_run_names(expected)


def test_a_recipe_from_yaml(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("k: 40\nlr: 1.0e-4\nd_sae: 1024\n")
    assert load_recipe(str(path)) == Recipe(k=40, lr=1e-4, d_sae=1024)
    assert load_recipe("paper") == PAPER


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kk: 40", "kk"),
        ("k: 0", "greater than 0"),
        ("- k", "must hold a mapping"),
        ("training_tokens: 1000000", r"do not fit into the 488 steps"),
    ],
)
def test_bad_recipes_are_named(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises((ValidationError, ValueError), match=message):
        load_recipe(str(path))


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(ValueError, match=r"recipe='papers' is neither one of 'paper'"):
        load_recipe("papers")
