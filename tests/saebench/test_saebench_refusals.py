"""What the SAEBench adapter refuses, in words that say what to do."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sae_lens import SAE, TrainingSAE, TrainingSAEConfig
from three_evals import core, last_token, probing
from tiny_lm import CONTEXT, MARKERS, make_model, make_sae, make_texts
from transformer_lens import HookedTransformer

from sae_lens_cosine.labelled_texts import LabelledTexts
from sae_lens_cosine.saebench import run_sparse_probing


def run(
    model: HookedTransformer,
    saes: dict[str, Any],
    datasets: list[LabelledTexts],
    folder: Path,
    **kwargs: Any,
) -> Any:
    return run_sparse_probing(
        saes,
        model=model,
        datasets=datasets,
        artifacts_dir=folder,
        output=folder,
        **{"context_size": CONTEXT, "show_progress": False} | kwargs,
    )


def scaled_rows(sae: SAE[Any]) -> SAE[Any]:
    with torch.no_grad():
        sae.W_dec *= 2
    return sae


def without_hook(sae: SAE[Any]) -> SAE[Any]:
    sae.cfg.metadata.hook_name = None
    return sae


@pytest.mark.parametrize(
    ("sae", "error", "message"),
    [
        (lambda: object(), TypeError, "'x' is a object, not a SAELens SAE"),
        (lambda: without_hook(make_sae()), ValueError, "set sae.cfg.metadata.hook_"),
        (
            lambda: make_sae(hook="blocks.7.hook_resid_post"),
            ValueError,
            "'blocks.7.hook_resid_post', which the model does not have",
        ),
        (
            lambda: make_sae(hook="blocks.0.attn.hook_z"),
            ValueError,
            r"shape \[batch, seq, 4, 8\]",
        ),
        (
            lambda: make_sae(d_in=16),
            ValueError,
            "d_in=16, but 'blocks.1.hook_resid_post' has width 32",
        ),
        (
            lambda: scaled_rows(make_sae("topk", k=4)),
            ValueError,
            r"not unit \(norms from 2 to 2\).*cannot be folded.*TopK",
        ),
        (
            lambda: make_sae(normalize_activations="constant_norm_rescale"),
            ValueError,
            "encodes a row of zeros to NaN",
        ),
    ],
)
def test_unfit_saes(
    model: HookedTransformer,
    colours: LabelledTexts,
    tmp_path: Path,
    sae: Any,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        run(model, {"fine": make_sae(), "x": sae()}, [colours], tmp_path)
    assert not list(tmp_path.iterdir())


def test_training_sae_is_told_how_to_convert(
    model: HookedTransformer, colours: LabelledTexts, tmp_path: Path
) -> None:
    config = TrainingSAEConfig.from_dict(
        {"architecture": "batchtopk", "d_in": 32, "d_sae": 48, "k": 4}
    )
    sae = TrainingSAE.from_dict(config.to_dict())
    sae.cfg.metadata.hook_name = "blocks.1.hook_resid_post"
    with pytest.raises(TypeError, match=r"save_inference_model.*SAE\.load_from_disk"):
        run(model, {"x": sae}, [colours], tmp_path)
    # The way out works.
    sae.save_inference_model(tmp_path / "inference")
    converted = SAE.load_from_disk(tmp_path / "inference")
    assert run(model, {"x": converted}, [colours], tmp_path / "out")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"saes": {}}, "no SAE"),
        ({"datasets": []}, "no data set"),
        ({"ks": ()}, "at least one k"),
        ({"ks": (1, 3)}, r"ks=\(1, 3\).*\[1, 2, 5, 10, 20, 50, 100\]"),
        ({"ks": (1, 1)}, "each once"),
        ({"ks": 5}, "ks=5: give a list"),
        ({"probe_seeds": 1.5}, r"probe_seeds=1\.5 must be a whole number, 1 or more"),
        ({"llm_batch_size": 0}, "llm_batch_size=0 must"),
        ({"sae_batch_size": 0}, "sae_batch_size=0 must"),
        ({"context_size": -3}, "context_size=-3 must be a whole number, 2 or more"),
        ({"context_size": CONTEXT + 1}, "context_size=13 is more than the 12 tokens"),
        ({"train_rows": 2.5}, r"train_rows=2\.5 must"),
        ({"saes": {"x" * 300: make_sae()}}, "An SAE needs a name of 1 to 150 bytes"),
        ({"ks": (50,)}, "k=50 is more than the d_sae=48"),
        (
            {"datasets": [make_texts("a/b"), make_texts("a_b")]},
            "Two data sets have the same name",
        ),
    ],
)
def test_bad_requests(
    model: HookedTransformer,
    colours: LabelledTexts,
    tmp_path: Path,
    kwargs: dict[str, Any],
    message: str,
) -> None:
    request = {"saes": {"x": make_sae()}, "datasets": [colours], **kwargs}
    with pytest.raises(ValueError, match=message):
        run(model, folder=tmp_path, **request)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("evaluate", [probing, core, last_token])
def test_an_output_that_is_a_file_is_named_before_anything_is_read(
    model: HookedTransformer, tmp_path: Path, evaluate: Any
) -> None:
    (tmp_path / "ok.csv").touch()
    with pytest.raises(NotADirectoryError, match=r"output=.*ok\.csv is a file"):
        evaluate(["nowhere"], model, tmp_path / "ok.csv")


def test_unfit_models(colours: LabelledTexts, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="pass a HookedTransformer"):
        run(torch.nn.Linear(2, 2), {"x": make_sae()}, [colours], tmp_path)  # type: ignore[arg-type]
    model = make_model()
    model.tokenizer = None
    with pytest.raises(ValueError, match="no tokenizer"):
        run(model, {"x": make_sae()}, [colours], tmp_path)


def test_prompts_without_a_token_are_dropped_and_counted(
    model: HookedTransformer, tmp_path: Path
) -> None:
    whole = make_texts("holes")
    first, second = MARKERS[:2]
    # 24 rows a class: 2 of one class and 1 of another have no token to pool.
    train = dict(whole.train)
    train[first] = ["", " ", *whole.train[first][2:]]
    train[second] = ["<pad>", *whole.train[second][1:]]
    texts = dataclasses.replace(whole, train=train)
    with pytest.warns(UserWarning, match="train: dropped 3 prompts.*22 rows a class"):
        output = run(model, {"x": make_sae()}, [texts], tmp_path)["x"]
    assert output.eval_config.probe_train_set_size == 44
    assert output.eval_result_metrics.sae.sae_test_accuracy > 0.5


def test_tokens_that_saebench_takes_for_masked_are_counted(
    colours: LabelledTexts, tmp_path: Path
) -> None:
    model = make_model()
    with torch.no_grad():
        model.W_E[model.tokenizer.convert_tokens_to_ids("the")] = 0  # type: ignore[union-attr]
    sae = make_sae(hook="blocks.0.hook_resid_pre")
    with pytest.warns(UserWarning, match="tokens have activations that sum to exact"):
        run(model, {"x": sae}, [colours], tmp_path)


def test_model_that_overflows_is_refused(
    colours: LabelledTexts, tmp_path: Path
) -> None:
    model = make_model()
    with torch.no_grad():
        model.W_E[model.tokenizer.convert_tokens_to_ids("red")] = float("inf")  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="contain NaN or infinite values"):
        run(model, {"x": make_sae()}, [colours], tmp_path)
    assert not list(tmp_path.rglob("*.*"))


def test_cache_key_changes_with_all_inputs(
    model: HookedTransformer, colours: LabelledTexts, tmp_path: Path
) -> None:
    other_model = make_model()
    with torch.no_grad():
        other_model.embed.W_E += 0.1
    calls: list[dict[str, Any]] = [
        {},
        {"model": other_model},
        {"datasets": [make_texts(colours.name, seed=1)]},
        {"saes": {"x": make_sae(hook="blocks.0.hook_resid_post")}},
        {"context_size": CONTEXT - 4},
        {"llm_batch_size": 9},
    ]
    for done, kwargs in enumerate(calls, start=1):
        request = {
            "model": model,
            "saes": {"x": make_sae()},
            "datasets": [colours],
            "ks": (1,),
            **kwargs,
        }
        run(folder=tmp_path, **request)
        assert len(list(tmp_path.rglob("*_activations.pt"))) == done
    for kwargs in ({"seed": 7}, {"ks": (1,)}, {"sae_batch_size": 3}):
        run(model, {"x": make_sae(seed=1)}, [colours], tmp_path, **kwargs)
    assert len(list(tmp_path.rglob("*_activations.pt"))) == len(calls)


def test_interrupted_write_leaves_nothing(
    model: HookedTransformer,
    colours: LabelledTexts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half_write(_: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half_write)
    with pytest.raises(KeyboardInterrupt):
        run(model, {"x": make_sae()}, [colours], tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_missing_extra_is_named_and_the_package_does_not_need_it() -> None:
    code = (
        "import sys; sys.modules['sae_bench'] = None; import sae_lens_cosine; "
        "print('imported without'); import sae_lens_cosine.saebench"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "imported without"
    assert done.returncode == 1
    assert 'pip install "sae-lens-cosine[saebench]"' in done.stderr
