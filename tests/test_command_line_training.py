"""`sae-lens-cosine train` in processes of its own: signals, resuming, fine-tuning."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from sae_lens import SAE, TrainingSAE
from safetensors.torch import load_file
from tiny_words import WORDS, make_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from sae_lens_cosine import CosineJumpReLUSAE


@pytest.fixture(scope="module")
def local_model_and_text(tmp_path_factory) -> tuple[Path, Path]:
    """A Hugging Face model and a text data set in folders: the command line's food."""
    model, text = (tmp_path_factory.mktemp(name) for name in ("model", "text"))
    make_tokenizer(model).save_pretrained(model)
    cfg = GPT2Config(vocab_size=63, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    GPT2LMHeadModel(cfg).save_pretrained(model)
    rng = random.Random(0)
    lines = [
        json.dumps({"text": " ".join(rng.choices(WORDS, k=80))}) for _ in range(300)
    ]
    (text / "train.jsonl").write_text("\n".join(lines))
    return model, text


def command_line(model: Path, text: Path, folder: Path, *more: str) -> list[str]:
    flags = {
        "architecture": "cosine_batchtopk",
        "d_in": 16,
        "d_sae": 32,
        "k": 4,
        "model_name": model,
        "model_class_name": "AutoModelForCausalLM",
        "hook_name": "transformer.h.0",
        "dataset_path": text,
        "is_dataset_tokenized": "false",
        "context_size": 16,
        "train_batch_size_tokens": 64,
        "store_batch_size_prompts": 4,
        "n_batches_in_buffer": 8,
        "log_to_wandb": "false",
        "checkpoint_path": folder / "checkpoints",
        "output_path": folder / "output",
    }
    pairs = [(f"--{name}", str(value)) for name, value in flags.items()]
    arguments = [word for pair in pairs for word in pair]
    return [sys.executable, "-m", "sae_lens_cosine", "train", *arguments, *more]


def interrupted(model: Path, text: Path, folder: Path, number: int) -> Path:
    """The checkpoint of a run that got a signal after two seconds of training."""
    command = command_line(model, text, folder, "--training_tokens", "100000000")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    output = ""
    while "Training SAE" not in output and (char := process.stderr.read(1)):
        output += char
    time.sleep(2)
    process.send_signal(number)
    output += process.communicate(timeout=120)[1]
    assert process.returncode == 128 + number, output
    assert "Traceback" not in output
    (checkpoint,) = (folder / "checkpoints").glob("*/*")
    assert f"--resume_from_checkpoint {checkpoint}" in output
    assert {path.name for path in checkpoint.iterdir()} >= {
        "sae_weights.safetensors",
        "cfg.json",
        "trainer_state.pt",
        "activations_store_state.safetensors",
        "activation_scaler.json",
        "runner_cfg.json",
    }
    return checkpoint


def run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_ctrl_c_writes_a_complete_checkpoint(tmp_path, local_model_and_text):
    checkpoint = interrupted(*local_model_and_text, tmp_path, signal.SIGINT)
    n_done = int(TrainingSAE.load_from_disk(checkpoint).n_batches_trained)
    assert n_done * 64 == int(checkpoint.name) > 0


def test_sigterm_then_resuming_and_fine_tuning(tmp_path, local_model_and_text):
    checkpoint = interrupted(*local_model_and_text, tmp_path, signal.SIGTERM)
    n_done = int(TrainingSAE.load_from_disk(checkpoint).n_batches_trained)
    assert n_done * 64 == int(checkpoint.name) > 0

    n_more = ["--training_tokens", str((n_done + 5) * 64)]
    resumed = command_line(
        *local_model_and_text,
        tmp_path,
        *n_more,
        "--resume_from_checkpoint",
        str(checkpoint),
        "--save_final_checkpoint",
        "true",
    )
    run(*resumed)
    (final,) = (tmp_path / "checkpoints").glob("*/final_*")
    assert TrainingSAE.load_from_disk(final).n_batches_trained == n_done + 5
    assert type(SAE.load_from_disk(tmp_path / "output")) is CosineJumpReLUSAE

    # fine-tuning starts from the weights of a checkpoint with counters of its own
    tuned = command_line(
        *local_model_and_text,
        tmp_path / "tuned",
        "--training_tokens",
        "320",
        "--from_pretrained_path",
        str(final),
        "--save_final_checkpoint",
        "true",
    )
    run(*tuned)
    (last,) = (tmp_path / "tuned" / "checkpoints").glob("*/final_320")
    assert TrainingSAE.load_from_disk(last).n_batches_trained == n_done + 10
    assert torch.load(last / "trainer_state.pt")["n_training_steps"] == 5
    before = load_file(final / "sae_weights.safetensors")
    after = load_file(last / "sae_weights.safetensors")
    moved = (after["W_dec"] - before["W_dec"]).norm() / before["W_dec"].norm()
    assert 0 < moved < 0.1
