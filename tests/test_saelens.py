"""SAELens end to end: its runners, trainer, evaluations and hooked models."""

import pytest
import torch
from helpers import EXPONENT_MODES, activations, training_sae
from sae_lens import (
    SAE,
    LanguageModelSAERunnerConfig,
    LanguageModelSAETrainingRunner,
    LoggingConfig,
    MultiSAETrainingRunner,
    MultiSAETrainingRunnerConfig,
    TrainingSAE,
)
from sae_lens.config import SAETrainerConfig
from sae_lens.evals import EvalConfig, run_evals
from sae_lens.training.activation_scaler import ActivationScaler
from sae_lens.training.activations_store import ActivationsStore
from sae_lens.training.multi_sae_trainer import MultiSAETrainer
from sae_lens.training.sae_trainer import SAETrainer

from sae_lens_cosine import (
    CosineBatchTopKTrainingSAEConfig,
    CosineJumpReLUSAE,
    CosineTopKSAE,
    CosineTopKTrainingSAEConfig,
)

HOOK = "blocks.0.hook_resid_post"
SHARED = {
    "model_name": "tiny",
    "dataset_path": "in memory",
    "context_size": 16,
    "training_tokens": 2048,
    "train_batch_size_tokens": 128,
    "store_batch_size_prompts": 4,
    "n_batches_in_buffer": 16,
    "n_checkpoints": 1,
    "device": "cpu",
}


def run_single(tmp_path, model, text, sae_cfg, **cfg):
    config = LanguageModelSAERunnerConfig(
        sae=sae_cfg,
        hook_name=HOOK,
        checkpoint_path=str(tmp_path / "checkpoints"),
        output_path=str(tmp_path / "output"),
        logger=LoggingConfig(log_to_wandb=False),
        **(SHARED | cfg),
    )
    runner = LanguageModelSAETrainingRunner(
        config, override_model=model, override_dataset=text
    )
    return runner, runner.run()


@pytest.mark.parametrize("mode", EXPONENT_MODES)
@pytest.mark.parametrize("normalize", ["none", "expected_average_only_in"])
def test_runner_trains_saves_and_loads(
    tmp_path, tiny_model, tiny_text, mode, normalize
):
    cfg = CosineBatchTopKTrainingSAEConfig(
        d_in=16, d_sae=32, k=4, exponent_mode=mode, normalize_activations=normalize
    )
    _, sae = run_single(
        tmp_path, tiny_model, tiny_text, cfg, n_batches_for_norm_estimate=2
    )
    loaded = SAE.load_from_disk(tmp_path / "output")
    assert isinstance(loaded, CosineJumpReLUSAE)
    assert loaded.cfg.metadata.hook_name == HOOK
    assert loaded.cfg.normalize_activations == "none"
    _, cache = tiny_model.run_with_cache(tiny_text[0]["text"], names_filter=HOOK)
    x = cache[HOOK]
    _, hidden_pre = sae.encode_with_hidden_pre(x)
    expected = hidden_pre * (hidden_pre > loaded.threshold[0])
    acts = loaded.encode(x)
    assert acts.count_nonzero() > 0
    assert (acts - expected).abs().max() <= 1e-6 * expected.abs().max()
    torch.testing.assert_close(loaded(x), sae.decode(expected))


def test_runner_resumes_with_the_state_it_saved(tmp_path, tiny_model, tiny_text):
    cfg = CosineBatchTopKTrainingSAEConfig(d_in=16, d_sae=32, k=4)
    runner, _ = run_single(tmp_path, tiny_model, tiny_text, cfg)
    (checkpoint,) = (tmp_path / "checkpoints").glob("*/*")
    saved = TrainingSAE.load_from_disk(checkpoint)
    assert saved.n_batches_trained == 9  # 16 steps; checkpoint past half of them
    _, resumed = run_single(
        tmp_path / "resumed",
        tiny_model,
        tiny_text,
        cfg,
        resume_from_checkpoint=str(checkpoint),
    )
    # 2048 tokens: 7 more batches of 128 after the 9 that were counted
    assert resumed.n_batches_trained == 16
    assert runner.sae.n_batches_trained == 16


def test_multi_runner_shares_one_forward_pass(tmp_path, tiny_model, tiny_text):
    saes = {
        "topk": CosineTopKTrainingSAEConfig(d_in=16, d_sae=32, k=4),
        "global": CosineBatchTopKTrainingSAEConfig(d_in=16, d_sae=32, k=4),
        "per_feature": CosineBatchTopKTrainingSAEConfig(
            d_in=16, d_sae=32, k=4, exponent_mode="per_feature"
        ),
    }
    config = MultiSAETrainingRunnerConfig(
        saes=saes,
        hook_names=HOOK,
        checkpoint_path=str(tmp_path / "checkpoints"),
        output_path=str(tmp_path / "output"),
        logger=LoggingConfig(log_to_wandb=False),
        **SHARED,
    )
    trained = MultiSAETrainingRunner(
        config, override_model=tiny_model, override_dataset=tiny_text
    ).run()
    assert set(trained) == set(saes)
    for name in saes:
        loaded = SAE.load_from_disk(tmp_path / "output" / name)
        kind = CosineTopKSAE if name == "topk" else CosineJumpReLUSAE
        assert isinstance(loaded, kind)
        assert loaded.cfg.exponent_mode == saes[name].exponent_mode


