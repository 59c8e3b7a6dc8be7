"""The command line, in processes of its own."""

import subprocess
import sys

from sae_lens_cosine.registration import TRAINING_CLASSES


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sae_lens_cosine", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_train_offers_saelens_flags_and_our_architectures():
    result = run("train", "--architecture", "cosine_batchtopk", "--help")
    assert result.returncode == 0, result.stderr
    for flag in ("--training_tokens", "--hook_name", "--exponent_mode", "--k"):
        assert flag in result.stdout
    for name in TRAINING_CLASSES:
        assert name in result.stdout
    # the docstring of our config, not only the bare flag
    assert "one exponent and scale" in " ".join(result.stdout.split())
    assert "Traceback" not in result.stderr
    assert "RuntimeWarning" not in result.stderr


def test_saelens_own_architectures_still_work():
    result = run("train", "--architecture", "batchtopk", "--help")
    assert result.returncode == 0, result.stderr
    assert "--topk_threshold_lr" in result.stdout


def test_help_lists_the_commands():
    result = run("--help")
    assert result.returncode == 0
    assert "train" in result.stdout
