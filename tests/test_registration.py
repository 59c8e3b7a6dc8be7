"""The first thing a user meets: the architectures are there, and nothing else is."""

import subprocess
import sys

import pytest
from sae_lens import registry
from sae_lens.saes.topk_sae import TopKSAE, TopKSAEConfig

import sae_lens_cosine
from sae_lens_cosine.registration import INFERENCE_CLASSES, TRAINING_CLASSES


def in_new_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )


def test_architectures_are_listed():
    for name, classes in INFERENCE_CLASSES.items():
        assert registry.get_sae_class(name) == classes
    for name, classes in TRAINING_CLASSES.items():
        assert registry.get_sae_training_class(name) == classes


def test_registering_again_changes_nothing():
    before = dict(registry.SAE_CLASS_REGISTRY)
    sae_lens_cosine.register()
    assert before == registry.SAE_CLASS_REGISTRY


def test_a_taken_name_is_a_clear_error_and_registers_nothing(monkeypatch):
    known = {"cosine_topk": (TopKSAE, TopKSAEConfig)}
    monkeypatch.setattr(registry, "SAE_CLASS_REGISTRY", known)
    monkeypatch.setattr(registry, "SAE_TRAINING_CLASS_REGISTRY", {})
    with pytest.raises(ValueError, match=r"'cosine_topk' is already .*TopKSAE"):
        sae_lens_cosine.register()
    assert list(known) == ["cosine_topk"]
    assert registry.SAE_TRAINING_CLASS_REGISTRY == {}


def test_every_architecture_of_a_config_is_its_name():
    for classes in (INFERENCE_CLASSES, TRAINING_CLASSES):
        for name, (_, config_class) in classes.items():
            if config_class.__name__ != "TrainingOnlySAEConfig":
                assert config_class.architecture() == name


HEAVY = ("sae_bench", "sae_probes", "matplotlib", "sklearn")


def test_the_import_is_silent_and_light():
    # SAELens itself imports plotly; what it already imports is not ours to avoid.
    code = f"""
import sys
import sae_lens
before = set(sys.modules)
import sae_lens_cosine
new = set(sys.modules) - before
heavy = [name for name in new if name.split(".")[0] in {(*HEAVY, "plotly")!r}]
assert not heavy, heavy
"""
    result = in_new_process(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert "sae_lens_cosine" not in result.stderr


@pytest.mark.parametrize("module", ["sae_bench", "matplotlib"])
def test_the_check_of_light_imports_can_fail(module):
    code = f"import sys, sae_lens, {module}; assert {module!r} not in sys.modules"
    assert in_new_process(code).returncode != 0


def spawned_architecture() -> str:
    from sae_lens import TrainingSAEConfig

    fields = {"architecture": "cosine_topk", "d_in": 2, "d_sae": 4, "k": 1}
    return TrainingSAEConfig.from_dict(fields).architecture()


def test_a_spawned_worker_knows_the_architectures():
    code = """
import multiprocessing, sae_lens_cosine
from sae_lens_cosine import CosineTopKTrainingSAEConfig
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        cfg = CosineTopKTrainingSAEConfig(d_in=2, d_sae=4, k=1)
        print(pool.apply(type(cfg).from_dict, (cfg.to_dict(),)).architecture())
"""
    result = in_new_process(code)
    assert result.stdout.strip() == "cosine_topk", result.stderr