TRAINER = {
    "n_checkpoints": 0,
    "checkpoint_path": None,
    "save_final_checkpoint": False,
    "device": "cpu",
    "autocast": False,
    "lr": 1e-3,
    "lr_end": 1e-4,
    "lr_scheduler_name": "cosineannealing",
    "lr_warm_up_steps": 2,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "lr_decay_steps": 4,
    "n_restart_cycles": 1,
    "train_batch_size_samples": 64,
    "dead_feature_window": 3,
    "feature_sampling_window": 1000,
    "logger": LoggingConfig(log_to_wandb=False),
    "n_batches_for_norm_estimate": 2,
}


def batches(start: int):
    """Batch i is a function of i, so that a provider can be put anywhere."""
    i = start
    while True:
        yield activations(64, seed=i)
        i += 1


def same_state(a: TrainingSAE, b: TrainingSAE) -> None:
    for key, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[key]), key


@pytest.mark.parametrize("mode", EXPONENT_MODES)
@pytest.mark.parametrize("architecture", ["cosine_batchtopk", "cosine_topk"])
def test_ten_steps_are_five_and_a_checkpoint_and_five(tmp_path, architecture, mode):
    def trainer(n_steps: int, start: int) -> SAETrainer:
        return SAETrainer(
            SAETrainerConfig(**TRAINER, total_training_samples=64 * n_steps),
            training_sae(architecture, exponent_mode=mode),
            batches(start),
        )

    whole = trainer(10, 0)
    whole.fit()
    half = trainer(10, 0)
    half.cfg.total_training_samples = 64 * 5
    half.fit()
    half.save_checkpoint("half", base_path=tmp_path)
    rest = trainer(10, 5)
    rest.load_trainer_state(tmp_path / "half")
    rest.sae.load_weights_from_checkpoint(tmp_path / "half")
    rest.fit()
    same_state(rest.sae, whole.sae)
    assert torch.equal(
        rest.n_forward_passes_since_fired, whole.n_forward_passes_since_fired
    )


def test_multi_trainer_resumes_exactly(tmp_path):
    def trainer(n_steps: int, start: int) -> MultiSAETrainer:
        saes = {
            "a": training_sae("cosine_batchtopk"),
            "b": training_sae("cosine_topk", exponent_mode="per_feature"),
        }
        cfg = SAETrainerConfig(**TRAINER, total_training_samples=640)
        multi = MultiSAETrainer(
            cfg,
            saes,
            dict.fromkeys(saes, HOOK),
            ({HOOK: batch} for batch in batches(start)),
        )
        multi.cfg.total_training_samples = 64 * n_steps
        return multi

    whole = trainer(10, 0)
    whole.fit()
    half = trainer(5, 0)
    half.fit()
    half.cfg.checkpoint_path = str(tmp_path)
    half.save_checkpoint("half")
    rest = trainer(10, 5)
    rest.load_checkpoint(tmp_path / "half")
    rest.fit()
    for name in whole.saes:
        same_state(rest.saes[name], whole.saes[name])


@pytest.fixture
def loaded(tmp_path, tiny_model, tiny_text):
    cfg = CosineBatchTopKTrainingSAEConfig(d_in=16, d_sae=32, k=4)
    run_single(tmp_path, tiny_model, tiny_text, cfg)
    return SAE.load_from_disk(tmp_path / "output")


def test_run_evals_accepts_it(loaded, tiny_model, tiny_text):
    store = ActivationsStore.from_sae(
        tiny_model,
        loaded,
        dataset=tiny_text,
        context_size=16,
        store_batch_size_prompts=4,
    )
    metrics, _ = run_evals(
        loaded,
        store,
        tiny_model,
        ActivationScaler(),
        EvalConfig(
            batch_size_prompts=4,
            n_eval_reconstruction_batches=2,
            n_eval_sparsity_variance_batches=2,
            compute_ce_loss=True,
            compute_l2_norms=True,
            compute_sparsity_metrics=True,
            compute_variance_metrics=True,
        ),
    )
    assert metrics["sparsity"]["l0"] > 0
    assert metrics["reconstruction_quality"]["explained_variance"] > 0


def test_hooks_fire_once_and_in_order(loaded, tiny_model, tiny_text):
    fired = []
    names = [
        f"{HOOK}.hook_sae_{name}"
        for name in ("input", "acts_pre", "acts_post", "recons", "output")
    ]
    tiny_model.run_with_hooks_with_saes(
        tiny_text[0]["text"],
        saes=[loaded],
        fwd_hooks=[
            (name, lambda value, hook: fired.append(hook.name) or value)
            for name in names
        ],
    )
    assert fired == names


def test_the_error_term_leaves_the_model_unchanged(loaded, tiny_model, tiny_text):
    text = tiny_text[0]["text"]
    clean = tiny_model(text)
    spliced = tiny_model.run_with_saes(text, saes=[loaded], use_error_term=True)
    torch.testing.assert_close(spliced, clean, rtol=1e-4, atol=1e-4)
    without = tiny_model.run_with_saes(text, saes=[loaded])
    assert (without - clean).abs().max() > 1e-3
