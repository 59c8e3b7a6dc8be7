"""Checkpoints: resumed runs equal uninterrupted ones, and signals write one."""

import os
import signal
from pathlib import Path

import pytest
import torch
from helpers import EXPONENT_MODES, TRAINING_ARCHITECTURES, activations, training_sae
from sae_lens import LoggingConfig
from sae_lens.config import SAETrainerConfig
from sae_lens.training.multi_sae_trainer import MultiSAETrainer
from sae_lens.training.sae_trainer import SAETrainer

from sae_lens_cosine.interruption import (
    Interrupted,
    InterruptibleTrainer,
    resume_command,
)

HOOK = "blocks.0.hook_resid_post"
NORMALIZATIONS = ("none", "expected_average_only_in")
N_NORM_BATCHES = 2
ALL = [*TRAINING_ARCHITECTURES, "reweighted_batchtopk"]


def config(**fields) -> SAETrainerConfig:
    defaults = {
        "total_training_samples": 64 * 20,
        "train_batch_size_samples": 64,
        "lr": 1e-3,
        "lr_end": 1e-4,
        "lr_scheduler_name": "cosineannealing",
        "lr_warm_up_steps": 2,
        "lr_decay_steps": 8,
        "dead_feature_window": 3,
        # SAELens cannot resume at a multiple of it: 0 / 0 samples after two resets
        "feature_sampling_window": 7,
        "logger": LoggingConfig(log_to_wandb=False),
        "n_batches_for_norm_estimate": N_NORM_BATCHES,
    }
    return SAETrainerConfig(**(defaults | fields))


def batches(start: int, stop: int | None = None):
    """Batch i is a function of i, so that a provider can be put anywhere."""
    i = start
    while stop is None or i < stop:
        yield activations(64, seed=i)
        i += 1


def same(a: SAETrainer, b: SAETrainer) -> None:
    for key, value in a.sae.state_dict().items():
        assert torch.equal(value, b.sae.state_dict()[key]), key
    assert a.n_training_samples == b.n_training_samples
    assert a.n_training_steps == b.n_training_steps
    assert torch.equal(a.n_forward_passes_since_fired, b.n_forward_passes_since_fired)
    assert torch.equal(a.act_freq_scores, b.act_freq_scores)
    assert a.n_frac_active_samples == b.n_frac_active_samples


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("mode", EXPONENT_MODES)
@pytest.mark.parametrize("architecture", ALL)
def test_twenty_steps_are_ten_and_a_checkpoint_and_ten(
    tmp_path, architecture, mode, normalize
):
    if architecture == "reweighted_batchtopk" and mode == "per_feature":
        pytest.skip("has no exponent")

    def trainer(provider) -> SAETrainer:
        fields = {"exponent_mode": mode, "normalize_activations": normalize}
        return SAETrainer(config(), training_sae(architecture, **fields), provider)

    used_up = N_NORM_BATCHES if normalize != "none" else 0
    whole = trainer(batches(0))
    whole.fit()
    half = trainer(batches(0, used_up + 10))
    with pytest.raises(StopIteration):  # after ten steps, at a step boundary
        half.fit()
    half.save_checkpoint("half", base_path=tmp_path)
    rest = trainer(batches(used_up + 10))
    rest.load_trainer_state(tmp_path / "half")
    rest.sae.load_weights_from_checkpoint(tmp_path / "half")
    same(rest, half)
    rest.fit()
    same(rest, whole)
    assert whole.sae.n_batches_trained == 20
    assert whole.sae.cfg.normalize_activations == "none" or used_up == 0


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_multi_trainer_resumes_exactly(tmp_path, normalize):
    def trainer(provider, checkpoint_path=None) -> MultiSAETrainer:
        saes = {
            name: training_sae(name, normalize_activations=normalize) for name in ALL
        }
        return MultiSAETrainer(
            config(checkpoint_path=checkpoint_path),
            saes,
            dict.fromkeys(saes, HOOK),
            ({HOOK: batch} for batch in provider),
        )

    used_up = N_NORM_BATCHES if normalize != "none" else 0
    whole = trainer(batches(0))
    whole.fit()
    half = trainer(batches(0, used_up + 10), str(tmp_path))
    with pytest.raises(StopIteration):
        half.fit()
    half.save_checkpoint("half")
    rest = trainer(batches(used_up + 10))
    rest.load_checkpoint(tmp_path / "half")
    rest.fit()
    for name in ALL:
        same(rest.trainers[name], whole.trainers[name])


def signalling(number: int, at: int, times: int = 1):
    """Sends this process a signal while batch ``at`` is read."""
    for i, batch in enumerate(batches(0)):
        if i == at:
            for _ in range(times):
                os.kill(os.getpid(), number)
        yield batch


@pytest.mark.parametrize("n_steps", [6, 7])  # 7 ends a feature sampling window
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_saves(tmp_path, number, n_steps):
    before = signal.getsignal(number)
    trainer = InterruptibleTrainer(
        config(checkpoint_path=str(tmp_path)),
        training_sae(),
        signalling(number, at=n_steps - 1),
    )
    with pytest.raises(Interrupted) as caught:
        trainer.fit()
    assert signal.getsignal(number) == before
    assert caught.value.signal_number == number
    (checkpoint,) = tmp_path.iterdir()
    assert caught.value.checkpoint == checkpoint
    assert checkpoint.name == str(64 * n_steps)

    rest = SAETrainer(config(), training_sae(), batches(n_steps))
    rest.load_trainer_state(checkpoint)
    rest.sae.load_weights_from_checkpoint(checkpoint)
    assert rest.n_training_steps == n_steps
    rest.fit()
    whole = SAETrainer(config(), training_sae(), batches(0))
    whole.fit()
    same(rest, whole)


def test_without_a_checkpoint_path_it_stops_and_says_so():
    trainer = InterruptibleTrainer(
        config(), training_sae(), signalling(signal.SIGTERM, at=1)
    )
    with pytest.raises(Interrupted, match="SIGTERM: nothing was saved"):
        trainer.fit()


def test_a_second_signal_stops_at_once(tmp_path):
    trainer = InterruptibleTrainer(
        config(checkpoint_path=str(tmp_path)),
        training_sae(),
        signalling(signal.SIGINT, at=3, times=2),
    )
    with pytest.raises(SystemExit) as caught:
        trainer.fit()
    assert caught.value.code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_saelens_at_the_same_step_is_replaced(tmp_path):
    # Half of 20 steps is passed with the 11th: SAELens saves there with counter 10.
    trainer = InterruptibleTrainer(
        config(checkpoint_path=str(tmp_path), n_checkpoints=1),
        training_sae(),
        signalling(signal.SIGTERM, at=10),
    )
    with pytest.raises(Interrupted):
        trainer.fit()
    (only,) = tmp_path.iterdir()
    rest = SAETrainer(config(), training_sae(), batches(11))
    rest.load_trainer_state(only)
    assert (rest.n_training_steps, rest.n_training_samples) == (11, 704)


def test_the_command_to_resume_replaces_an_older_checkpoint():
    given = ["--k", "4", "--resume_from_checkpoint", "a b", "--lr", "1"]
    command = resume_command(given, Path("c d"))
    assert command == (
        "sae-lens-cosine train --k 4 --lr 1 --resume_from_checkpoint 'c d'"
    )
    given = ["--resume_from_checkpoint=old"]
    assert resume_command(given, Path("new")).count("resume_from_checkpoint") == 1
